"""The protocol of a backend, which creates, observes, restarts and deletes replica groups.

A group is all replicas of one attempt of a job. Its *handle* is a string by which any process finds
it again. A backend decides nothing; the controller does.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from aerotrain.contract.errors import WARNING_PREFIX, TemporaryError
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.launch.decision import Ended, GroupObservation, Restart
from aerotrain.launch.restart_policy import Observations


@dataclass(frozen=True)
class LogLine:
    """One line of a replica's output, without its line end.

    ``is_noise`` is true for what TensorFlow prints whatever its log level.
    """

    replica: ReplicaName
    text: str
    is_noise: bool = False

    def __str__(self) -> str:
        return f"[{self.replica}] {self.text}"


#: Receives each line of a replica's output.
Emit = Callable[[LogLine], None]

#: Receives a message about the group itself.
Report = Callable[[str], None]

#: Receives events of the group that were recorded.
Record = Callable[[Sequence[Event]], None]


class GroupGoneError(TemporaryError):
    """The group no longer exists, or another try holds it; the message says which."""


class RetryLaterError(TemporaryError):
    """The group exists, but nothing can be changed in it for now.

    A resource is used up, such as disk space, or the system that runs the replicas is unavailable.
    """


class LaunchPlan(Protocol):
    """What a backend would start; ``str()`` formats it for the user."""

    @property
    def job(self) -> Job: ...

    @property
    def handle(self) -> str:
        """The handle that the group will have; it ends in the attempt."""


PlanT = TypeVar("PlanT", bound=LaunchPlan)


@dataclass(frozen=True, kw_only=True)
class ExistingGroup:
    """An existing group under the name of a plan's job.

    ``matches`` means that it was created completely, and from the plan's description; else the
    rest is not needed. ``created`` is a time of ``time.time()``.
    """

    handle: str
    matches: bool
    created: float = 0.0
    events: Sequence[Event] = ()
    seen: Observations = field(default_factory=dict)


class GroupClaim(Protocol):
    """A scope in which one task try creates or adopts the group of a plan."""

    async def find(self) -> ExistingGroup | None:
        """The existing group under the job's name, if any."""

    async def create(self) -> str | None:
        """Create the whole group, or nothing; None if its name was taken meanwhile."""

    async def adopt(self, found: ExistingGroup) -> bool:
        """Make this task try the holder of the group; False if it changed at the same moment."""

    async def delete(self, found: ExistingGroup) -> None:
        """Delete the group, and wait until its names are free."""


class Group(Protocol):
    """An open group, as one follower sees it."""

    @property
    def job(self) -> Job: ...

    @property
    def created(self) -> float:
        """The time of its creation, by ``time.time()``."""

    @property
    def events(self) -> Sequence[Event]:
        """Its event log, as far as this follower has read it."""

    async def observe(self, seconds: float, *, look_again: bool = False) -> GroupObservation:
        """Observe every replica once something has changed, or after ``seconds``.

        With ``look_again`` the replicas are queried even if no change is known.

        Raises:
            GroupGoneError: the group does not exist, or this task try is not its holder.
        """

    async def append(self, events: Sequence[Event]) -> bool:
        """Append to the event log; False if another follower was first, then ``events`` is updated.

        Raises:
            GroupGoneError, RetryLaterError
        """

    async def restart(self, restart: Restart) -> None:
        """Restart these replicas to these restart counts, even if another process has begun to.

        Raises:
            GroupGoneError, RetryLaterError
        """

    async def finish(self, ended: Ended) -> None:
        """Emit the remaining output once the job has ended this way."""


class Backend(Protocol[PlanT]):
    """Runs replica groups in one place, on behalf of one task try."""

    def plan(self, job: Job, attempt: str) -> PlanT:
        """What would be started for this job; no side effects.

        Raises:
            SpecError: this backend cannot run such a job.
        """

    async def check(self, plans: Sequence[PlanT]) -> None:
        """Check that all of these could be started, without changing anything.

        Raises:
            FinalError, TemporaryError: they could not.
        """

    def claim(self, plan: PlanT) -> AbstractAsyncContextManager[GroupClaim]:
        """The scope in which to create or adopt the plan's group."""

    def open(self, handle: str, emit: Emit, say: Report) -> AbstractAsyncContextManager[Group]:
        """Follow a group. ``emit`` gets each line of its replicas once, across all followers.

        Raises:
            GroupGoneError: it does not exist.
        """

    async def events(self, handle: str) -> list[Event]:
        """The event log of the group; empty if it no longer exists."""

    async def delete(self, handle: str) -> None:
        """Delete the group and all that its replicas started, if this task try holds it."""


#: Warnings of this project, of TensorFlow, and of Python's ``warnings``.
_WARNING = re.compile(rf"{WARNING_PREFIX}|W\d{{4}} \d\d:|WARNING\b|\S+:\d+: \w*Warning: ")


def log_line(log: Any, line: LogLine) -> None:
    """Write a replica's line to a task's log: noise at level DEBUG, its warnings as warnings."""
    if line.is_noise:
        log.debug("%s", line)
    elif _WARNING.match(line.text):
        log.warning("%s", replace(line, text=line.text.removeprefix(WARNING_PREFIX)))
    else:
        log.info("%s", line)


def attempt_of(handle: str) -> str:
    """The attempt of the group at ``handle``: the last part of every backend's handles."""
    return handle.rsplit("/", 1)[1]
