"""The digits pipeline as a whole: real Airflow components, real TensorFlow, a real S3 server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest
from benchmarks.fault_injection import processes_of

from aerotrain.contract.layout import path_segment
from aerotrain.contract.status import State
from aerotrain.store import Store, open_store
from chaos.dag_runs import SETTINGS, DagTraining, kill_all
from devtools.home import Home
from devtools.stack import Stack, marked, running_stack
from support.airflow_runs import Runs, until
from support.statsd_server import StatsdServer, statsd_server

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parent.parent
DAG = "digits"

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
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def statsd() -> Iterator[StatsdServer]:
    with statsd_server() as server:
        yield server


@pytest.fixture(scope="module")
def stack(home: Home, statsd: StatsdServer) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in statsd.environment.items():
            patch.setenv(name, value)
        # Airflow rejects most characters in a run id unless it is configured to allow all.
        patch.setenv("AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN", ".+")
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        # No DAG file changes. Parsing all of them every 10 s takes a considerable part of a core.
        patch.setenv("AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL", "3600")
        # While runs are under way, a loop of the scheduler takes a tenth of a second of CPU.
        patch.setenv("AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME", "1")
        with running_stack(home, PROJECT) as running:
            running.wait_for_dag(DAG)
            yield running
    assert not marked(home.root)


@pytest.fixture
def store(stack: Stack) -> Store:
    return open_store(f"s3://aerotrain/{DAG}", stack.s3.environment)


@pytest.fixture(scope="module")
def pipeline(stack: Stack) -> Runs:
    return Runs(stack, DAG)


@pytest.fixture(scope="module")
def runs(pipeline: Runs) -> list[str]:
    """Two simultaneous runs: by a ps, and with the form's defaults and a hostile name."""
    hostile = 'two words; $(id) "quoted" é'
    triggered = [
        pipeline.trigger({"strategy": "parameter_server", "check_model": False}),
        pipeline.trigger({}, hostile),
    ]
    for run in triggered:
        assert pipeline.end_of(run) == "success", pipeline.errors(run)
    return triggered


def test_two_runs_at_once_each_train_and_export_a_model_that_loads_anywhere(
    pipeline: Runs, store: Store, statsd: StatsdServer, runs: list[str], tmp_path: Path
) -> None:
    versions = {pipeline.result(run, "export") for run in runs}
    assert len(versions) == 2
    for run in runs:
        assert pipeline.result(run, "evaluate")["accuracy"] >= 0.9
    kept = {stored.key.split("/")[1] for stored in store.list("runs")}
    assert {path_segment(run) for run in runs} <= kept

    version = pipeline.result(runs[0], "export")
    for stored in (exported := open_store(version, pipeline.stack.s3.environment)).list():
        exported.download(stored.key, tmp_path / stored.key)
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", LOAD_IT, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.stdout.splitlines()[-1:] == ["[(2, 10)]"], loaded.stderr

    for name in ("step", "loss", "examples_per_second", "goodput", "lost_seconds"):
        assert statsd.of(f"airflow.aerotrain.{name},dag_id=digits,task_id=train"), name

    checked = pipeline.log(runs[1], "prepare.check")
    assert "the model of 'digits' trains and is exported under 'one_device'" in checked
    log = pipeline.log(runs[0], "train")
    for replica in ("chief", "worker-0", "worker-1", "ps-0"):
        assert f"[{replica}] " in log


def test_the_page_of_a_run_shows_its_training_and_its_files_after_a_login(
    pipeline: Runs, runs: list[str]
) -> None:
    lanes, timed = [], []
    for run in map(quote, runs):
        data = pipeline.api.plugin(f"/aerotrain/data/digits/{run}").json()
        [training] = data["trainings"]
        assert training["curves"]["values"]["loss"][-1] < training["curves"]["values"]["loss"][0]
        assert "accuracy" in training["epochs"]["values"]
        assert (data["state"], training["running"]) == ("success", False)
        assert training["goodput"]["goodput"] > 0
        for each in (each for each in data["files"] if "href" in each):
            assert pipeline.api.plugin(f"/aerotrain/{each['href']}").is_success, each
        lanes.append([each["replica"] for each in training["lanes"]])
        timed.append([each["replica"] for each in training["step_times"] if each["seconds"] > 0])
    assert lanes == [["chief", "ps-0", "worker-0", "worker-1"], ["chief"]]
    assert timed[0] == ["worker-0", "worker-1"]
    page = "/aerotrain/runs/digits/x"
    assert httpx.get(f"{pipeline.api.url}{page}").status_code == 401
    assert pipeline.api.plugin(page).status_code == 200
    for route in ("docs", "openapi.json", "files/digits/%2e%2e/flats/", "data/digits/x"):
        assert not pipeline.api.plugin(f"/aerotrain/{route}").is_success, route


def test_a_run_reuses_the_training_of_an_earlier_one_while_a_task_that_is_marked_failed_ends(
    pipeline: Runs, store: Store, home: Home, runs: list[str]
) -> None:
    before = {stored.key for stored in store.list("serving")}
    run = pipeline.trigger({"strategy": "one_device", "threshold": 1.0, "check_model": False})
    marked = pipeline.trigger({"epochs": 100_000, "check_model": False})
    until("progress", lambda: "progress step=" in pipeline.log(marked, "train"))
    training = [psutil.Process(pid) for pid in processes_of(str(home.scratch))]
    assert len(training) >= 4
    pipeline.api.fail_task(DAG, marked, "train")
    _, alive = psutil.wait_procs(training, timeout=60)
    assert not alive, "the processes of a failed task still run after a minute"

    assert pipeline.end_of(run) == "failed"
    assert pipeline.states(run) == {
        "prepare.check": "success",
        "prepare.plan": "success",
        "prepare.partition": "skipped",
        "prepare.finalize": "success",
        "train": "success",
        "evaluate": "failed",
        "export": "upstream_failed",
    }
    assert pipeline.result(run, "train") == pipeline.result(runs[1], "train")
    assert "threshold" in pipeline.errors(run)
    assert {stored.key for stored in store.list("serving")} == before
    assert store.exists(f"runs/{path_segment(run)}/evaluate/metrics.json")


def test_a_run_trains_once_although_scheduler_triggerer_and_task_are_killed_at_once(
    stack: Stack, home: Home
) -> None:
    conf = {"strategy": "one_device", "epochs": 120, "check_model": False}
    training = DagTraining(stack, home.scratch, conf)
    outcome = training.inject(kill_all, lines=3)
    assert outcome.state is State.SUCCEEDED, training.tail()
    assert (outcome.sets, outcome.adoptions, outcome.back) == (1, 1, [])
    assert (outcome.steps_lost, outcome.steps_twice) == (0, 0)
    assert not outcome.left
