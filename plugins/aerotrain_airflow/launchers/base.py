"""What every launcher does, whatever it runs replicas on.

A launcher keeps no state that another process could not find again: ``start`` returns an
address, and whoever holds it can watch the set and stop it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from airflow.triggers.base import BaseTrigger

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import Observation, State, job_state

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


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: its state, whose doing it was, and what is told to the user."""

    state: State
    reason: str = ""
    causes: tuple[ReplicaName, ...] = ()

    def to_dict(self) -> dict[str, str]:
        """The state and the reason, as an event of Airflow's carries them."""
        return {"state": self.state.value, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Self:
        """Read what ``to_dict`` wrote."""
        return cls(state=State(data["state"]), reason=data["reason"])

    def raise_unless_succeeded(self) -> None:
        """Turn a bad end into the exception that says whether another try may help.

        Raises:
            FinalError: a replica failed for good.
            TemporaryError: a replica was lost, or the job outlived a deadline.
        """
        if self.state is not State.SUCCEEDED:
            raise (FinalError if self.state is State.FAILED else TemporaryError)(self.reason)


def job_ended(seen: Mapping[ReplicaName, Observation]) -> Ended:
    """The end of a job whose replicas are in these states.

    A failure comes before a loss: the peers of a replica that failed are lost to it.
    """
    state = job_state(seen)
    causes = tuple(name for name, each in seen.items() if each.state is state)
    reason = "; ".join(f"{name} {seen[name].reason}" for name in causes)
    return Ended(state=state, reason=reason, causes=causes)


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

        ``until`` is a time of ``time.time()`` at which the job is to have ended. ``at_most`` is
        for how many seconds the caller watches; None is returned where the job goes on.
        """

    def trigger(self, address: str, until: float | None) -> BaseTrigger | None:
        """What goes on watching in a triggerer, where this launcher's sets can be seen there."""

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
