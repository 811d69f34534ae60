"""Records trainings, evaluations and versions in MLflow, if the setting ``mlflow`` has its URI.

A listener does it when a task has ended and Airflow has its state. What is recorded is a value
(``mlflow_records.py``). Nothing is added twice: the run of a DAG run is found again by a tag, a
version by its URL, and values that MLflow has are left. The task's process waits for a limited
time; what is not written by then causes one warning in the task's log.
"""

import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog
from airflow.listeners import hookimpl

from aerotrain.contract.errors import FinalError
from aerotrain_airflow.settings import Settings

if TYPE_CHECKING:
    from aerotrain_airflow.tracking.mlflow_records import Record

#: The tag by which the run of a DAG run is found again.
RUN_TAG = "aerotrain_run"

#: The alias of the version that is served, in MLflow's registry.
ALIAS = "serving"

#: The most values of metrics in one request: MLflow's limit.
_AT_ONCE = 1000

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


class MlflowListener:
    """Airflow calls it in the task's own process, when it has the task's state."""

    @hookimpl
    def on_task_instance_success(self, task_instance: Any) -> None:
        record(task_instance)

    @hookimpl
    def on_task_instance_failed(self, task_instance: Any) -> None:
        record(task_instance)

    @hookimpl
    def on_task_instance_skipped(self, task_instance: Any) -> None:
        record(task_instance, skipped=True)


def record(ti: Any, *, skipped: bool = False) -> None:
    """Record a task instance in MLflow, or write one warning into its log."""
    try:
        settings = Settings.read()
    except FinalError:
        return  # every task of this package has failed for it
    if not settings.mlflow:
        return
    try:
        # Imported when needed: all components of Airflow import this module.
        from aerotrain_airflow.tracking.mlflow_records import record_of

        found = record_of(ti, settings, skipped=skipped)
        if found is not None:
            _write(settings.mlflow, found)
    except Exception as error:  # noqa: BLE001 -- nothing that is recorded may fail a task
        line = str(error).strip().partition("\n")[0] or type(error).__name__
        line = re.sub(r"//[^/@\s]*@", "//", line)[:500]  # without a password in the URI
        _LOG.warning("MLflow does not have all of this task: %s", line)


def _write(uri: str, record: "Record") -> None:
    """Write a record in a thread, which ends with the task's process."""
    failed: list[Exception] = []

    def write_to_server() -> None:
        os.environ |= {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
        try:
            import mlflow  # it reads these variables

            write(mlflow.MlflowClient(uri, uri), record)
        except Exception as error:  # noqa: BLE001 -- handed to the caller's thread
            failed.append(error)

    thread = threading.Thread(target=write_to_server, name="mlflow", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise TimeoutError(f"it was not written within {_SECONDS:g} s")


def write(client: Any, record: "Record") -> None:
    """Write the record by an ``mlflow.MlflowClient``."""
    run = _found_run(client, record)
    if run is None and record.tags:
        run = _created_run(client, record)
    if run is not None:
        _add_to_run(client, run, record)
    if record.version is not None:
        _version_of(client, record.model, record.version, run)
    if record.served is not None:
        number = _version_of(client, record.model, record.served, None)
        client.set_registered_model_alias(record.model, ALIAS, number)


def _found_run(client: Any, record: "Record") -> Any:
    """The run of the DAG run, or None. Of two that tasks have created at once, it is the first."""
    experiment = client.get_experiment_by_name(record.experiment)
    if experiment is None:
        return None
    runs = client.search_runs(
        [experiment.experiment_id],
        f"tags.{RUN_TAG} = '{record.key}'",
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
    )
    return runs[0] if runs else None


def _created_run(client: Any, record: "Record") -> Any:
    """The run of the DAG run, which was not there; not the one of this task if another has one."""
    created = client.create_run(
        _experiment_of(client, record.experiment),
        start_time=round(record.began * 1000),
        tags={RUN_TAG: record.key},
        run_name=record.run,
    )
    run = _found_run(client, record)
    if run.info.run_id != created.info.run_id:
        client.delete_run(created.info.run_id)
    return run


def _add_to_run(client: Any, run: Any, record: "Record") -> None:
    run_id = run.info.run_id
    _add_values(client, run, record)
    for name, value in record.tags.items():
        client.set_tag(run_id, name, value)
    if record.data:
        _add_data(client, run_id, record.data)
    if record.is_running:
        client.update_run(run_id, status=record.status)
    else:
        client.set_terminated(run_id, status=record.status)


def _experiment_of(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another task was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _add_values(client: Any, run: Any, record: "Record") -> None:
    """Add the params and the values of metrics that the run does not have."""
    from mlflow.entities import Metric, Param

    run_id = run.info.run_id
    known = {
        (name, each.step, repr(each.value))
        for name in {point.metric for point in record.points} & run.data.metrics.keys()
        for each in client.get_metric_history(run_id, name)
    }
    metrics = [
        Metric(point.metric, point.value, round(point.at * 1000), point.step)
        for point in record.points
        if (point.metric, point.step, repr(point.value)) not in known
    ]
    params = [
        Param(name, value) for name, value in record.params.items() if name not in run.data.params
    ]
    if params:
        client.log_batch(run_id, params=params)
    for start in range(0, len(metrics), _AT_ONCE):
        client.log_batch(run_id, metrics=metrics[start : start + _AT_ONCE])


def _add_data(client: Any, run_id: str, data: Mapping[str, str]) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    context = InputTag("mlflow.data.context", "training")
    client.log_inputs(run_id, [DatasetInput(Dataset(**data), [context])])


def _version_of(client: Any, model: str, url: str, run: Any) -> str:
    """The number in MLflow of the version at ``url``, which is registered if it was not."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    for each in client.search_model_versions(f"name = '{model}'"):
        if each.source == url:
            return str(each.version)
    created = client.create_model_version(
        model,
        url,
        None if run is None else run.info.run_id,
        tags={"aerotrain_version": url.rpartition("/")[2]},
        await_creation_for=0,
    )
    return str(created.version)
