"""The timeline of a training: what each replica did when, and what happened at which step.

All times are of ``time.time()``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replica_status import GONE_AFTER, ProcessStatus, ReplicaStatus

#: The most marks of checkpoints, evenly chosen, and of all other events, the newest.
_MOST_CHECKPOINTS, _MOST_OTHERS = 40, 400

#: Seconds within which replicas start that are restarted together.
_TOGETHER = 15.0


class SpanState(StrEnum):
    """What a replica does for some time."""

    WAITING = "waiting"  # to be placed, or for its image, while others have begun
    STARTING = "starting"  # imports, connects, restores
    TRAINING = "training"  # trains, or serves those that do
    LOST = "lost"  # its process is gone, and the next one has not begun


@dataclass(frozen=True)
class Span:
    """A state of a replica from ``begin`` to ``end``, which is None while it lasts."""

    begin: float
    end: float | None
    state: SpanState
    text: str = ""


@dataclass(frozen=True)
class Mark:
    """An event of a training: ``kind`` is restart, failure, preemption, checkpoint or end."""

    at: float
    step: int | None
    kind: str
    text: str


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


def marks_of(events: Sequence[Event], statuses: Mapping[str, ReplicaStatus]) -> list[Mark]:
    """What happened in a training, in the order of time, by its events and its replicas."""
    marks = [mark for each in events if (mark := _mark(each)) is not None]
    checkpoints = [each for each in marks if each.kind == "checkpoint"]
    others = [each for each in marks if each.kind != "checkpoint"]
    others = sorted([*others, *_unrecorded_restarts(statuses, events)], key=lambda mark: mark.at)
    every = -(-len(checkpoints) // _MOST_CHECKPOINTS) or 1
    kept = [*checkpoints[::-1][::every], *others[-_MOST_OTHERS:]]
    return sorted(kept, key=lambda mark: mark.at)


def _unrecorded_restarts(
    statuses: Mapping[str, ReplicaStatus], events: Iterable[Event]
) -> Iterator[Mark]:
    """The restarts that only replicas report: the launcher's events are in the log at the end."""
    recorded = [(each.replica, each.at) for each in events if each.event is EventType.RESTART]
    for name, status in statuses.items():
        for earlier, later in pairwise(status.processes):
            if not any(name == who and earlier.began < at <= later.began for who, at in recorded):
                yield Mark(later.began, None, "restart", f"{name} has started again")


def restarts_in(marks: Iterable[Mark]) -> int:
    """How often replicas were restarted; those that restart together are one restart."""
    times = sorted(each.at for each in marks if each.kind == "restart")
    apart = sum(later - earlier > _TOGETHER for earlier, later in pairwise(times))
    return apart + bool(times)


def _mark(event: Event) -> Mark | None:
    reason = f": {event.because}" if event.because else ""
    who = event.replica or "the group"
    match event.event:
        case EventType.RESTART:
            return Mark(event.at, event.step, "restart", f"{who} is restarted{reason}")
        case EventType.DETECT:
            why = reason or (f": {event.kind}" if event.kind else "")
            return Mark(event.at, event.step, "failure", f"{who} failed{why}")
        case EventType.PREEMPTED:
            return Mark(event.at, event.step, "preemption", f"{who} was preempted{reason}")
        case EventType.SAVE_STALL:
            text = f"checkpoint of step {event.step}, training waited {event.seconds:.2g} s"
            return Mark(event.at, event.step, "checkpoint", text)
        case EventType.END if event.step is not None:
            return Mark(event.at, event.step, "end", f"training ended after step {event.step}")
        case _:
            return None


def at_steps(marks: Iterable[Mark], points: Sequence[tuple[float, int]]) -> list[Mark]:
    """The marks, those without a step at the one of the last point or mark before them.

    ``points`` are times and steps, in the order of time.
    """
    found, position, step = [], 0, 0
    for mark in marks:
        while position < len(points) and points[position][0] <= mark.at:
            step = points[position][1]
            position += 1
        step = step if mark.step is None else mark.step
        found.append(replace(mark, step=step))
    return found


def lanes_of(
    statuses: Mapping[str, ReplicaStatus], events: Sequence[Event], now: float, *, ended: bool
) -> dict[str, list[Span]]:
    """The states of all replicas by name: the chief first, then by role and number."""
    since = min((each.processes[0].began for each in statuses.values()), default=now)
    return {
        name: spans_of(name, statuses[name], events, now, since=since, ended=ended)
        for name in sorted(statuses, key=_order)
    }


def _order(replica: str) -> tuple[bool, str, int]:
    role, _, number = replica.partition("-")
    return role != "chief", role, int(number) if number.isdigit() else 0
