"""The timeline of a training: what each replica did when, and the marks of single moments.

All times are of ``time.time()``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise
from statistics import median

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.status import (
    GONE_AFTER,
    Failure,
    ProcessStatus,
    ReplicaStatus,
    State,
    StepTime,
)


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


#: The most marks of checkpoints, evenly chosen, and of all other events, the newest.
_MOST_CHECKPOINTS, _MOST_OTHERS = 40, 400

#: Seconds within which replicas start that are restarted together.
_TOGETHER = 15.0

#: The most replicas that a mark names.
_MOST_NAMES = 4

#: The kinds of failure, as a part of a sentence about a restart.
_KINDS: Mapping[str, str] = {
    Failure.CRASH: "a crash",
    Failure.PREEMPTED: "a preemption",
    Failure.MEMORY: "the memory limit was reached",
    Failure.NODE: "the loss of a node",
    Failure.START: "a failed start",
    Failure.HANG: "a hang",
    Failure.TEMPORARY: "a temporary error",
}


@dataclass(frozen=True)
class Mark:
    """An event of a training: ``kind`` is restart, failure, preemption, checkpoint or end."""

    at: float
    step: int | None
    kind: str
    text: str


def marks_of(events: Sequence[Event], statuses: Mapping[str, ReplicaStatus]) -> list[Mark]:
    """What happened in a training, in the order of time, by its events and its replicas.

    Replicas that are restarted together have one mark.
    """
    ends = {each.at for each in events if _is_failed_end(each)}
    # The reason of a failed end names the failures that caused it.
    single = [each for each in events if each.event is not EventType.DETECT or each.at not in ends]
    marks = [mark for each in single if (mark := _mark(each)) is not None]
    checkpoints = [each for each in marks if each.kind == "checkpoint"]
    others = [each for each in marks if each.kind != "checkpoint"]
    others += [*_restarts(events), *_unrecorded_restarts(statuses, events)]
    others.sort(key=lambda mark: mark.at)
    every = -(-len(checkpoints) // _MOST_CHECKPOINTS) or 1
    kept = [*checkpoints[::-1][::every], *others[-_MOST_OTHERS:]]
    return sorted(kept, key=lambda mark: mark.at)


def failure_of(events: Sequence[Event]) -> str:
    """Why the last attempt of a training failed; empty if it did not, or if none is recorded."""
    last = [each for each in events if each.event in (EventType.START, EventType.END)][-1:]
    return "".join(each.because for each in last if _is_failed_end(each))


def _is_failed_end(event: Event) -> bool:
    # The end in the chief's own log has no kind.
    return event.event is EventType.END and event.kind not in ("", State.SUCCEEDED)


def _restarts(events: Sequence[Event]) -> Iterator[Mark]:
    """One mark for all replicas that one decision restarts."""
    restarts = [each for each in events if each.event is EventType.RESTART]
    failures = [each for each in events if each.event is EventType.DETECT]
    for at, group in groupby(restarts, key=lambda each: each.at):
        together = list(group)
        ended = {(each.replica, each.restarts - 1) for each in together}
        kinds = [
            each.kind
            for each in failures
            if (each.replica, each.restarts) in ended and each.at <= at
        ]
        known = [_KINDS[kind] for kind in kinds[-1:] if kind in _KINDS]
        text = f"{_names([each.replica for each in together])} restarted"
        text += f" after {known[0]}" if known else ""
        text += f": {together[0].because}" if together[0].because else ""
        yield Mark(at, together[0].step, "restart", text)


def _unrecorded_restarts(
    statuses: Mapping[str, ReplicaStatus], events: Iterable[Event]
) -> Iterator[Mark]:
    """The restarts that only replicas report: the launcher's events are in the log at the end."""
    recorded = [(each.replica, each.at) for each in events if each.event is EventType.RESTART]
    found = sorted(
        (later.began, name)
        for name, status in statuses.items()
        for earlier, later in pairwise(status.processes)
        if not any(name == who and earlier.began < at <= later.began for who, at in recorded)
    )
    groups: list[list[tuple[float, str]]] = []
    for each in found:
        if groups and each[0] - groups[-1][-1][0] <= _TOGETHER:
            groups[-1].append(each)
        else:
            groups.append([each])
    for group in groups:
        names = _names([name for _, name in group])
        yield Mark(group[0][0], None, "restart", f"{names} started again: the task's log says why")


def _names(replicas: Sequence[str]) -> str:
    """Replicas in a sentence, the first ones by their names."""
    shown = sorted(set(replicas), key=place_of)
    if len(shown) > _MOST_NAMES:
        shown = [*shown[: _MOST_NAMES - 1], f"{len(shown) - _MOST_NAMES + 1} others"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _mark(event: Event) -> Mark | None:
    """The mark of an event that has one of its own."""
    reason = f": {event.because}" if event.because else ""
    who = event.replica or "the group"
    match event.event:
        case EventType.DETECT:
            return Mark(event.at, event.step, "failure", f"{who} {event.because or 'failed'}")
        case EventType.PREEMPTED:
            return Mark(event.at, event.step, "preemption", f"{who} was preempted{reason}")
        case EventType.SAVE_STALL:
            text = f"checkpoint of step {event.step}, training waited {event.seconds:.2g} s"
            return Mark(event.at, event.step, "checkpoint", text)
        case EventType.END if _is_failed_end(event):
            return Mark(event.at, event.step, "failure", f"training failed{reason}")
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
