"""The digits pipeline as a whole: real Airflow components, real TensorFlow, a real S3 server."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.contract.names import path_segment
from aerotrain.store import Store, open_store
from aerotrain_airflow.local.api import AirflowApi
from aerotrain_airflow.local.following import await_dag
from aerotrain_airflow.local.home import Home
from aerotrain_airflow.local.progress import utc_now
from aerotrain_airflow.local.stack import Stack, running_stack

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent.parent
DAG = "digits"
#: Seconds between two questions to Airflow, which calls nobody.
ASK_EVERY = 0.5

LOAD_IT = """
import sys
sys.modules["keras"] = None
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
outputs = model.signatures["serving_default"](image=tf.zeros([2, 8, 8], tf.uint8))
assert not [name for name in sys.modules if name.startswith("aerotrain")]
print([tuple(each.shape) for each in outputs.values()])
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # Airflow refuses most characters in a run id unless it is told to take them all.
    home = Home(tmp_path_factory.mktemp("home"))
    since = utc_now()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN", ".+")
        with running_stack(home, PROJECT, _free_port(), print) as running:
            await_dag(running.api, DAG, since, running.check)
            yield running
    assert not _processes_with("AEROTRAIN_LOCAL", str(home.root))


@pytest.fixture
def store(stack: Stack) -> Store:
    return open_store(f"s3://aerotrain/{DAG}", stack.s3.environment)


@pytest.fixture(scope="module")
def runs(stack: Stack) -> list[str]:
    """Two runs at once: as the form has it, and in one process under a hostile name."""
    hostile = 'two words; $(id) "quoted" é'
    triggered = [
        _trigger(stack, {}),
        _trigger(stack, {"strategy": "one_device"}, hostile),
    ]
    for run in triggered:
        assert _end_of(stack.api, run) == "success", _errors(stack.api, run)
    return triggered


def test_two_runs_at_once_each_train_and_export_a_model_that_loads_anywhere(
    stack: Stack, store: Store, runs: list[str], tmp_path: Path
) -> None:
    versions = {stack.api.result(DAG, run, "export") for run in runs}
    assert len(versions) == 2
    for run in runs:
        assert stack.api.result(DAG, run, "evaluate")["accuracy"] >= 0.95
    assert {stored.key.split("/")[1] for stored in store.list("runs")} == {
        path_segment(run) for run in runs
    }

    version = stack.api.result(DAG, runs[0], "export")
    for stored in (exported := open_store(version, stack.s3.environment)).list():
        exported.download(stored.key, tmp_path / stored.key)
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", LOAD_IT, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.stdout.splitlines()[-1:] == ["[(2, 10)]"], loaded.stderr

    log = _log(stack.api, runs[0], "train")
    for replica in ("chief", "worker-0", "worker-1", "ps-0"):
        assert f"[{replica}] " in log


@pytest.mark.usefixtures("runs")
def test_another_run_prepares_nothing_and_a_weak_model_is_not_exported(
    stack: Stack, store: Store
) -> None:
    before = {stored.key for stored in store.list("serving")}
    run = _trigger(stack, {"strategy": "one_device", "epochs": 1, "threshold": 1.0})
    assert _end_of(stack.api, run) == "failed"
    assert _states(stack.api, run) == {
        "prepare.check": "success",
        "prepare.plan": "success",
        "prepare.part": "skipped",
        "prepare.seal": "success",
        "train": "success",
        "evaluate": "failed",
        "export": "upstream_failed",
    }
    assert "already sealed" in _log(stack.api, run, "prepare.plan")
    assert "threshold" in _errors(stack.api, run)
    assert {stored.key for stored in store.list("serving")} == before
    assert store.exists(f"runs/{path_segment(run)}/evaluate/metrics.json")


def test_every_strategy_trains_the_same_pipeline_by_one_word_of_the_form(stack: Stack) -> None:
    words = ("mirrored", "central_storage", "multi_worker_mirrored", "dtensor")
    for word in words:
        run = _trigger(stack, {"strategy": word})
        assert _end_of(stack.api, run) == "success", _errors(stack.api, run)
        assert stack.api.result(DAG, run, "evaluate")["accuracy"] >= 0.95


def test_a_tpu_that_is_not_there_fails_the_training_with_a_sentence(stack: Stack) -> None:
    run = _trigger(stack, {"strategy": "tpu"})
    assert _end_of(stack.api, run) == "failed"
    assert "TPU" in _errors(stack.api, run)
    assert _states(stack.api, run)["train"] == "failed"


def test_a_training_task_that_is_marked_failed_leaves_no_process_within_10_seconds(
    stack: Stack,
) -> None:
    run = _trigger(stack, {"epochs": 100_000})
    _until(lambda: "progress step=" in _log(stack.api, run, "train"))
    training = _processes_with("AWS_ENDPOINT_URL", stack.s3.environment["AWS_ENDPOINT_URL"])
    assert len(training) >= 4

    client = httpx.Client(base_url=stack.api.url, trust_env=False)
    token = client.post(
        "/auth/token", json={"username": "admin", "password": stack.password}
    ).json()["access_token"]
    client.patch(
        f"/api/v2/dags/{DAG}/dagRuns/{quote(run, safe='')}/taskInstances/train",
        json={"new_state": "failed"},
        headers={"Authorization": f"Bearer {token}"},
    ).raise_for_status()

    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in training], timeout=10)
    assert not alive, f"{len(gone)} gone"


def test_a_conf_key_that_no_param_has_is_refused_with_the_nearest(stack: Stack) -> None:
    run = _trigger(stack, {"eppochs": 3})
    assert _end_of(stack.api, run) == "failed"
    assert "did you mean 'epochs'?" in _errors(stack.api, run)


def test_a_param_out_of_its_range_is_refused_as_it_is_triggered(stack: Stack) -> None:
    with pytest.raises(FinalError, match="strategy"):
        stack.api.trigger(DAG, {"strategy": "parameter_sever"})


def _trigger(stack: Stack, conf: dict[str, Any], run_id: str | None = None) -> str:
    return stack.api.trigger(DAG, conf, run_id=run_id)


def _end_of(api: AirflowApi, run: str) -> str:
    _until(lambda: api.run_state(DAG, run) in ("success", "failed"))
    return api.run_state(DAG, run)


def _states(api: AirflowApi, run: str) -> dict[str, str]:
    return {each["task_id"]: each["state"] for each in api.task_instances(DAG, run)}


def _log(api: AirflowApi, run: str, task: str) -> str:
    for instance in api.task_instances(DAG, run):
        if instance["task_id"] == task and instance["try_number"]:
            return "\n".join(str(event.get("event")) for event in api.log(instance).events)
    return ""


def _errors(api: AirflowApi, run: str) -> str:
    """What the failed tasks of a run say."""
    return "\n".join(
        str(event)
        for instance in api.task_instances(DAG, run)
        if instance["state"] == "failed"
        for event in api.log(instance).events
        if event.get("level") == "error"
    )


def _until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(ASK_EVERY)


def _processes_with(variable: str, value: str) -> list[int]:
    """The live replicas that have the variable in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(variable) == value and "AEROTRAIN_SET" in environment:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
