"""Records trainings, evaluations and versions in MLflow, if the setting ``mlflow`` has its URI.

Airflow's listener (``plugin.py``) does it in the task's own process, when the task has ended.
Nothing is added twice: the run of a DAG run is found again by a tag, a version by its URL, and
MLflow itself drops a value of a metric that it has. The process waits for a limited time; what is
not written by then causes one warning in the task's log.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

from aerotrain.contract.curves import Curves
from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import CARD, CURVES, METRICS, RUN_LOG, path_segment
from aerotrain.contract.steps import arguments_of
from aerotrain.data.dataset import as_numbers
from aerotrain.serving.versions import model_name
from aerotrain.store import MissingError
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.operators.description import describe
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.links import address_of_run
from aerotrain_airflow.operators.release import PromoteOperator, RollbackOperator
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.tracking.task_output import TaskOutput, folder_of_model

#: The tag by which the run of a DAG run is found again.
RUN_TAG = "aerotrain_run"

#: The alias of the version that is served, in MLflow's registry.
ALIAS = "serving"

#: The operators of which something is recorded.
_OURS = (JobOperator, PromoteOperator, RollbackOperator)

#: MLflow's limits: values in one request, characters of a param, characters in a name.
_AT_ONCE, _LONGEST, _UNKNOWN = 1000, 6000, re.compile(r"[^\w./ -]")

#: Seconds for which a task's process waits: two for MLflow's import, four for a server that does
#: not answer. Other listeners need time too: Airflow ends the process 20 s after a success.
_SECONDS = 8.0

#: Defaults of the variables by which MLflow limits a request, and is kept from reporting its use.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

_LOG = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class Record:
    """What a task adds to the MLflow run of its DAG run. Without ``tags``, no run is created.

    ``metrics`` are (name, value, milliseconds since 1970, step). ``version`` is the URL of a
    version to register, and ``served`` says that the alias of served versions is to name it.
    """

    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    version: str = ""
    served: bool = False


def record(ti: Any) -> None:
    """Record a task instance in MLflow, or write one warning into its log."""
    try:
        settings = Settings.read()
    except FinalError:
        return  # every task of this package has failed for it
    task = getattr(ti, "task", None)
    if not settings.mlflow or not isinstance(task, _OURS):
        return
    with _warned():
        if (found := record_of(TaskOutput(task, ti, settings))) is not None:
            status, began = status_of(ti), ti.get_template_context()["dag_run"].start_date
            _within_seconds(
                lambda: write(client_of(settings.mlflow), ti, began or ti.start_date, status, found)
            )


def record_served(uri: str, version: str) -> None:
    """Record in the MLflow at ``uri`` that the version is served, by a change that was no task."""
    with _warned():
        _within_seconds(
            lambda: _register(client_of(uri), Record(version=version, served=True), None)
        )


@contextmanager
def _warned() -> Iterator[None]:
    """Nothing that is recorded may fail a task or a request: an error becomes one warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- see above
        line = str(error).strip().partition("\n")[0] or type(error).__name__
        line = re.sub(r"//[^/@\s]*@", "//", line)[:500]  # without a password in the URI
        _LOG.warning("MLflow does not have all of this task or change: %s", line)


def status_of(ti: Any) -> str:
    """MLflow's state of the run, by the states of the tasks of which something is recorded."""
    tasks = [each.task_id for each in ti.task.get_dag().tasks if isinstance(each, _OURS)]
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id])
    is_mapped = ti.map_index is not None and ti.map_index >= 0
    own = f"{ti.task_id}_{ti.map_index}" if is_mapped else ti.task_id
    # Airflow has the state of this task, if it has failed or was skipped, only after its process.
    states: Mapping[str, Any] = {**found.get(ti.run_id, {}), own: ti.state}
    if any(state in ("failed", "upstream_failed") for state in states.values()):
        return "FAILED"
    ended = all(state in ("success", "skipped", "removed") for state in states.values())
    # Airflow skips what follows a skipped task only later, too.
    return "FINISHED" if ended or ti.state == "skipped" else "RUNNING"


def record_of(output: TaskOutput) -> Record | None:
    """What MLflow is to have of a task that has ended; None if it is nothing."""
    returned = output.returned()
    if not isinstance(output.task, JobOperator):
        return Record(version=returned, served=True) if returned else None
    if output.task.is_dry_run:
        return None
    url, found = None, Record()
    match output.task.job.get("module"):
        case "aerotrain.data.prepare.finalize":
            url = output.arguments["output"]
        case "aerotrain.prediction.finalize":
            url = returned
        case "aerotrain.training.train":
            url = returned or output.prefix
            found.params = _params(output)
            found.metrics = [*_metrics_of_training(output, folder_of_model(url))]
        case "aerotrain.evaluation.evaluate":
            url = f"{output.prefix}/{CARD}"
            measured = output.document(f"{output.prefix}/{METRICS}")
            if measured:
                found.tags[_name(output, "passed")] = json.dumps(measured["passed"])
            found.metrics = [*_metrics(output, as_numbers(measured.get("metrics", {})))]
        case "aerotrain.serving.export":
            url = found.version = returned or ""
        case "aerotrain.serving.serve_check":
            url = output.arguments["version"]
            found.metrics = [*_metrics(output, returned or {})]
    if not url:
        return None
    address = address_of_run(output.ti.dag_id, output.ti.run_id)
    found.tags |= {"airflow": address, output.place["task"]: url}
    return found


def _name(output: TaskOutput, name: str) -> str:
    """A name that no other task of the run has; MLflow's UI groups by what is before the slash."""
    return f"{output.place['task']}/{_UNKNOWN.sub('_', name)}"


def _metrics(
    output: TaskOutput, metrics: Mapping[str, float], *, step: int = 0, at: float | None = None
) -> Iterator[tuple[str, float, int, int]]:
    moment = output.ti.start_date.timestamp() if at is None else at
    for name, value in metrics.items():
        yield _name(output, name), float(value), round(moment * 1000), step


def _metrics_of_training(output: TaskOutput, folder: str) -> Iterator[tuple[str, float, int, int]]:
    """The curves, and the goodput."""
    curves = Curves.from_bytes(b"")
    with suppress(MissingError):
        curves = Curves.from_bytes(store_of(folder, output.settings).get(CURVES))
    of_epochs = {name for each in curves.of_epochs.points for name in each.metrics}
    for each in curves.points:
        # Of a metric that epochs have, the values during an epoch would be in the same series.
        names = set(each.metrics) - (of_epochs if each.epoch is None else set())
        metrics = {name: each.metrics[name] for name in each.metrics if name in names}
        yield from _metrics(output, metrics, step=each.step, at=each.at)
    log = output.document(f"{folder}/{RUN_LOG}")
    if log.get("goodput") is not None:
        seen = {name: log[name] for name in ("goodput", "wall_seconds", "restarts")}
        lost = {f"lost_seconds/{cause}": value for cause, value in log["lost_seconds"].items()}
        yield from _metrics(output, seen | lost)


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


def _within_seconds(action: Callable[[], None]) -> None:
    """Run it in a thread, which ends with the task's process."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 -- handed to the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="mlflow", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise TimeoutError(f"it was not written within {_SECONDS:g} s")


def client_of(uri: str) -> Any:
    """An ``mlflow.MlflowClient``."""
    os.environ |= {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
    import mlflow  # it reads these variables

    return mlflow.MlflowClient(uri, uri)


def write(client: Any, ti: Any, began: Any, status: str, found: Record) -> None:
    """Write what was found of a task instance, whose DAG run has begun at ``began``."""
    from mlflow.entities import Metric, Param, RunTag

    run = _run_of(client, ti, began, create=bool(found.tags))
    if run is not None:
        run_id = run.info.run_id
        more = {key: each for key, each in found.params.items() if key not in run.data.params}
        client.log_batch(
            run_id,
            params=[Param(*each) for each in more.items()],
            tags=[RunTag(*each) for each in found.tags.items()],
        )
        for first in range(0, len(found.metrics), _AT_ONCE):
            some = found.metrics[first : first + _AT_ONCE]
            client.log_batch(run_id, metrics=[Metric(*each) for each in some])
        if status == "RUNNING":
            client.update_run(run_id, status=status)
        else:
            client.set_terminated(run_id, status=status)
    if found.version:
        _register(client, found, None if run is None or found.served else run.info.run_id)


def _run_of(client: Any, ti: Any, began: Any, *, create: bool) -> Any:
    """The run of the DAG run, or None. Of two that tasks have created at once, it is the first."""
    key = path_segment(ti.run_id)
    if (experiment := client.get_experiment_by_name(ti.dag_id)) is None:
        if not create:
            return None
        with _unless_there():
            client.create_experiment(ti.dag_id)
        experiment = client.get_experiment_by_name(ti.dag_id)
    order = ["attributes.start_time ASC", "attributes.run_id ASC"]

    def search() -> Any:
        known = [experiment.experiment_id], f"tags.{RUN_TAG} = '{key}'"
        return next(iter(client.search_runs(*known, order_by=order, max_results=1)), None)

    run = search()
    if run is None and create:
        created = client.create_run(
            experiment.experiment_id,
            start_time=round(began.timestamp() * 1000),
            tags={RUN_TAG: key},
            run_name=ti.run_id,
        )
        run = search()
        if run.info.run_id != created.info.run_id:
            client.delete_run(created.info.run_id)
    return run


def _register(client: Any, found: Record, run_id: str | None) -> None:
    """Register the version if it was not, and let the alias name it if it is served."""
    folder, _, number = found.version.rpartition("/")
    model = model_name(folder.rpartition("/")[0])
    with _unless_there():
        client.create_registered_model(model)
    there = client.search_model_versions(f"name = '{model}'")
    version = next((each for each in there if each.source == found.version), None)
    if version is None:
        tags = {"aerotrain_version": number}
        version = client.create_model_version(
            model, found.version, run_id, tags=tags, await_creation_for=0
        )
    if found.served:
        client.set_registered_model_alias(model, ALIAS, str(version.version))


@contextmanager
def _unless_there() -> Iterator[None]:
    """Accept that what is created is there already: another task may have been faster."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
