"""The complete event log of a run, its goodput and cost, and metrics of running jobs.

Goodput is the share of wall time that moved the model forward: the steps that count, times the pace
of this training, divided by the time from its start to its end. Each step counts once, even if it
was repeated. The pace is the mean over the intervals between two checkpoints that are not slower
than the median by more than three times the median absolute deviation, both weighted by steps. So
the load of a shared machine does not count as a failure, but a stop does. See
https://research.google/blog/introducing-ml-productivity-goodput/ and, for the pace,
https://github.com/AI-Hypercomputer/ml-goodput-measurement (ideal step time).

Metrics are sent as Airflow's own are, by StatsD or OpenTelemetry, which ``[metrics]`` in Airflow's
configuration turns on. Their names begin with ``aerotrain``; the tags are ``dag_id`` and
``task_id``, and ``role``, ``kind`` or ``cause`` from fixed lists, or ``replica``. While a task is
deferred, the triggerer sends the progress. See
https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/logging-monitoring/metrics.html
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.contract.job import Job
from aerotrain.contract.layout import CHIEF_LOG, RUN_LOG
from aerotrain.contract.replicas import Role
from aerotrain.contract.status import Drift, Progress
from aerotrain.launch.backend import LogLine
from aerotrain.store import MissingError, Store
from aerotrain_airflow.cost import core_hours, cost_of

#: What goodput means, for who reads it in a log for the first time.
_MEANING = "https://research.google/blog/introducing-ml-productivity-goodput/"

#: What the time was lost for, in a task's log.
_WORDS: Mapping[str, str] = {
    "start-up": "start of the replicas",
    "recovery": "recovery from failures",
    "save stall": "waiting for checkpoints",
    "rework": "steps done again",
    "lost work": "steps that a failure cut off",
    "other": "other work, such as validation",
}


#: Uninterrupted training as (first step, last step, seconds).
_Stretch = tuple[int, int, float]


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The seconds of a run by purpose. ``goodput`` is None if there was no training.

    Those of ``goodput`` and what was ``lost`` by cause are all of the ``wall`` time.

    ``queued`` is the time until the chief's first process started, as for quota, a node or an
    image. It is a part of what the start-up took. ``core_hours`` are by role, and ``cost`` is None
    without a price for each of these.
    """

    wall: float
    goodput: float | None = None
    lost: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    steps_twice: int = 0
    restarts: int = 0
    queued: float | None = None
    core_hours: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON values."""
        return {
            "wall_seconds": round(self.wall, 3),
            "goodput": None if self.goodput is None else round(self.goodput, 4),
            "lost_seconds": {cause: round(seconds, 3) for cause, seconds in self.lost.items()},
            "steps": self.steps,
            "steps_twice": self.steps_twice,
            "restarts": self.restarts,
            "queue_seconds": None if self.queued is None else round(self.queued, 1),
            "core_hours": {role: round(hours, 4) for role, hours in self.core_hours.items()},
            "cost": None if self.cost is None else round(self.cost, 4),
        }

    def __str__(self) -> str:
        """One line for a task's log."""
        if self.goodput is None:
            return f"{self.wall:.0f} s in all{self._cost}"
        lost = [f"{_WORDS[name]} {took:.0f} s" for name, took in self.lost.items() if took >= 0.5]
        line = f"{self.goodput:.0%} of {self.wall:.0f} s were training steps that count"
        line += f"; the rest: {', '.join(lost)}" if lost else ""
        if self.steps_twice:
            line += f"; {self.steps_twice} of {self.steps} steps were done twice"
        return f"{line} (this share is the goodput: {_MEANING}){self._cost}"

    @property
    def _cost(self) -> str:
        """The core hours and the cost, as the end of a sentence."""
        if not self.core_hours:
            return ""
        roles = ", ".join(f"{role} {hours:.2f}" for role, hours in self.core_hours.items())
        cost = "" if self.cost is None else f", which cost {self.cost:.2f}"
        return f"; {sum(self.core_hours.values()):.2f} core hours ({roles}){cost}"


def merged(*logs: Iterable[Event]) -> list[Event]:
    """All events in the order of their times."""
    return sorted((entry for events in logs for entry in events), key=lambda entry: entry.at)


def goodput_of(events: Sequence[Event]) -> Goodput:
    """Compute the goodput of a merged event log, from its first event to its last."""
    if not events:
        return Goodput(wall=0.0)
    wall = events[-1].at - events[0].at
    restarts = len({each.at for each in events if each.event is EventType.RESTART})
    begun = (each.at for each in events if each.event is EventType.START and each.replica)
    queued = next((max(0.0, at - events[0].at) for at in begun), None)
    starts, trained, twice, cut = _course(events)
    trained = trained or [each.execution for each in starts if each.steps]
    if not trained:
        return Goodput(wall=wall, restarts=restarts, queued=queued)
    pace = _pace(trained)
    first = starts[0].first if starts else trained[0][0]
    done = max(last for _, last, _ in trained)
    moved = min(wall, (done - first) * pace)
    # Of a start, the time of its steps counts as training.
    took = [max(0.0, each.end - each.begin - each.steps * pace) for each in starts] or [0.0]
    causes = {
        "start-up": took[0],
        "recovery": sum(took[1:]),
        "save stall": sum(each.seconds for each in events if each.event is EventType.SAVE_STALL),
        "rework": twice * pace,
        "lost work": sum(max(0.0, took - (last - at) * pace) for at, last, took in cut),
        "other": wall,
    }
    lost: dict[str, float] = {}
    for cause, seconds in causes.items():  # a second counts once, also where causes overlap
        lost[cause] = min(seconds, max(0.0, wall - moved - sum(lost.values())))
    return Goodput(
        wall=wall,
        goodput=moved / wall if wall else None,
        lost=lost,
        steps=done - first,
        steps_twice=twice,
        restarts=restarts,
        queued=queued,
    )


def _pace(trained: Sequence[_Stretch]) -> float:
    """Seconds per step, without interruptions."""
    paces = [seconds / (last - first) for first, last, seconds in trained]
    steps = [last - first for first, last, _ in trained]
    middle = _median(paces, steps)
    most = middle + 3 * _median([abs(pace - middle) for pace in paces], steps)
    if len(paces) < 3:  # of two, it is unknown which is the usual pace
        most = min(paces)
    usual = [each for each, pace in zip(trained, paces, strict=True) if pace <= most]
    return sum(seconds for *_, seconds in usual) / sum(last - first for first, last, _ in usual)


def _median(values: Sequence[float], weights: Sequence[int]) -> float:
    """The weighted median, so that a short interval counts for as little as it has steps."""
    half, so_far = sum(weights) / 2, 0
    pairs = sorted(zip(values, weights, strict=True))
    for place, (value, weight) in enumerate(pairs):
        so_far += weight
        if so_far == half:
            return (value + pairs[place + 1][0]) / 2
        if so_far > half:
            return value
    raise ValueError("there are no values")


@dataclass(kw_only=True)
class _Start:
    """A start of the chief, from the start of the run or a failure until it trained again.

    At ``restored`` it had the variables of the step ``first``. It ends with the first execution, of
    ``steps`` steps, as does the state "starting" of a replica on the timeline.
    """

    begin: float
    restored: float
    end: float
    first: int
    steps: int = 0

    @property
    def execution(self) -> _Stretch:
        """The first execution."""
        return self.first, self.first + self.steps, self.end - self.restored


def _course(events: Sequence[Event]) -> tuple[list[_Start], list[_Stretch], int, list[_Stretch]]:
    """The starts of the chief that have ended, the training between, and the steps done again.

    The first start is that of the run, and the others are recoveries. Steps are done again after a
    checkpoint was restored, as far as the events show. Last is what failures have cut off, from the
    last event of the chief: what is known of its steps, and all of its seconds.
    """
    starts: list[_Start] = []
    trained: list[_Stretch] = []
    cut: list[_Stretch] = []
    since: float | None = events[0].at  # from when the chief does not train
    at = furthest = twice = 0
    recorded = events[0].at  # until when the chief has recorded what it did
    for entry in events:
        step = entry.step or 0
        match entry.event:
            case EventType.DETECT | EventType.PREEMPTED | EventType.END:
                since = entry.at if since is None else since
            case EventType.START if entry.replica:
                since = entry.at if since is None else since
            case EventType.RESTORE:
                twice += max(0, furthest - step) if entry.step is not None else 0
                if since is not None:
                    cut.append((at, furthest, since - recorded))
                    start = _Start(begin=since, restored=entry.at, end=entry.at, first=step)
                    starts.append(start)
                since, at = None, step
            case EventType.READY:
                if starts:
                    starts[-1].end, starts[-1].steps = entry.at, max(0, step - starts[-1].first)
                at = step
            case EventType.TRAIN:
                since = None
                if entry.step is not None:
                    if step > at and entry.seconds > 0:
                        trained.append((at, step, entry.seconds))
                    at = step
        if entry.step is not None and entry.event not in (EventType.DETECT, EventType.RESTART):
            recorded = entry.at
        furthest = max(furthest, step)
    if since is not None:
        cut.append((at, furthest, since - recorded))
    return starts, trained, twice, cut


def record(
    group: Iterable[Event], store: Store, now: float, job: Job, prices: Mapping[str, float]
) -> Goodput | None:
    """Write the complete event log next to the job's result, including earlier attempts.

    It is merged from the events of the replica group and those of its chief. ``prices`` are those
    of a core hour, by role. Returns None, and writes nothing, where the job does not train and no
    event but its start and end was recorded.
    """
    seen = list(group)
    inside = events_of_chief(store)
    if not inside and {each.event for each in seen} <= {EventType.START, EventType.END}:
        return None
    # The end of the group, if it was recorded: a deferred task resumes some time after it.
    has_end = EventType.END in {each.event for each in seen}
    end = () if has_end else (Event(event=EventType.END, at=now),)
    events = merged({*events_of_earlier_attempts(store), *inside, *seen, *end})
    hours = core_hours(events, job)
    goodput = replace(goodput_of(events), core_hours=hours, cost=cost_of(hours, prices))
    log = {
        "version": 1,
        **goodput.to_dict(),
        "events": [json.loads(each.to_json()) for each in events],
    }
    store.put(RUN_LOG, json.dumps(log, indent=1).encode())
    return goodput


def events_of_earlier_attempts(store: Store) -> list[Event]:
    """The merged events of earlier attempts; empty for the first one."""
    log = json.loads(_text(store, RUN_LOG) or "{}")
    return read(json.dumps(each) for each in log.get("events", []))


def events_of_chief(store: Store) -> list[Event]:
    """The events that the chief has written, across all of its restarts."""
    return read(_text(store, CHIEF_LOG).splitlines())


def _text(store: Store, key: str) -> str:
    with suppress(MissingError):
        return store.get(key).decode()
    return ""


class JobMetrics:
    """The metrics of one job. ``stats`` is the module of Airflow that sends them."""

    def __init__(self, stats: Any, dag_id: str, task_id: str) -> None:
        self._stats = stats
        self._tags = {"dag_id": dag_id, "task_id": task_id}

    def read(self, line: LogLine) -> None:
        """Send the progress, or the drift of data, in a line of the chief, if it has any."""
        if line.replica.role is not Role.CHIEF:
            return
        if (progress := Progress.parse(line.text)) is not None:
            for name, value in asdict(progress).items():
                if value is not None and name != "steps":
                    self._gauge(name, value)
        elif (drift := Drift.parse(line.text)) is not None:
            self._gauge("drifted_columns", drift.columns)

    def recorded(self, events: Iterable[Event]) -> None:
        """Count the replicas that were named as slow."""
        for event in events:
            if event.event is EventType.STRAGGLER:
                tags = {**self._tags, "replica": event.replica}
                self._stats.incr("aerotrain.stragglers", tags=tags)

    def ended(self, events: Iterable[Event], goodput: Goodput) -> None:
        """Send the restarts of a replica group, from its events, and the goodput of its run."""
        failed: dict[str, str] = {}
        for event in events:
            if event.event is EventType.DETECT:
                failed[event.replica] = event.kind
            elif event.event is EventType.RESTART:
                kind = failed.pop(event.replica, event.kind or "with others")
                role, _, _ = event.replica.partition("-")
                tags = {**self._tags, "role": role, "kind": kind.replace(" ", "_")}
                self._stats.incr("aerotrain.restarts", tags=tags)
        if goodput.goodput is not None:
            self._gauge("goodput", goodput.goodput)
        if goodput.queued is not None:
            self._gauge("queue_seconds", goodput.queued)
        for role, hours in goodput.core_hours.items():
            self._gauge("core_hours", hours, role=role)
        if goodput.cost is not None:
            self._gauge("cost", goodput.cost)
        for cause, seconds in goodput.lost.items():
            self._gauge("lost_seconds", seconds, cause=cause.replace(" ", "_"))

    def _gauge(self, name: str, value: float, **tags: str) -> None:
        self._stats.gauge(f"aerotrain.{name}", value, tags={**self._tags, **tags})
