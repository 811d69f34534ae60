"""What a backend does: it creates, observes, restarts and deletes groups of replicas.

A group is all replicas of one attempt of a job. Its *handle* is a string by which any process
finds it again. A backend decides nothing: that is the controller's.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job, ReplicaName
from aerotrain_airflow.controller.decision import Restart
from aerotrain_airflow.controller.ended import Ended
from aerotrain_airflow.controller.situation import Seen

if TYPE_CHECKING:
    # Airflow sends all logs of whatever imports it to standard output, where reports are printed.
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

#: Takes a sentence about the group itself.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Look:
    """What was seen of every replica; ``at`` is when that was asked for, by ``time.time()``."""

    seen: Seen
    at: float


class GoneError(TemporaryError):
    """The group is no longer there, or is another try's by now; the message says which."""


class NoRoomError(TemporaryError):
    """There is no room for what was asked for, which may change: a disk that is full."""


class Plan(Protocol):
    """What a backend would start; ``str()`` shows it to a person."""

    @property
    def job(self) -> Job: ...

    @property
    def address(self) -> str:
        """The handle that the group will have; it ends in the attempt."""


PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A group that is there under the name of a plan's job.

    ``matches`` says that it was created whole, and of the plan's description. ``created`` is a
    time of ``time.time()``.
    """

    handle: str
    matches: bool
    created: float
    events: Sequence[Event]
    seen: Seen


class Claim(Protocol):
    """A scope in which one task try creates or adopts the group of a plan."""

    async def find(self) -> Found | None:
        """A group that is there under the job's name."""

    async def create(self) -> str | None:
        """Create the group whole or not at all; None where its name was taken meanwhile."""

    async def adopt(self, found: Found) -> bool:
        """Make the group this task try's; False where it changed at the same moment."""

    async def delete(self, found: Found) -> None:
        """Delete the group, and wait until its names are free."""


class Group(Protocol):
    """An open group, as one follower has it."""

    @property
    def job(self) -> Job: ...

    @property
    def created(self) -> float:
        """When it was created, by ``time.time()``."""

    @property
    def events(self) -> Sequence[Event]:
        """Its event log, as far as this follower knows it."""

    async def observe(self, seconds: float, *, look_again: bool = False) -> Look:
        """What is seen of every replica: once something has changed, or after that time.

        ``look_again`` asks the world, also where nothing is known to have changed.

        Raises:
            GoneError: the group is not there, or not this task try's.
        """

    async def append(self, events: Sequence[Event]) -> bool:
        """Add to the event log; False where another follower was first, and ``events`` has theirs.

        Raises:
            GoneError, NoRoomError
        """

    async def restart(self, restart: Restart) -> None:
        """Have these replicas be at these restart counts, also where another has begun with it.

        Raises:
            GoneError, NoRoomError
        """

    async def finish(self, ended: Ended) -> None:
        """Pass on what is left to be said, once the job has ended so."""


class Backend(Protocol[PlanT]):
    """Runs groups of replicas in one place, on behalf of one task try."""

    def plan(self, job: Job, attempt: str) -> PlanT:
        """What would be started for this job, without touching the world.

        Raises:
            SpecError: this backend cannot run such a job.
        """

    async def check(self, plans: Sequence[PlanT]) -> None:
        """Ask the world whether all of these could be started, and change nothing.

        Raises:
            FinalError, TemporaryError: they could not.
        """

    def claim(self, plan: PlanT) -> AbstractAsyncContextManager[Claim]:
        """The scope in which to create or adopt the plan's group."""

    def open(self, handle: str, emit: Emit, say: Say) -> AbstractAsyncContextManager[Group]:
        """Follow a group. ``emit`` gets each line of its replicas once, across all followers.

        Raises:
            GoneError: it is not there.
        """

    async def events(self, handle: str) -> list[Event]:
        """The event log of the group; nothing where it is gone."""

    async def delete(self, handle: str) -> None:
        """Delete the group with all that its replicas started, if it is this task try's."""

    def trigger(self, handle: str, until: float | None) -> "BaseTrigger | None":
        """What follows the group in a triggerer, where it can be seen from there."""


def log_line(log: Any, line: LogLine) -> None:
    """Write a replica's line to a task's log; TensorFlow's banner only where DEBUG shows."""
    (log.debug if _BANNER.search(line.text) else log.info)("%s", line)


def attempt_of(handle: str) -> str:
    """Which attempt the group at ``handle`` is: the last part of every backend's handles."""
    return handle.rsplit("/", 1)[1]
