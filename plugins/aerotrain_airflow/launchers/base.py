"""What every launcher does, whatever it runs replicas on.

A launcher keeps no state that another process could not find again: ``start`` returns an
address, and whoever holds it can watch the set and stop it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry
from aerotrain_airflow.recovery.ended import Ended

if TYPE_CHECKING:
    # Airflow sends all logs of whoever imports it to standard output, where reports are printed.
    from airflow.triggers.base import BaseTrigger

#: What every TensorFlow says at its start, twice, whatever its log level: no news to anybody.
_BANNER = re.compile(r"All log messages before absl::InitializeLog|oneDNN custom operations are on")


@dataclass(frozen=True)
class LogLine:
    """One line that a replica wrote, without its line end."""

    replica: ReplicaName
    text: str

    def __str__(self) -> str:
        return f"[{self.replica}] {self.text}"


#: Takes one line of a replica as it comes.
Emit = Callable[[LogLine], None]


class Plan(Protocol):
    """What a launcher would start; ``str()`` shows it to a person."""

    @property
    def job(self) -> Job: ...

    @property
    def address(self) -> str:
        """Where the set will be; it ends in the attempt."""


PlanT = TypeVar("PlanT", bound=Plan)


class Launcher(Protocol[PlanT]):
    """Runs the replicas of a job."""

    def plan(self, job: Job, attempt: str) -> PlanT:
        """What ``start`` would do for this job, without touching the world.

        Raises:
            SpecError: this launcher cannot run such a job.
        """

    def check(self, plans: Sequence[PlanT]) -> None:
        """Ask the world whether ``start`` would be let do all of these, and change nothing.

        Raises:
            FinalError, TemporaryError: as for ``start``.
        """

    def start(self, plan: PlanT) -> str:
        """Start every replica of the plan, and return the address of the set.

        A job has one set. The same job's set of an earlier attempt is taken over where the
        launcher can and it is whole; anything else under its name is ended first.

        Raises:
            FinalError: the plan cannot be started here, and another try would not help.
            TemporaryError: it may be startable later.
        """

    def watch(
        self, address: str, emit: Emit, *, until: float | None, at_most: float | None = None
    ) -> Ended | None:
        """Pass on every line that the replicas write, once, until their job has ended.

        Replicas that are lost meanwhile come back in place, as ``recovery`` decides.
        ``until`` is a time of ``time.time()`` at which the job is to have ended. ``at_most`` is
        for how many seconds the caller watches; None is returned where the job goes on.
        """

    def trigger(self, address: str, until: float | None) -> "BaseTrigger | None":
        """What goes on watching in a triggerer, where this launcher's sets can be seen there."""

    def ledger(self, address: str) -> list[Entry]:
        """What happened to the set until now; nothing where it is gone."""

    def stop(self, address: str) -> None:
        """End every replica of the set and what they started, and leave nothing behind.

        Stopping what is gone already, or what another task has taken over, does nothing.
        """


def log_line(log: Any, line: LogLine) -> None:
    """Write a replica's line to a task's log; what is news to nobody only where DEBUG shows."""
    (log.debug if _BANNER.search(line.text) else log.info)("%s", line)


def attempt_of(address: str) -> str:
    """Which launch made the set at ``address``: the last part of every launcher's addresses."""
    return address.rsplit("/", 1)[1]
