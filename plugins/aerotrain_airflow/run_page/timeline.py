"""The timeline of a training: what each replica did when, and the marks of single moments.

All are JSON values for ``static/timeline.js``, and all times are of ``time.time()``. A mark is an
event of the training: ``at``, ``step``, ``kind`` (restart, resize, straggler, failure, preemption,
checkpoint or end) and ``text``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby, pairwise
from math import inf
from typing import Any

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.status import GONE_AFTER, ProcessStatus, ReplicaStatus, State, StepTime

Mark = dict[str, Any]
Statuses = Mapping[str, ReplicaStatus]


class SpanState(StrEnum):
    """What a replica does for some time."""

    WAITING = "waiting"  # to be placed, or for its image, while others have begun; or suspended
    STARTING = "starting"  # imports, connects, restores, compiles: until its first execution
    TRAINING = "training"  # trains, or serves those that do
    REPEATED = "repeated"  # from the restore on, while it runs steps again that were lost
    LOST = "lost"  # what it did was not kept, or its process is gone and the next has not begun


def lanes_of(
    statuses: Statuses, events: Sequence[Event], now: float, *, ended: bool
) -> list[dict[str, Any]]:
    """The ``spans`` of each ``replica``: the chief first, then by role and number.

    They come from the reports of its processes. ``events`` have the reasons of losses, and
    ``ended`` is whether the training has ended.
    """
    since = min((each.processes[0].began for each in statuses.values()), default=now)
    reports = [each.processes[-1].seen for each in statuses.values()]
    ends = [each.at for each in events if each.event is EventType.END]
    ended_at = max([*reports, *ends], default=now) if ended else None
    return [
        {
            "replica": name,
            "spans": [*_spans(name, statuses[name], events, now, since=since, ended_at=ended_at)],
        }
        for name in sorted(statuses, key=place_of)
    ]


def place_of(replica: str) -> tuple[bool, str, int]:
    """The place of a replica among others, as a key to sort by."""
    role, _, number = replica.partition("-")
    return role != "chief", role, int(number) if number.isdigit() else 0


def _spans(
    replica: str,
    status: ReplicaStatus,
    events: Sequence[Event],
    now: float,
    *,
    since: float,
    ended_at: float | None,
) -> Iterator[dict[str, Any]]:
    stops = [
        each
        for each in events
        if each.event is EventType.RESIZE
        or (each.event in (EventType.DETECT, EventType.RESTART) and each.replica == replica)
    ]
    if status.processes[0].began > since:
        yield _span(since, status.processes[0].began, SpanState.WAITING)
    for process, following in pairwise([*status.processes, None]):
        assert process is not None
        is_gone = following is not None or (ended_at or now) - process.seen > GONE_AFTER
        # One that serves others is ended with them, without another report.
        end = process.seen if is_gone else ended_at
        repeats, trains, kept = _work_of(process, following, events)
        yield _span(process.began, end if process.ready is None else repeats, SpanState.STARTING)
        if repeats < trains:
            yield _span(repeats, trains, SpanState.REPEATED)
        if process.ready is not None and (following is None or trains < kept):
            yield _span(trains, end if following is None else kept, SpanState.TRAINING)
        if following is not None or (is_gone and ended_at is None):
            began = now if following is None else following.began
            # The last report of a process that failed may be as old as the time between two.
            state, why = _end([each for each in stops if process.began <= each.at <= began + 1])
            until = None if following is None else max(process.seen, began)
            yield _span(process.seen if following is None else kept, until, state, why)


def _end(events: Sequence[Event]) -> tuple[SpanState, str]:
    """What a replica does after the end of a process, and why, by its events and all resizes."""
    for last in events[-1:]:
        is_restart = (
            last.event is EventType.RESTART and last.kind
        )  # without a failure: it has saved
        if is_restart or last.event is EventType.RESIZE:
            return SpanState.WAITING, last.because
    reasons = [each.because or each.kind for each in events if each.event is EventType.DETECT]
    return SpanState.LOST, "".join(reasons[-1:])


def _work_of(
    process: ProcessStatus, following: ProcessStatus | None, events: Iterable[Event]
) -> tuple[float, float, float]:
    """From when a process repeats steps, from when it runs new ones, and until when those count.

    Each is that of the chief; what the checkpoint that the ``following`` one restores has counts.
    """
    ready = process.seen if process.ready is None else process.ready
    end, ready_again = (following.began, following.ready or inf) if following else (inf, inf)
    steps = (EventType.RESTORE, EventType.READY, EventType.TRAIN)
    done = [(each.at, each.step or 0) for each in events if each.event in steps]
    furthest = max((step for at, step in done if at < process.began), default=0)
    own = [(at, step) for at, step in done if process.began <= at < end]
    again = [at for at, step in own if at >= ready and step <= furthest]
    repeats, trains = (own[0][0], again[-1]) if again else (ready, ready)
    after = [each for each in events if each.event is EventType.RESTORE and each.at >= end]
    restored = next((each.step or 0 for each in after if each.at <= ready_again), -1)
    kept = max((at for at, step in own if step <= restored), default=process.seen)
    return repeats, min(trains, max(repeats, kept)), max(repeats, kept)


def _span(begin: float, end: float | None, state: SpanState, text: str = "") -> dict[str, Any]:
    """A state of a replica; its end is None while it lasts."""
    return {"from": begin, "to": end, "state": state.value, "text": text}


def step_times(statuses: Statuses) -> dict[str, StepTime]:
    """The last known time of a step by replica. A coordinator reports those of its workers."""
    reports = sorted(
        (each.processes[-1] for each in statuses.values()), key=lambda process: process.seen
    )
    return {name: time for each in reports for name, time in each.step_times.items()}


#: The most marks of checkpoints, evenly chosen, and of all other events, the newest.
_MOST_CHECKPOINTS, _MOST_OTHERS = 40, 400

#: The most replicas that a mark names.
_MOST_NAMES = 4


def marks_of(events: Sequence[Event], points: Sequence[tuple[float, int]] = ()) -> list[Mark]:
    """What happened in a training, in the order of time.

    A mark without a step gets that of the last of ``points`` (time and step, in the order of time)
    or marks before it.
    """
    ends = {each.at for each in events if _is_failed_end(each)}
    # The reason of a failed end names the failures that caused it.
    single = [each for each in events if each.event is not EventType.DETECT or each.at not in ends]
    marks = [mark for each in single if (mark := _mark_of(each)) is not None]
    checkpoints = [each for each in marks if each["kind"] == "checkpoint"]
    others = [each for each in marks if each["kind"] != "checkpoint"]
    others += _restarts(events)
    others.sort(key=lambda mark: mark["at"])
    every = -(-len(checkpoints) // _MOST_CHECKPOINTS) or 1
    kept = [*checkpoints[::-1][::every], *others[-_MOST_OTHERS:]]
    kept.sort(key=lambda mark: mark["at"])
    position, step = 0, 0
    for mark in kept:
        while position < len(points) and points[position][0] <= mark["at"]:
            step = points[position][1]
            position += 1
        step = mark["step"] = step if mark["step"] is None else mark["step"]
    return kept


def failure_of(events: Sequence[Event]) -> str:
    """Why the last attempt of a training failed; empty if it did not, or if none is recorded."""
    last = [each for each in events if each.event in (EventType.START, EventType.END)][-1:]
    return "".join(each.because for each in last if _is_failed_end(each))


def _is_failed_end(event: Event) -> bool:
    # The end in the chief's own log has no kind.
    return event.event is EventType.END and event.kind not in ("", State.SUCCEEDED)


def _mark(at: float, step: int | None, kind: str, text: str) -> Mark:
    return {"at": at, "step": step, "kind": kind, "text": text}


def _restarts(events: Sequence[Event]) -> Iterator[Mark]:
    """One mark for all replicas that one decision restarts, if no other mark has its reason."""
    marked = {each.at for each in events if each.event in (EventType.RESIZE, EventType.STRAGGLER)}
    restarts = [each for each in events if each.event is EventType.RESTART]
    restarts = [each for each in restarts if each.at not in marked]
    for at, group in groupby(restarts, key=lambda each: each.at):
        together = list(group)
        why = f": {together[0].because}" if together[0].because else ""
        text = f"{_names([each.replica for each in together])} restarted{why}"
        yield _mark(at, together[0].step, "restart", text)


def _names(replicas: Iterable[str]) -> str:
    """Replicas in a sentence, the first ones by their names."""
    shown = sorted(set(replicas), key=place_of)
    if len(shown) > _MOST_NAMES:
        shown = [*shown[: _MOST_NAMES - 1], f"{len(shown) - _MOST_NAMES + 1} others"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _mark_of(event: Event) -> Mark | None:
    """The mark of an event that has one of its own."""
    reason = f": {event.because}" if event.because else ""
    who = event.replica or "the group"
    match event.event:
        case EventType.DETECT:
            return _mark(event.at, event.step, "failure", f"{who} {event.because or 'failed'}")
        case EventType.RESIZE:
            return _mark(event.at, event.step, "resize", event.because)
        case EventType.STRAGGLER:
            return _mark(event.at, event.step, "straggler", event.because)
        case EventType.PREEMPTED:
            return _mark(event.at, event.step, "preemption", f"{who} was preempted{reason}")
        case EventType.SAVE_STALL:
            text = f"checkpoint of step {event.step}, training waited {event.seconds:.2g} s"
            return _mark(event.at, event.step, "checkpoint", text)
        case EventType.END if _is_failed_end(event):
            return _mark(event.at, event.step, "failure", f"training failed{reason}")
        case EventType.END if event.step is not None:
            return _mark(event.at, event.step, "end", f"training ended after step {event.step}")
        case _:
            return None
