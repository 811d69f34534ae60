"""A process that writes a record to MLflow: ``python -m aerotrain_airflow.tracking.mlflow_writer``.

It reads a line with the tracking URI, and the record as JSON. It is a process of its own, so that
its caller need not wait for the server or for the import. Nothing is added twice: the run of a DAG
run is found again by a tag, a version by its URL, and values that MLflow has are left.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: The tag by which the run of a DAG run is found again.
RUN_TAG = "aerotrain_run"

#: MLflow's words for the state of a run.
RUNNING, FINISHED, FAILED = "RUNNING", "FINISHED", "FAILED"

#: The alias of the version that is served, in MLflow's registry.
ALIAS = "serving"

#: The most values of metrics in one request: MLflow's limit.
_AT_ONCE = 1000

#: Seconds after which the process ends, whatever it waits for.
LONGEST = 60

#: Defaults of the variables by which MLflow limits a request, and is kept from reporting its use.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@dataclass(frozen=True, kw_only=True)
class Point:
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
    ``ALIAS`` is to name.
    """

    experiment: str
    run: str
    key: str
    began: float
    status: str = RUNNING
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    version: str | None = None
    served: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "points": [Point(**each) for each in values["points"]]})


def write(client: Any, record: Record) -> None:
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


def _found_run(client: Any, record: Record) -> Any:
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


def _created_run(client: Any, record: Record) -> Any:
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


def _add_to_run(client: Any, run: Any, record: Record) -> None:
    run_id = run.info.run_id
    _add_values(client, run, record)
    for name, value in record.tags.items():
        client.set_tag(run_id, name, value)
    if record.data:
        _add_data(client, run_id, record.data)
    if record.status == RUNNING:
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


def _add_values(client: Any, run: Any, record: Record) -> None:
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


def main() -> None:
    """Write the record in the standard input to the server that its first line names."""
    signal.alarm(LONGEST)
    uri = sys.stdin.readline().strip()
    record = Record.from_json(sys.stdin.read())
    os.environ |= {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
    import mlflow  # it reads these variables

    write(mlflow.MlflowClient(uri, uri), record)


if __name__ == "__main__":
    main()
