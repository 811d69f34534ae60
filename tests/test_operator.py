"""The operator in a real Airflow, in this process: the end, the log and the result of a task."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.utils.session import create_session
from benchmarks.fault_injection import processes_of
from sqlalchemy import select

from aerotrain.contract.job import Job
from aerotrain.contract.layout import path_segment
from aerotrain_airflow.operators.reuse import key_of
from aerotrain_airflow.settings import Settings

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _settings(airflow_database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [str(Path(__file__).parent.parent / each) for each in ("tasks", "plugins")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(roots))
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__SCRATCH", str(tmp_path / "scratch"))


@pytest.fixture
def pipelines() -> DagBag:
    return DagBag(str(Path(__file__).parent / "dags" / "small.py"))


def updates_of(asset: str) -> list[dict[str, Any]]:
    """The content of the events of an asset."""
    events = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
    with create_session() as session:
        return [event.extra for event in session.scalars(events.where(AssetModel.name == asset))]


def test_the_result_of_a_task_is_the_value_of_its_chief_which_sees_no_secret_of_airflow(
    pipelines: DagBag,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("AIRFLOW__CORE__FERNET_KEY", "VAULT_TOKEN"):
        monkeypatch.setenv(name, "a secret")
    run = pipelines.dags["small"].test(run_conf={"chief": "echo", "word": "bonjour"})
    ti = run.get_task_instance("job")
    assert ti.state == "success"
    value = ti.xcom_pull(task_ids="job")
    assert value["arguments"]["word"] == "bonjour"
    assert value["arguments"]["run"] == run.run_id
    assert "[worker-1] hello from worker-1" in capfd.readouterr().out
    assert not [name for name in value["environment"] if name.startswith(("AIRFLOW__", "VAULT_"))]
    assert not list((tmp_path / "scratch").iterdir())
    [event] = updates_of("greetings")
    assert event["metrics"]["arguments"]["word"] == "bonjour"


def test_a_result_of_the_same_inputs_is_taken_over_while_it_is_there(
    pipelines: DagBag, tmp_path: Path
) -> None:
    def run(day: int) -> tuple[str, str | None]:
        """The ids of a run, and of the one whose result it has taken over."""
        date = datetime(2026, 11, day, tzinfo=UTC)
        run = pipelines.dags["reusing"].test(logical_date=date, run_conf={"reuse": True})
        ti = run.get_task_instance("job")
        assert ti.xcom_pull(task_ids="job")["arguments"]["word"] == "hello"
        return run.run_id, ti.xcom_pull(task_ids="job", key="reused_from")

    first, earlier = run(1)
    assert earlier is None
    assert run(2)[1] == first
    [result] = (tmp_path / "store" / "reusing" / "runs" / path_segment(first)).rglob("result.json")
    result.unlink()
    assert run(3)[1] is None


def test_what_a_result_depends_on_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"name": "n", "module": "m", "store": "s3://b", "run": "r", "task": "t"}
    job = Job.from_dict({**names, "replicas": [{"role": "chief"}], "code": "a.tar.gz"})
    [chief] = job.replicas
    others = [
        replace(job, code="b.tar.gz"),
        replace(job, module="n"),
        replace(job, arguments={"epochs": 2}),
        replace(job, replicas=(replace(chief, environment={"TF_USE_LEGACY_KERAS": "1"}),)),
        replace(job, replicas=(replace(chief, resources=replace(chief.resources, gpu=1)),)),
        replace(job, made_from={"image": "other"}),
    ]
    settings = Settings.read()
    assert key_of(replace(job, run="other", name="other"), settings) == key_of(job, settings)
    assert len({key_of(each, settings) for each in (job, *others)}) == 7
    training = replace(
        job, module="aerotrain.training.train", arguments={"keep": 2, "store_timeout": 9}
    )
    assert key_of(training, settings) == key_of(replace(training, arguments={}), settings)
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__PYTHON", "/other/python")
    assert key_of(job, Settings.read()) != key_of(job, settings)


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"chief": "fail"}, "the label 7 is outside 0 to 3 (chief, exit code 65)"),
        ({"word": "a", "eppochs": 3}, "did you mean 'epochs'?"),
    ],
)
def test_the_error_of_a_failed_task_is_one_sentence(
    pipelines: DagBag,
    conf: dict[str, Any],
    sentence: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = pipelines.dags["small"].test(run_conf=conf)
    failed = run.get_task_instance("job")
    assert failed.state == "failed"
    assert sentence in "".join(capfd.readouterr())
    assert sentence in failed.xcom_pull(task_ids="job", key="failure"), "the run page shows it"


def test_a_task_past_its_timeout_leaves_no_process(pipelines: DagBag, tmp_path: Path) -> None:
    run = pipelines.dags["with_timeout"].test(run_conf={"chief": "serve"})
    assert run.get_task_instance("job").state == "failed"
    assert not processes_of(str(tmp_path))
    assert not list((tmp_path / "scratch").iterdir())


def test_a_result_with_a_reason_to_skip_skips_the_task(
    pipelines: DagBag, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = pipelines.dags["skipping"].test()
    assert run.get_task_instance("job").state == "skipped"
    reason = str(tmp_path / "scratch")  # here the chief's scratch folder
    assert f"skipped: {reason}" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("dag_id", "conf", "sentence"),
    [
        ("misspelt_module", {}, "no module 'smal_jobs'"),
        ("misspelt_argument", {}, "has no field 'eppochs', did you mean 'epochs'?"),
        (
            "misspelt_metric",
            {"strategy": "one_device"},
            "'acuracy' is not a metric of the model",
        ),
    ],
)
def test_invalid_params_of_any_task_are_refused_by_the_first_task(
    pipelines: DagBag,
    dag_id: str,
    conf: dict[str, Any],
    sentence: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = pipelines.dags[dag_id].test(run_conf=conf)
    assert run.get_task_instance("check").state == "failed"
    assert run.get_task_instance("plan").state == "upstream_failed"
    assert sentence in "".join(capfd.readouterr())


def test_a_training_is_mapped_over_hyperparameters(pipelines: DagBag) -> None:
    run = pipelines.dags["swept"].test(run_conf={"dry_run": True})
    shown: dict[str, list[Any]] = {"listed": [], "chosen": [], "group.train": []}
    for ti in run.get_task_instances():
        if ti.task_id in shown:
            fields = RenderedTaskInstanceFields.get_templated_fields(ti) or {}
            layers = [*fields["job"]["arguments"]["hparams"], fields["arguments"].get("hparams")]
            hparams = {name: value for each in layers if each for name, value in each.items()}
            shown[ti.task_id].append((hparams.get("learning_rate", 0), hparams["units"]))
    assert {task: sorted(each) for task, each in shown.items()} == {
        "listed": [(0, 1), (0.5, 2)],
        "chosen": [(0, 3), (0, 4)],
        "group.train": [(0, 5), (0, 6)],
    }


def test_a_dry_run_shows_what_would_start_and_skips_all_later_tasks(
    pipelines: DagBag, capfd: pytest.CaptureFixture[str]
) -> None:
    run = pipelines.dags["well_described"].test(run_conf={"dry_run": True})
    states = {ti.task_id: ti.state for ti in run.get_task_instances()}
    assert states.pop("check") == "success"
    assert states == dict.fromkeys(["plan", "finalize", "train", "evaluate"], "skipped")
    assert "would start plan" in "".join(capfd.readouterr())


def test_an_unresponsive_store_is_named_before_anything_starts(
    pipelines: DagBag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", "s3://bucket")
    monkeypatch.setenv(
        "AIRFLOW_CONN_STORE",
        '{"conn_type": "aws", "login": "key", "password": "secret",'
        ' "extra": {"endpoint_url": "http://127.0.0.1:9"}}',
    )
    run = pipelines.dags["well_described"].test()
    assert run.get_task_instance("check").state == "failed"
    assert "http://127.0.0.1:9" in "".join(capfd.readouterr())
