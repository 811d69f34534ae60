"""What MLflow is to have of a task that has ended: its metrics, options and URLs, as a value."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from aerotrain.contract.curves import Curves
from aerotrain.contract.layout import CARD, CURVES, METRICS, RUN_LOG
from aerotrain.contract.steps import arguments_of
from aerotrain.data.dataset import as_numbers
from aerotrain.serving.versions import model_name
from aerotrain.store import MissingError
from aerotrain_airflow.operators.description import describe
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.links import address_of_run
from aerotrain_airflow.operators.outputs import TaskOutput, folder_of_model
from aerotrain_airflow.operators.release import PromoteOperator, RollbackOperator
from aerotrain_airflow.settings import Settings

#: MLflow's words for the state of a run.
RUNNING, FINISHED, FAILED = "RUNNING", "FINISHED", "FAILED"

#: The operators of which something is recorded.
_OURS = (JobOperator, PromoteOperator, RollbackOperator)

#: What MLflow does not accept in the name of a metric or param, and its longest value of a param.
_UNKNOWN, _LONGEST = re.compile(r"[^\w./ -]"), 6000


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """A value of a metric at a step; ``at`` is a time in seconds."""

    metric: str
    value: float
    step: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a task adds to the MLflow run of its DAG run ``run``, which began at ``began``.

    ``experiment`` is the id of the DAG. ``key`` is the run's id as a safe word. Without ``tags``,
    no run is created. ``data`` describes the data set that was read. ``version`` is the URL of a
    version to register under the name ``model``, and ``served`` that of the version which
    the alias of served versions is to name.
    """

    experiment: str
    run: str
    key: str
    began: float
    status: str = RUNNING
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[MetricPoint] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    version: str | None = None
    served: str | None = None

    @property
    def is_running(self) -> bool:
        return self.status == RUNNING


def record_of(ti: Any, settings: Settings, *, skipped: bool = False) -> Record | None:
    """What MLflow is to have of a task instance that has ended; None if it is nothing."""
    task = getattr(ti, "task", None)
    if not isinstance(task, _OURS):
        return None
    output = TaskOutput(task, ti, settings)
    key = output.place["run"]
    empty = Record(experiment=ti.dag_id, run=ti.run_id, key=key, began=_began(ti))
    if isinstance(task, JobOperator):
        find = _RECORDS.get(task.job.get("module", ""))
        found = None if find is None or task.is_dry_run else find(output, empty)
    else:
        served = output.returned()
        found = served and replace(empty, served=served, model=_model_of(served))
    if not found:
        return None
    return replace(found, status=_status(ti, skipped=skipped))


def _began(ti: Any) -> float:
    """When the DAG run began, or else the task."""
    run = ti.get_template_context()["dag_run"]
    return float((run.start_date or ti.start_date).timestamp())


def _status(ti: Any, *, skipped: bool) -> str:
    """MLflow's state of the run, by the states of the tasks of which something is recorded."""
    tasks = [each.task_id for each in ti.task.get_dag().tasks if isinstance(each, _OURS)]
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id])
    states = list(found.get(ti.run_id, {}).values())
    if any(state in ("failed", "upstream_failed") for state in states):
        return FAILED
    # Airflow skips what follows a skipped task only later.
    if skipped or all(state in ("success", "skipped", "removed") for state in states):
        return FINISHED
    return RUNNING


def _data(output: TaskOutput, empty: Record) -> Record:
    return _with_url(output, empty, output.arguments["output"])


def _training(output: TaskOutput, empty: Record) -> Record:
    """The options, the curves or last metrics, the goodput, the data set and the model."""
    url = output.returned()
    folder = output.prefix if url is None else folder_of_model(url)
    return replace(
        _with_url(output, empty, folder if url is None else url),
        params=_params(output),
        points=list(_training_points(output, folder)),
        data=_data_set(output),
    )


def _training_points(output: TaskOutput, folder: str) -> Iterator[MetricPoint]:
    curves = Curves.from_bytes(b"")
    with suppress(MissingError):
        curves = Curves.from_bytes(output.store(folder).get(CURVES))
    of_epochs = {name for each in curves.of_epochs.points for name in each.metrics}
    for each in curves.points:
        # Of a metric that epochs have, the values during an epoch would be in the same series.
        names = set(each.metrics) - (of_epochs if each.epoch is None else set())
        metrics = {name: each.metrics[name] for name in each.metrics if name in names}
        yield from _points(output, metrics, step=each.step, at=each.at)
    manifest = output.model(folder)
    if manifest and not curves.points:
        yield from _points(output, manifest["metrics"], step=manifest["step"])
    log = output.document(f"{folder}/{RUN_LOG}")
    if log.get("goodput") is not None:
        lost = {f"lost_seconds/{cause}": value for cause, value in log["lost_seconds"].items()}
        seen = {name: log[name] for name in ("goodput", "wall_seconds", "restarts")}
        yield from _points(output, seen | lost)


def _params(output: TaskOutput) -> dict[str, str]:
    """The options of a training and the counts of its replicas, by names with the task's."""
    task = output.task
    job = describe(task, task.job, task.arguments, {"ti": output.ti}, output.settings)
    options = asdict(arguments_of(job))
    hparams = {f"hparams.{name}": each for name, each in options.pop("hparams").items()}
    counts = {f"replicas.{each.role}": each.count for each in job.replicas}
    found = {**options, **hparams, **counts, "strategy": job.strategy}
    return {
        _name(output, name): (each if isinstance(each, str) else json.dumps(each))[:_LONGEST]
        for name, each in found.items()
    }


def _data_set(output: TaskOutput) -> dict[str, str]:
    """The data set that a task has read, by the fields of ``mlflow.entities.Dataset``."""
    url = output.arguments["data"]
    data = output.dataset(url)
    columns = [{"name": name, "type": each.dtype} for name, each in data.schema.items()]
    records = {name: split.records for name, split in data.splits.items()}
    return {
        "name": model_name(output.place["store"]),
        "digest": data.fingerprint[:36],
        "source_type": url.partition("://")[0],
        "source": json.dumps({"uri": url}),
        "schema": json.dumps({"mlflow_colspec": columns}),
        "profile": json.dumps({"records": records}),
    }


def _evaluation(output: TaskOutput, empty: Record) -> Record:
    """The metrics, the card, and whether the model was accepted."""
    found = output.document(f"{output.prefix}/{METRICS}")
    passed = {_name(output, "passed"): json.dumps(found["passed"])} if found else {}
    return replace(
        empty,
        tags={**_with_url(output, empty, f"{output.prefix}/{CARD}").tags, **passed},
        points=list(_points(output, as_numbers(found.get("metrics", {})))),
    )


def _export(output: TaskOutput, empty: Record) -> Record | None:
    if (url := output.returned()) is None:
        return None
    return replace(_with_url(output, empty, url), version=url, model=_model_of(url))


def _predictions(output: TaskOutput, empty: Record) -> Record | None:
    url = output.returned()
    return None if url is None else _with_url(output, empty, url)


def _serving_check(output: TaskOutput, empty: Record) -> Record:
    latencies = output.returned() or {}
    return replace(
        _with_url(output, empty, output.arguments["version"]),
        points=list(_points(output, latencies)),
    )


#: What is recorded of the jobs of each module.
_RECORDS: Mapping[str, Callable[[TaskOutput, Record], Record | None]] = {
    "aerotrain.data.prepare.finalize": _data,
    "aerotrain.training.train": _training,
    "aerotrain.evaluation.evaluate": _evaluation,
    "aerotrain.serving.export": _export,
    "aerotrain.serving.serve_check": _serving_check,
    "aerotrain.prediction.finalize": _predictions,
}


def _with_url(output: TaskOutput, empty: Record, url: str) -> Record:
    """A record with the URL of the task's output, and the address of the DAG run."""
    address = address_of_run(output.ti.dag_id, output.ti.run_id)
    return replace(empty, tags={"airflow": address, output.place["task"]: url})


def _points(
    output: TaskOutput, metrics: Mapping[str, float], *, step: int = 0, at: float | None = None
) -> Iterator[MetricPoint]:
    for name, value in metrics.items():
        moment = time.time() if at is None else at
        yield MetricPoint(metric=_name(output, name), value=float(value), step=step, at=moment)


def _name(output: TaskOutput, name: str) -> str:
    """A name that no other task of the run has; MLflow's UI groups by what is before the slash."""
    return f"{output.place['task']}/{_UNKNOWN.sub('_', name)}"


def _model_of(version: str) -> str:
    """The name of the model of which ``version`` is the URL of a version."""
    return model_name(version.rpartition("/")[0].rpartition("/")[0])
