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
from aerotrain_airflow.tracking.mlflow_records import Record, record_of
from aerotrain_airflow.tracking.mlflow_writer import record, write
from support.ended_tasks import EndedRun, EndedTask, put

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
    return run


def recorded(ti: EndedTask, **how: Any) -> Record:
    found = record_of(ti, Settings.read(), **how)
    assert found is not None
    return found


def values(found: Record) -> dict[str, list[tuple[int, float]]]:
    """The values of the metrics, with their steps."""
    names = {each.metric for each in found.points}
    return {
        name: [(each.step, each.value) for each in found.points if each.metric == name]
        for name in names
    }


def test_a_training_has_its_options_its_data_set_its_goodput_and_its_model(run: EndedRun) -> None:
    found = recorded(run.tasks()["train"])
    assert (found.experiment, found.run) == ("flats", "one")
    assert found.tags["train"] == f"{run.model}/model.json"
    assert found.tags["airflow"].endswith("/dags/flats/runs/one")
    params = {"train/epochs": "3", "train/hparams.units": "64", "train/strategy": "one_device"}
    assert found.params.items() >= params.items()
    assert found.params["train/replicas.chief"] == "1"
    assert found.data["digest"] == "f1"
    assert json.loads(found.data["profile"]) == {"records": {"train": 90, "test": 10}}
    assert values(found)["train/goodput"] == [(0, 0.8)]
    assert values(found)["train/lost_seconds/recovery"] == [(0, 12.0)]
    assert values(found)["train/accuracy"] == [(540, 0.9)]


def test_a_training_with_curves_has_each_of_their_values_at_its_step(run: EndedRun) -> None:
    lines = "\n".join([*map(json.dumps, CURVES), '{"at": 3.0, "st'])  # the chief was ended
    open_store(run.model).put("progress.jsonl", lines.encode())
    found = recorded(run.tasks()["train"])
    assert values(found)["train/loss"] == [(180, 0.9), (360, 0.7)]
    assert values(found)["train/val_loss"] == [(360, 0.8)]
    assert values(found)["train/learning_rate"] == [(200, 0.1)]
    assert "train/accuracy" not in values(found)


def test_a_training_that_failed_has_its_options_and_what_it_reached(run: EndedRun) -> None:
    store = open_store(run.model)
    store.delete("model.json")
    store.put("progress.jsonl", "\n".join(map(json.dumps, CURVES[:2])).encode())
    task = run.tasks()["train"].task
    found = recorded(EndedTask(task, states={"train": "failed"}))
    assert (found.status, found.tags["train"]) == ("FAILED", run.model)
    assert values(found)["train/loss"] == [(180, 0.9)]
    assert found.params["train/epochs"] == "3"


@pytest.mark.parametrize(
    ("states", "skipped", "status"),
    [
        ({"train": "success", "export": None}, False, "RUNNING"),
        ({"train": "up_for_retry"}, False, "RUNNING"),
        ({"train": "success", "export": "success"}, False, "FINISHED"),
        ({"train": "success", "export": "failed"}, False, "FAILED"),
        ({"train": "upstream_failed"}, False, "FAILED"),
        ({"evaluate": "skipped", "export": None}, True, "FINISHED"),
    ],
)
def test_the_run_has_the_state_of_its_tasks(
    run: EndedRun, states: dict[str, str], skipped: bool, status: str
) -> None:
    ti = run.tasks()["evaluate"]
    ti.states = states
    assert recorded(ti, skipped=skipped).status == status


def test_an_evaluation_has_its_metrics_and_its_card_and_other_tasks_nothing(run: EndedRun) -> None:
    tasks = run.tasks()
    found = recorded(tasks["evaluate"])
    assert found.tags["evaluate"] == f"{run.evaluation}/card.html"
    assert found.tags["evaluate/passed"] == "true"
    assert values(found)["evaluate/accuracy"] == [(0, 0.88)]
    assert record_of(tasks["plan"], Settings.read()) is None
    train: Any = tasks["train"].task
    train.is_dry_run = True
    assert record_of(tasks["train"], Settings.read()) is None


def test_a_run_that_predicts_has_the_url_of_its_predictions_once_they_are_whole(
    run: EndedRun,
) -> None:
    finalize = run.tasks()["predict.finalize"]
    found = recorded(finalize)
    assert found.tags["predict.finalize"] == f"{run.predictions}/data"
    assert found.tags["airflow"].endswith("/dags/flats/runs/one")
    assert record_of(EndedTask(finalize.task), Settings.read()) is None


@pytest.mark.process
def test_nothing_is_added_twice_and_the_alias_is_of_the_served_version(
    run: EndedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri, uri)
    open_store(run.model).put("progress.jsonl", "\n".join(map(json.dumps, CURVES)).encode())
    tasks = run.tasks()
    for name in ("finalize", "train", "evaluate", "export", "promote") * 2:
        write(client, recorded(tasks[name]))
    put(f"{run.model}/events.json", {"goodput": 0.7, "wall_seconds": 1, "restarts": 0} | LOST)
    write(client, recorded(tasks["train"]))

    experiment = client.get_experiment_by_name("flats")
    assert experiment is not None
    [found] = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("one", "FINISHED")
    assert found.data.tags["export"] == f"{run.versions}/2"
    [data] = found.inputs.dataset_inputs
    assert data.dataset.digest == "f1"

    def history(name: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)]

    assert history("train/loss") == [(180, 0.9), (360, 0.7)]
    assert history("train/goodput") == [(0, 0.8), (0, 0.7)]
    assert history("evaluate/accuracy") == [(0, 0.88)]
    [version] = client.search_model_versions("name = 'flats'")
    assert (version.source, version.run_id) == (f"{run.versions}/2", found.info.run_id)
    assert client.get_model_version_by_alias("flats", "serving").source == f"{run.versions}/2"

    write(client, recorded(tasks["rollback"]))  # to a version from before MLflow
    assert client.get_model_version_by_alias("flats", "serving").source == f"{run.versions}/1"


LOST: dict[str, Any] = {"lost_seconds": {}}


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
    monkeypatch.delenv("AIRFLOW__AEROTRAIN__MLFLOW")
    with capture_logs() as logs:
        record(ti)
    assert logs == []
