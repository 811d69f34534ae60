"""What is recorded in MLflow of a run, and what it costs a task."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerotrain.store import open_store
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.tracking.mlflow_runs import (
    Record,
    client_of,
    record,
    record_of,
    status_of,
)
from aerotrain_airflow.tracking.task_output import TaskOutput
from support.ended_tasks import LOG, EndedRun, EndedTask, put

CURVES = [
    {"version": 1, "steps": 360},
    {"at": 1.0, "step": 180, "epoch": 0, "metrics": {"loss": 0.9}},
    {"at": 1.5, "step": 200, "metrics": {"loss": 0.85, "learning_rate": 0.1}},
    {"at": 2.0, "step": 360, "epoch": 1, "metrics": {"loss": 0.7, "val_loss": 0.8}},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EndedRun:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", (tmp_path / "store").as_uri())
    run = EndedRun((tmp_path / "store").as_uri())
    run.write()
    # The chief was ended while it wrote the last line.
    lines = "\n".join([*map(json.dumps, CURVES), '{"at": 3.0, "st'])
    open_store(run.model).put("progress.jsonl", lines.encode())
    return run


def recorded(ti: EndedTask) -> Record | None:
    return record_of(TaskOutput(ti.task, ti, Settings.read()))


def values(found: Record) -> dict[str, list[tuple[int, float]]]:
    """The values of the metrics, with their steps."""
    names = {name for name, *_ in found.metrics}
    return {
        name: [(step, value) for other, value, _, step in found.metrics if other == name]
        for name in names
    }


def test_a_training_has_its_options_its_curves_its_goodput_and_its_model(run: EndedRun) -> None:
    found = recorded(run.tasks()["train"])
    assert found is not None
    assert found.tags["train"] == f"{run.model}/model.json"
    assert found.tags["airflow"].endswith("/dags/flats/runs/one")
    params = {"train/epochs": "3", "train/hparams.units": "64", "train/strategy": "one_device"}
    assert found.params.items() >= (params | {"train/replicas.chief": "1"}).items()
    shown = values(found)
    assert shown["train/loss"] == [(180, 0.9), (360, 0.7)]
    assert shown["train/learning_rate"] == [(200, 0.1)]
    assert shown["train/goodput"] == [(0, 0.8)]
    assert shown["train/lost_seconds/recovery"] == [(0, 12.0)]
    failed = recorded(EndedTask(run.tasks()["train"].task))  # it has returned nothing
    assert failed is not None
    assert failed.tags["train"] == run.model
    assert (failed.params, failed.metrics) == (found.params, found.metrics)


@pytest.mark.parametrize(
    ("state", "export", "status"),
    [
        ("success", None, "RUNNING"),
        ("up_for_retry", None, "RUNNING"),
        ("success", "success", "FINISHED"),
        ("success", "failed", "FAILED"),
        ("failed", None, "FAILED"),
        ("skipped", None, "FINISHED"),
    ],
)
def test_the_run_has_the_state_of_its_tasks(
    run: EndedRun, state: str, export: str | None, status: str
) -> None:
    ti = run.tasks()["evaluate"]
    # Airflow has the state of a task that fails or is skipped only when its process has ended.
    ti.states = {"evaluate": "success" if state == "success" else "running", "export": export}
    ti.state = state
    assert status_of(ti) == status


def test_of_other_tasks_there_is_the_url_of_what_they_have_completed(run: EndedRun) -> None:
    tasks = run.tasks()
    found = recorded(tasks["evaluate"])
    assert found is not None
    assert found.tags["evaluate"] == f"{run.evaluation}/card.html"
    assert found.tags["evaluate/passed"] == "true"
    assert values(found)["evaluate/accuracy"] == [(0, 0.88)]
    predicted = recorded(tasks["predict.finalize"])
    assert predicted is not None
    assert predicted.tags["predict.finalize"] == f"{run.predictions}/data"
    assert recorded(EndedTask(tasks["predict.finalize"].task)) is None
    assert recorded(tasks["plan"]) is None
    train: Any = tasks["train"].task
    train.is_dry_run = True
    assert recorded(tasks["train"]) is None


@pytest.mark.process
def test_nothing_is_added_twice_and_the_alias_is_of_the_served_version(
    run: EndedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = client_of(uri)
    client.search_experiments()  # it creates the database, which takes longer than a task waits
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__MLFLOW", uri)
    tasks = run.tasks()
    for name in ("finalize", "train", "evaluate", "export", "promote") * 2:
        record(tasks[name])
    put(f"{run.model}/events.json", {**LOG, "goodput": 0.7})
    record(tasks["train"])

    [found] = client.search_runs([client.get_experiment_by_name("flats").experiment_id])
    assert (found.info.run_name, found.info.status) == ("one", "FINISHED")
    assert found.data.tags["finalize"] == run.data
    assert found.data.tags["export"] == f"{run.versions}/2"
    assert found.data.params["train/epochs"] == "3"

    def history(name: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)]

    assert history("train/loss") == [(180, 0.9), (360, 0.7)]
    assert sorted(history("train/goodput")) == [(0, 0.7), (0, 0.8)]
    assert history("evaluate/accuracy") == [(0, 0.88)]
    [version] = client.search_model_versions("name = 'flats'")
    assert (version.source, version.run_id) == (f"{run.versions}/2", found.info.run_id)
    assert client.get_model_version_by_alias("flats", "serving").source == f"{run.versions}/2"

    record(tasks["rollback"])  # to a version from before MLflow
    assert client.get_model_version_by_alias("flats", "serving").source == f"{run.versions}/1"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://user:secret@127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.process
def test_a_server_that_never_answers_costs_a_task_seconds_and_one_warning(
    run: EndedRun, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = run.tasks()["train"]
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__MLFLOW", silent)
    began = time.monotonic()
    with capture_logs() as logs:
        record(ti)
    assert time.monotonic() - began < 15
    [warning] = logs
    assert warning["log_level"] == "warning"
    assert warning["event"].startswith("MLflow does not have all of this task")
    assert "secret" not in str(warning)
