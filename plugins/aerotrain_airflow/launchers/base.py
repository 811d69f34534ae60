"""What every launcher does, whatever it runs replicas on.

A launcher keeps no state that another process could not find again: ``start`` returns an
address, and whoever holds it can observe, read the logs and stop.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import Observation

#: How far the log of each replica was read, in bytes, by the replica's name.
Positions = dict[str, int]


@dataclass(frozen=True)
class LogLine:
    """One line that a replica wrote, without its line end."""

    replica: ReplicaName
    text: str

    def __str__(self) -> str:
        return f"[{self.replica}] {self.text}"


class Plan(Protocol):
    """What a launcher would start; ``str()`` shows it to a person."""

    @property
    def job(self) -> Job: ...


PlanT = TypeVar("PlanT", bound=Plan)


class Launcher(Protocol[PlanT]):
    """Runs the replicas of a job."""

    def plan(self, job: Job, attempt: str) -> PlanT:
        """What ``start`` would do for this job, without touching the world."""

    def start(self, plan: PlanT) -> str:
        """Start every replica of the plan, and return the address of the set.

        What an earlier attempt left under the same name is ended first: a job has one set.

        Raises:
            FinalError: the plan cannot be started here, and another try would not help.
            TemporaryError: it may be startable later.
        """

    def observe(self, address: str) -> Mapping[ReplicaName, Observation]:
        """The state of every replica of the set, now."""

    def logs(self, address: str, positions: Positions) -> Iterable[LogLine]:
        """The whole lines that the replicas wrote since ``positions``, which move on.

        The last line of a replica that has ended counts as whole.
        """

    def stop(self, address: str) -> None:
        """End every replica of the set and what they started, and leave nothing behind.

        Returns once all are gone. Stopping what is gone already does nothing.
        """
