"""The data of the run page: what the store has of a run, as JSON values.

``static/run.js`` shows them. They come from objects that replicas write while a training runs, so
they are there for any backend, and while Airflow's tasks are deferred.
"""

import json
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from shlex import quote
from typing import Any

from cachetools import LRUCache, cached

from aerotrain.contract.curves import Curves, Point
from aerotrain.contract.errors import FinalError
from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.contract.layout import (
    CARD,
    CHIEF_LOG,
    CURVES,
    EVALUATIONS,
    GROUP_LOG,
    METRICS,
    MODEL,
    PAGE,
    REPLICAS,
    RESULT,
    REUSED,
    RUN_LOG,
    SIZE,
    TENSORBOARD,
    path_segment,
)
from aerotrain.contract.status import GONE_AFTER, ReplicaStatus
from aerotrain.launch.size import SUSPENDED
from aerotrain.launch.stragglers import own_times, stragglers
from aerotrain.store import MissingError, Store
from aerotrain.store.protocol import StoredObject
from aerotrain_airflow.goodput import goodput_of, merged
from aerotrain_airflow.run_page.outcome import outcomes_of
from aerotrain_airflow.run_page.timeline import (
    failure_of,
    lanes_of,
    marks_of,
    step_times,
)

#: The most evaluations that are read. Each is an object of its own.
_MOST_EVALUATIONS = 200

#: Objects that are kept, by key and version. Those of a run are at most some hundred kilobytes.
_MOST_OBJECTS = 1000

#: What is read of a task, and of its folders ``REPLICAS`` and ``EVALUATIONS`` everything.
_READ = (CURVES, CHIEF_LOG, GROUP_LOG, RUN_LOG, SIZE, CARD, REUSED, METRICS, RESULT)

#: The objects of a task, by their key in its folder.
Objects = Mapping[str, StoredObject]


def run_data(
    store: Store, dag_id: str, run_id: str, now: float, *, active: bool = True
) -> dict[str, Any]:
    """All that the page shows of a run. ``store`` is that of the pipeline, ``now`` the time.

    ``active`` is whether Airflow still runs it.

    Raises:
        StoreUnavailable, StoreRefused: by the answer of the store.
    """
    run = store.child(f"runs/{path_segment(run_id)}")
    tasks = _by_task(run.list())
    trainings: list[dict[str, Any]] = []
    links = []
    evaluations: list[dict[str, Any]] = []
    results: list[Any] = []
    for task, objects in tasks.items():
        address = f"files/{dag_id}/{run.url.removeprefix(store.url + '/')}/{task}"
        reused = json.loads(_content(run, objects, REUSED) or b"{}")
        if METRICS in objects:
            document = json.loads(_content(run, objects, METRICS) or b"{}")
            evaluations.append({**document, "card": f"{address}/{CARD}"})
        if ".partition/" not in task:  # they are many, and return no version
            results.append(_result(store, run, objects, reused))
        if CARD in objects:
            links.append({"title": f"Model card ({task})", "href": f"{address}/{CARD}"})
        # A training whose result was reused has the curves of the earlier one, and no replicas.
        if not any(key in (CHIEF_LOG, CURVES) or key.startswith(REPLICAS) for key in objects):
            continue
        curves = Curves.from_bytes(_content(run, objects, CURVES))
        training = _training(run, objects, curves, now, active=active)
        output = reused.get("prefix", f"{run.url}/{task}")
        known = {"task": task, "reused_from": reused.get("run"), "model": f"{output}/{MODEL}"}
        trainings.append({**known, **training})
        if curves.data.startswith(f"{store.url}/"):
            page = f"{curves.data.removeprefix(store.url + '/')}/{PAGE}"
            links.append(
                {"title": f"Statistics of the data ({task})", "href": f"files/{dag_id}/{page}"}
            )
        if RUN_LOG in objects:
            links.append({"title": f"Event log ({task})", "href": f"{address}/{RUN_LOG}"})
        links.append(_tensorboard(task, f"{output}/{TENSORBOARD}"))
    outcome = outcomes_of(store, evaluations, results)
    for each in trainings:
        each["outcome"] = outcome(each["model"])
    links.append({"title": "Output", "text": f"{run.url}/"})
    return {
        "version": 1,
        "dag_id": dag_id,
        "run_id": run_id,
        "now": now,
        "trainings": trainings,
        "files": links,
    }


def _result(store: Store, run: Store, objects: Objects, reused: Mapping[str, str]) -> Any:
    """What a task has returned, or the one whose result was ``reused``; None if nothing."""
    content = _content(run, objects, RESULT)
    if earlier := reused.get("prefix"):
        with suppress(FinalError):  # it was deleted
            content = store.get(f"{earlier.removeprefix(f'{store.url}/')}/{RESULT}")
    return json.loads(content or b"{}").get("value")


def _tensorboard(task: str, folder: str) -> dict[str, str]:
    # With TensorFlow, TensorBoard reads by its file systems, of which none is S3's.
    needs = ", installed with boto3 and without TensorFlow" if folder.startswith("s3") else ""
    command = f"tensorboard --load_fast=false --logdir {quote(folder)}"
    return {"title": f"TensorBoard{needs} ({task})", "text": command}


def _by_task(listed: Iterable[StoredObject]) -> dict[str, Objects]:
    """The objects of each task of a run; mapped tasks have a folder each, as ``train/3``."""
    found: dict[str, dict[str, StoredObject]] = defaultdict(dict)
    for each in listed:
        folder, _, name = each.key.rpartition("/")
        task, _, last = folder.rpartition("/")
        if name in _READ and folder:
            found[folder][name] = each
        elif last in (REPLICAS, EVALUATIONS) and name.endswith(".json"):
            found[task][f"{last}/{name}"] = each
    return dict(found)


def _training(
    run: Store, objects: Objects, curves: Curves, now: float, *, active: bool
) -> dict[str, Any]:
    """A training, from its objects in the store of the run."""
    # The events of attempts that have ended, and those of the chief and of its group so far.
    log = json.loads(_content(run, objects, RUN_LOG) or b"{}")
    lines = [json.dumps(each) for each in log.get("events", [])]
    for key in (CHIEF_LOG, GROUP_LOG):
        lines += _content(run, objects, key).decode().splitlines()
    events: list[Event] = merged({*read(lines)})
    statuses = dict(_statuses(run, objects))
    last_seen = max((each.processes[-1].seen for each in statuses.values()), default=0.0)
    ended = not active or any(each.event is EventType.END for each in events[-3:])
    running = not ended and now - last_seen < GONE_AFTER
    marks = marks_of(events, [(each.at, each.step) for each in curves.points])
    lanes = lanes_of(statuses, events, now, ended=ended)
    names = [each["replica"] for each in lanes]
    times = step_times(statuses)
    goodput = goodput_of(events).to_dict() if events else None
    if goodput is not None:
        goodput |= {name: log.get(name) for name in ("core_hours", "cost")}  # there at the end
        goodput["restarts"] = sum(each["kind"] == "restart" for each in marks)
    resizes = [each.kind for each in events if each.event is EventType.RESIZE]
    size = json.loads(_content(run, objects, SIZE) or b"{}")
    return {
        "curves": _columns(curves.during.points),
        "epochs": _columns(curves.of_epochs.points),
        "evaluations": _columns([*_evaluations(run, objects)]),
        "steps": curves.steps or None,
        "running": running,
        "ended": ended,
        "suspended": not ended and resizes[-1:] == [SUSPENDED],
        "to_suspend": bool(size.get("suspended")),
        "failure": "" if running else failure_of(events),
        "marks": marks,
        "lanes": lanes,
        "replicas": [{"replica": name, **_process(statuses[name])} for name in names],
        "step_times": [{"replica": name, **asdict(times[name])} for name in names if name in times],
        "stragglers": [asdict(each) for each in stragglers(own_times(statuses))],
        "goodput": goodput,
    }


def _evaluations(run: Store, objects: Objects) -> Iterator[Point]:
    """The metrics that an evaluator has measured, of the last checkpoints."""
    found = [each for key, each in objects.items() if key.startswith(f"{EVALUATIONS}/")]
    for each in found[-_MOST_EVALUATIONS:]:
        with suppress(MissingError, ValueError, KeyError):
            measured = json.loads(_read_once(run, each))
            metrics = {f"val_{name}": value for name, value in measured["metrics"].items()}
            yield Point(at=measured["at"], step=measured["step"], metrics=metrics)


def _statuses(run: Store, objects: Objects) -> Iterator[tuple[str, ReplicaStatus]]:
    for key, found in objects.items():
        folder, _, name = key.rpartition("/")
        if folder != REPLICAS:
            continue
        with suppress(MissingError, ValueError):
            status = ReplicaStatus.from_json(_read_once(run, found))
            if status.processes:
                yield name.removesuffix(".json"), status


def _content(run: Store, objects: Objects, key: str) -> bytes:
    """The content of an object; empty if there is none."""
    with suppress(MissingError):
        return _read_once(run, objects[key]) if key in objects else b""
    return b""


@cached(
    LRUCache(_MOST_OBJECTS),
    key=lambda store, found: (store.url, found.key, found.etag),
    lock=threading.Lock(),
)
def _read_once(store: Store, found: StoredObject) -> bytes:
    """The content of an object of a listing, which is not read again while it is unchanged.

    Raises:
        MissingError: it was deleted meanwhile.
    """
    return store.get(found.key)


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
    """The columns of rows, by the name of the metric; null for what JSON cannot represent."""
    columns: dict[str, list[float | None]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            if math.isfinite(value):
                columns.setdefault(name, [None] * len(rows))[number] = float(value)
    return columns
