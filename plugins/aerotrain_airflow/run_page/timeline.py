"""The timeline of a training: what each replica did when.

All times are of ``time.time()``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replica_status import GONE_AFTER, ProcessStatus, ReplicaStatus, StepTime


class SpanState(StrEnum):
    """What a replica does for some time."""

    WAITING = "waiting"  # to be placed, or for its image, while others have begun
    STARTING = "starting"  # imports, connects, restores, compiles: until its first execution
    TRAINING = "training"  # trains, or serves those that do
    LOST = "lost"  # its process is gone, and the next one has not begun


@dataclass(frozen=True)
class Span:
    """A state of a replica from ``begin`` to ``end``, which is None while it lasts."""

    begin: float
    end: float | None
    state: SpanState
    text: str = ""


def spans_of(
    replica: str,
    status: ReplicaStatus,
    events: Sequence[Event],
    now: float,
    *,
    since: float,
    ended: bool,
) -> list[Span]:
    """The states of a replica, from the reports of its processes and the event log.

    ``since`` is when the first replica began, and ``ended`` whether the training has ended.
    """
    began = status.processes[0].began
    spans = [Span(since, began, SpanState.WAITING)] if began > since else []
    failures = [
        each for each in events if each.event is EventType.DETECT and each.replica == replica
    ]
    following = [*status.processes[1:], None]
    for process, successor in zip(status.processes, following, strict=True):
        if successor is not None:
            spans += _of_process(process, process.seen)
            begin, end = process.seen, successor.began
            spans.append(Span(begin, max(begin, end), SpanState.LOST, _why(failures, begin, end)))
        elif ended:
            spans += _of_process(process, process.seen)
        elif now - process.seen > GONE_AFTER:
            spans += _of_process(process, process.seen)
            spans.append(Span(process.seen, None, SpanState.LOST))
        else:
            spans += _of_process(process, None)
    return spans


def _of_process(process: ProcessStatus, end: float | None) -> list[Span]:
    """The states of one process, whose last one lasts until ``end``."""
    if process.ready is None:
        return [Span(process.began, end, SpanState.STARTING)]
    return [
        Span(process.began, process.ready, SpanState.STARTING),
        Span(process.ready, end, SpanState.TRAINING),
    ]


def _why(failures: Iterable[Event], begin: float, end: float) -> str:
    """The reason that the event log gives for a loss in that time."""
    # The last report of a process that failed may be as old as the time between two.
    reasons = [each.because or each.kind for each in failures if begin <= each.at <= end + 1]
    return reasons[-1] if reasons else ""


def lanes_of(
    statuses: Mapping[str, ReplicaStatus], events: Sequence[Event], now: float, *, ended: bool
) -> dict[str, list[Span]]:
    """The states of all replicas by name: the chief first, then by role and number."""
    since = min((each.processes[0].began for each in statuses.values()), default=now)
    return {
        name: spans_of(name, statuses[name], events, now, since=since, ended=ended)
        for name in sorted(statuses, key=place_of)
    }


def place_of(replica: str) -> tuple[bool, str, int]:
    """The place of a replica among others, as a key to sort by."""
    role, _, number = replica.partition("-")
    return role != "chief", role, int(number) if number.isdigit() else 0


#: From which multiple of the median a replica is called slow: less is noise on a busy machine.
_SLOW = 1.5


@dataclass(frozen=True)
class Slowest:
    """The replica whose steps take longest, without their communication.

    They take ``seconds`` each, which is ``times`` the median of the other replicas.
    """

    replica: str
    seconds: float
    times: float


def step_times(statuses: Mapping[str, ReplicaStatus]) -> dict[str, StepTime]:
    """The last known time of a step by replica. A coordinator reports those of its workers."""
    reports = sorted(
        (each.processes[-1] for each in statuses.values()), key=lambda process: process.seen
    )
    return {name: time for each in reports for name, time in each.step_times.items()}


def slowest(times: Mapping[str, StepTime]) -> Slowest | None:
    """The slowest of several replicas; None if they are about equally fast.

    Replicas that wait for each other take equally long for a step, so the time that counts is
    without their communication.
    """
    own = {name: each.seconds - (each.communication or 0.0) for name, each in times.items()}
    if len(own) < 2:
        return None
    name = max(own, key=lambda each: own[each])
    middle = median(seconds for other, seconds in own.items() if other != name)
    if own[name] < _SLOW * middle:
        return None
    return Slowest(name, own[name], own[name] / middle if middle else 0.0)
