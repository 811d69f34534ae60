"""The data of the run page: what the store has of a run, as JSON values.

``static/run.js`` shows them. They come from objects that replicas write while a training runs, so
they are there for any backend, and while Airflow's tasks are deferred.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from shlex import quote
from typing import Any

from aerotrain.contract.curves import Curves, Point
from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.contract.layout import (
    CARD,
    CHIEF_LOG,
    CURVES,
    EVALUATIONS,
    PAGE,
    REPLICAS,
    REUSED,
    RUN_LOG,
    TENSORBOARD,
    VERSIONS,
    path_segment,
)
from aerotrain.contract.status import GONE_AFTER, ReplicaStatus
from aerotrain.store import MissingError, Store
from aerotrain.store.protocol import StoredObject
from aerotrain_airflow.goodput import goodput_of, merged
from aerotrain_airflow.run_page.store_files import content_of
from aerotrain_airflow.run_page.timeline import (
    Span,
    at_steps,
    failure_of,
    lanes_of,
    marks_of,
    slowest,
    step_times,
)

#: The most evaluations that are read. Each is an object of its own.
_MOST_EVALUATIONS = 200


def run_data(
    store: Store, dag_id: str, run_id: str, now: float, *, active: bool = True
) -> dict[str, Any]:
    """All that the page shows of a run. ``store`` is that of the pipeline, ``now`` the time.

    ``active`` is whether Airflow still runs it.

    Raises:
        StoreUnavailable, StoreRefused: by the answer of the store.
    """
    run = store.child(_folder(run_id))
    found = _by_task(run.list())
    trainings = _trainings(run, found)
    return {
        "version": 1,
        "dag_id": dag_id,
        "run_id": run_id,
        "now": now,
        "trainings": [each.data(now, active=active) for each in trainings],
        "files": [*_files(store, dag_id, run_id, found, trainings)],
    }


def _folder(run_id: str) -> str:
    return f"runs/{path_segment(run_id)}"


@dataclass(frozen=True)
class _TaskObjects:
    """The objects of a task that the page reads, by their key in the task's folder."""

    files: dict[str, StoredObject] = field(default_factory=dict)
    statuses: dict[str, StoredObject] = field(default_factory=dict)
    evaluations: list[StoredObject] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        # A training whose result was reused has the curves of the earlier one, and no replicas.
        return bool({CHIEF_LOG, CURVES} & self.files.keys() or self.statuses)


_READ = (CURVES, CHIEF_LOG, RUN_LOG, CARD, REUSED)


def _by_task(listed: Iterable[StoredObject]) -> dict[str, _TaskObjects]:
    """The objects of each task of a run; mapped tasks have a folder each, as ``train/3``."""
    found: dict[str, _TaskObjects] = defaultdict(_TaskObjects)
    for each in listed:
        folder, _, name = each.key.rpartition("/")
        task, _, last = folder.rpartition("/")
        if name in _READ and folder:
            found[folder].files[name] = each
        elif last == REPLICAS and name.endswith(".json"):
            found[task].statuses[name.removesuffix(".json")] = each
        elif last == EVALUATIONS:
            found[task].evaluations.append(each)
    return found


class _Training:
    """A training of a run, from its objects in the store of the run."""

    def __init__(self, run: Store, task: str, objects: _TaskObjects) -> None:
        self._run = run
        self._objects = objects
        self.task = task

    @cached_property
    def curves(self) -> Curves:
        """The curves, which the trend of many runs does not read."""
        return Curves.from_bytes(self._content(CURVES))

    @cached_property
    def reused(self) -> Mapping[str, str]:
        """The run and the URL of the output whose result this is; empty if it was trained here."""
        found: Mapping[str, str] = json.loads(self._content(REUSED) or b"{}")
        return found

    def data(self, now: float, *, active: bool) -> dict[str, Any]:
        events, statuses = self._events(), dict(self._statuses())
        last_seen = max((each.processes[-1].seen for each in statuses.values()), default=0.0)
        ended = not active or any(each.event is EventType.END for each in events[-3:])
        running = not ended and now - last_seen < GONE_AFTER
        goodput = goodput_of(events) if events else None
        marks = at_steps(
            marks_of(events, statuses), [(each.at, each.step) for each in self.curves.points]
        )
        restarts = sum(each.kind == "restart" for each in marks)
        lanes = lanes_of(statuses, events, now, ended=ended)
        times = step_times(statuses)
        slow = slowest(times)
        return {
            "task": self.task,
            "curves": _columns(self.curves.during.points),
            "epochs": _columns(self.curves.of_epochs.points),
            "evaluations": _columns([*self._evaluations()]),
            "steps": self.curves.steps or None,
            "running": running,
            "failure": "" if running else failure_of(events),
            "reused_from": self.reused.get("run"),
            "marks": [vars(each) for each in marks],
            "lanes": [
                {"replica": name, "spans": [_span(each) for each in spans]}
                for name, spans in lanes.items()
            ],
            "replicas": [
                {"replica": name, **_process(statuses[name])}
                for name in lanes
                if statuses[name].processes
            ],
            "step_times": [
                {"replica": name, **asdict(times[name])} for name in lanes if name in times
            ],
            "slowest": asdict(slow) if slow else None,
            # The launcher's log, which has all restarts, is in the store only at the end.
            "goodput": {**goodput.to_dict(), "restarts": restarts} if goodput else None,
        }

    def _evaluations(self) -> Iterator[Point]:
        """The metrics that an evaluator has measured, of the last checkpoints."""
        for found in self._objects.evaluations[-_MOST_EVALUATIONS:]:
            with suppress(MissingError, ValueError, KeyError):
                measured = json.loads(content_of(self._run, found))
                metrics = {f"val_{name}": each for name, each in measured["metrics"].items()}
                yield Point(at=measured["at"], step=measured["step"], metrics=metrics)

    def _events(self) -> list[Event]:
        """The events of earlier attempts with those of the group, and the chief's own so far."""
        log = json.loads(self._content(RUN_LOG) or b"{}").get("events", [])
        whole = read(json.dumps(each) for each in log)
        return merged({*whole, *read(self._content(CHIEF_LOG).decode().splitlines())})

    def _statuses(self) -> Iterator[tuple[str, ReplicaStatus]]:
        for replica, found in self._objects.statuses.items():
            try:
                status = ReplicaStatus.from_json(content_of(self._run, found))
            except (MissingError, ValueError):
                continue
            if status.processes:
                yield replica, status

    def _content(self, key: str) -> bytes:
        """The content of an object; empty if there is none."""
        found = self._objects.files.get(key)
        try:
            return content_of(self._run, found) if found else b""
        except MissingError:
            return b""


def _trainings(run: Store, found: Mapping[str, _TaskObjects]) -> list[_Training]:
    return [_Training(run, task, objects) for task, objects in found.items() if objects.trains]


def _span(span: Span) -> dict[str, Any]:
    return {"from": span.begin, "to": span.end, "state": span.state.value, "text": span.text}


def _process(status: ReplicaStatus) -> dict[str, Any]:
    """The last process of a replica."""
    last = status.processes[-1]
    return {
        "seen": last.seen,
        "memory": last.memory,
        "peak": max(each.peak for each in status.processes),
        "limit": last.limit,
        "host": last.host,
        "processes": len(status.processes),
    }


def _columns(points: Sequence[Point]) -> dict[str, Any]:
    """Points as columns of equal length, with null where a point lacks a value.

    Where points stand for several, ``lowest`` and ``highest`` have the extremes that differ from
    the values.
    """
    values = _by_name([each.metrics for each in points])
    lowest = _by_name([each.lowest or each.metrics for each in points])
    highest = _by_name([each.highest or each.metrics for each in points])
    return {
        "at": [each.at for each in points],
        "step": [each.step for each in points],
        "values": values,
        "lowest": {name: each for name, each in lowest.items() if each != values.get(name)},
        "highest": {name: each for name, each in highest.items() if each != values.get(name)},
    }


def _by_name(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """The columns of rows, by the name of the metric."""
    columns: dict[str, list[float | None]] = {}
    for number, row in enumerate(rows):
        for name, value in _finite(row).items():
            columns.setdefault(name, [None] * len(rows))[number] = value
    return columns


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The values that JSON can represent."""
    return {name: float(each) for name, each in metrics.items() if math.isfinite(each)}


def _files(
    store: Store,
    dag_id: str,
    run_id: str,
    found: Mapping[str, _TaskObjects],
    trainings: Sequence[_Training],
) -> Iterator[dict[str, str]]:
    """What else there is of a run, with addresses relative to those of the page's application."""
    files = f"files/{dag_id}"
    for task, objects in found.items():
        if CARD in objects.files:
            yield _file("Model card", task, f"{files}/{_folder(run_id)}/{task}/{CARD}")
    for training in trainings:
        task, data = training.task, training.curves.data
        if data.startswith(f"{store.url}/"):
            page = f"{data.removeprefix(store.url + '/')}/{PAGE}"
            yield _file("Statistics of the data", task, f"{files}/{page}")
        output = training.reused.get("prefix", f"{store.url}/{_folder(run_id)}/{task}")
        folder = f"{output}/{TENSORBOARD}"
        command = f"tensorboard --load_fast=false --logdir {quote(folder)}"
        # With TensorFlow, TensorBoard reads by its file systems, of which none is S3's.
        needs = ", installed with boto3 and without TensorFlow" if folder.startswith("s3") else ""
        yield {"title": f"TensorBoard{needs}", "task": task, "command": command}
        if RUN_LOG in found[task].files:
            yield _file("Event log", task, f"{files}/{_folder(run_id)}/{task}/{RUN_LOG}")
    yield _file("Output", "", f"{files}/{_folder(run_id)}/")
    yield _file("Versions", "", f"{files}/{VERSIONS}/")


def _file(title: str, task: str, href: str) -> dict[str, str]:
    return {"title": title, "task": task, "href": href}
