"""What is observed of a replica group, and what can be decided about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import State, job_state
from aerotrain.launch.restart_policy import Observations, listed
from aerotrain.launch.size import QUEUED, RESIZED


@dataclass(frozen=True)
class GroupObservation:
    """The observation of every replica; ``at`` is when it began, by ``time.time()``."""

    seen: Observations
    at: float


@dataclass(frozen=True)
class LastStep:
    """The global step of the last progress line, and its time by ``time.time()``."""

    step: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: its state, the replicas that caused it, and the message for the user."""

    state: State
    reason: str = ""
    causes: tuple[ReplicaName, ...] = ()

    @classmethod
    def of(cls, seen: Observations) -> Self:
        """The end of a job whose replicas are in these states.

        FAILED takes precedence over LOST: the peers of a replica that failed are LOST because of
        it.
        """
        state = job_state(seen)
        causes = tuple(name for name, each in seen.items() if each.state is state)
        reason = listed([seen[name].sentence(name) for name in causes])
        return cls(state=state, reason=reason, causes=causes)

    @classmethod
    def recorded_in(cls, events: Sequence[Event]) -> Self | None:
        """The end that is recorded in the event log of a group, without its causes."""
        found = (each for each in events if each.event is EventType.END)
        end = next(found, None)
        return cls(state=State(end.kind), reason=end.because) if end else None

    def to_dict(self) -> dict[str, str]:
        """The state and the reason, as plain values for an Airflow event."""
        return {"state": self.state.value, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Self:
        """Read what ``to_dict`` wrote."""
        return cls(state=State(data["state"]), reason=data["reason"])

    def raise_unless_succeeded(self) -> None:
        """Raise the exception that says whether another attempt may help.

        Raises:
            FinalError: a replica failed, and would fail again.
            TemporaryError: a replica failed for another reason, or the job missed a deadline.
        """
        if self.state is not State.SUCCEEDED:
            raise (FinalError if self.state is State.FAILED else TemporaryError)(self.reason)


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Replicas to restart now; those that still run are ended first.

    ``counts`` are their restart counts afterwards. ``avoid`` is a node on which a replica should
    not be placed again, ``memory`` the factor for its memory. Those in ``force`` are replaced at
    once, without waiting for the end of the old process or pod. Those in ``ends`` are ended, and
    not started again: they may save before, and so may others if it is ``gentle``.
    """

    counts: Mapping[ReplicaName, int]
    because: str
    avoid: Mapping[ReplicaName, str] = field(default_factory=dict)
    memory: Mapping[ReplicaName, float] = field(default_factory=dict)
    force: frozenset[ReplicaName] = frozenset()
    ends: frozenset[ReplicaName] = frozenset()
    gentle: bool = False

    @classmethod
    def of(
        cls,
        events: Mapping[ReplicaName, Event],
        ends: frozenset[ReplicaName] = frozenset(),
        because: str = "",
    ) -> Self:
        """The restart that these events record, and the end of others."""
        return cls(
            counts={name: each.restarts for name, each in events.items()},
            because=next((each.because for each in events.values()), because),
            ends=ends,
            gentle=any(each.kind in (RESIZED, QUEUED) for each in events.values()),
            avoid={name: each.node for name, each in events.items() if each.node},
            memory={name: each.memory for name, each in events.items() if each.memory != 1.0},
            force=frozenset(name for name, each in events.items() if each.force),
        )

    def __str__(self) -> str:
        """One sentence for the task's log."""
        done = {"ending": self.ends, "restarting": self.counts}
        said = [
            f"{verb} {listed([*map(str, sorted(who))], ', ')}" for verb, who in done.items() if who
        ]
        return "; ".join([self.because, *said])


@dataclass(frozen=True)
class Wait:
    """Nothing to do before ``until``, a time of ``time.time()``, unless something changes.

    ``look_again`` means that the observation is too old to tell whether a deadline was met.
    """

    until: float
    look_again: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and the events to record before it is done."""

    action: Ended | Restart | Wait
    events: tuple[Event, ...] = ()

    @classmethod
    def end(cls, ended: Ended, now: float, events: tuple[Event, ...] = ()) -> Self:
        """The end of the job, recorded after ``events``."""
        end = Event(event=EventType.END, at=now, kind=ended.state.value, because=ended.reason)
        return cls(action=ended, events=(*events, end))
