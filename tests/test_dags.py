"""The pipelines in dags/: they import, survive serialization, and are documented."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Asset, Context
from airflow.serialization.serialized_objects import DagSerialization

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import STRATEGIES
from aerotrain_airflow.operators.description import check_run, describe
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.release import body_of
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.steps import (
    approve,
    evaluate,
    export,
    predict,
    prepare,
    promote,
    rollback,
    serve_check,
    train,
)

ROOT = Path(__file__).parent.parent

#: The replicas of a strategy that needs more than a chief, unless the form says otherwise.
REPLICAS = {
    "multi_worker_mirrored": {"chief": 1, "worker": 1},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
}


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(str(ROOT / "dags"))


def test_every_pipeline_imports(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert "digits" in bag.dags


def test_digits_unpaused_early_on_a_sunday_first_runs_on_the_next_sunday(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = datetime(2026, 11, 22, 1, 22, tzinfo=UTC)
    monkeypatch.setattr("airflow.timetables.trigger.utcnow", lambda: early)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags["digits"]))
    first = stored.next_dagrun_info(last_automated_run_info=None)
    assert first is not None
    assert first.run_after == datetime(2026, 11, 29, tzinfo=UTC)


def test_every_pipeline_survives_serialization(bag: DagBag) -> None:
    for dag in bag.dags.values():
        once = DagSerialization.to_dict(dag)
        assert DagSerialization.from_dict(once).task_ids == dag.task_ids


def test_every_pipeline_is_documented_and_its_form_has_sections(bag: DagBag) -> None:
    for dag in bag.dags.values():
        assert dag.doc_md
        for name in dag.params:
            schema = dag.params.get_param(name).schema
            assert {"title", "section", "type"} <= schema.keys(), name


def test_digits_reads_like_a_table_of_contents(bag: DagBag) -> None:
    digits: DAG = bag.dags["digits"]
    assert {task.task_id: sorted(task.downstream_task_ids) for task in digits.tasks} == {
        "prepare.check": ["prepare.plan"],
        "prepare.plan": ["prepare.finalize", "prepare.partition"],
        "prepare.partition": ["prepare.finalize"],
        "prepare.finalize": ["evaluate", "export", "train"],
        "train": ["evaluate", "export"],
        "evaluate": ["export"],
        "export": [],
    }


@pytest.mark.parametrize(
    ("word", "replicas"), [(word, REPLICAS.get(word, {"chief": 1})) for word in STRATEGIES]
)
def test_a_strategy_needs_only_its_name_in_the_form(
    bag: DagBag, word: str, replicas: dict[str, int]
) -> None:
    dag: DAG = bag.dags["digits"]
    task = cast(JobOperator, dag.get_task("train"))
    params = {**dag.params.dump(), "strategy": word}
    instance = SimpleNamespace(dag_id="digits", run_id="run", task_id="train", map_index=-1)
    context = cast(Context, {"params": params, "ti": instance, "dag": dag})
    known = {**task.job["arguments"], "data": "file:///what/prepare/gives"}
    job = {**task.job, "arguments": known}
    job = task.render_template(job, context, task.get_template_env())
    described = describe(task, job, {}, context, Settings.read())
    assert described.strategy == word
    assert {each.role: each.count for each in described.replicas if each.count} == replicas


def test_an_environment_reaches_every_replica_of_a_step() -> None:
    wanted = {"TF_USE_LEGACY_KERAS": "1"}
    with DAG("legacy") as dag:
        model = train("digits", "file:///data", environment=wanted)
        evaluate(model, "file:///data", environment=wanted)
        export(model, "file:///data", environment=wanted)
    jobs = [cast(JobOperator, task).job for task in dag.tasks]
    environments = [replica["environment"] for job in jobs for replica in job["replicas"]]
    assert environments == [wanted] * 8  # a training may have six roles


def test_an_option_that_the_form_lacks_is_set_by_the_dag() -> None:
    with DAG("weighted") as dag:
        train("digits", "file:///data", class_weight={"3": 2.5}, keep=5, pool="gpus")
    task = cast(JobOperator, dag.get_task("train"))
    assert task.job["arguments"]["class_weight"] == {"3": 2.5}
    assert task.job["arguments"]["keep"] == 5
    assert task.pool == "gpus"


@pytest.mark.process
@pytest.mark.parametrize("run_id", [".", ".."])
def test_a_run_id_that_a_url_would_lose_is_refused(run_id: str) -> None:
    with pytest.raises(SpecError, match="trigger a run with another id"):
        check_run(cast(Context, {"ti": SimpleNamespace(run_id=run_id)}))


def test_parsing_every_pipeline_loads_no_large_library_and_no_users_module() -> None:
    program = (
        "import sys; from airflow.dag_processing.dagbag import DagBag; "
        f"bag = DagBag({str(ROOT / 'dags')!r}); assert not bag.import_errors; "
        "slow = {'tensorflow', 'keras', 'sklearn', 'kubernetes', 'boto3'}; "
        "print(sorted(slow & sys.modules.keys()))"
    )
    paths = os.pathsep.join([str(ROOT / "tasks"), str(ROOT / "plugins")])
    parsed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert parsed.stdout.splitlines()[-1] == "[]"


def test_a_person_sees_the_metrics_and_the_card_before_they_approve() -> None:
    with DAG("approved"):
        approved = approve(evaluate("s3://b/model.json", "s3://b/data"), fail_on_reject=True)
        approved >> export("s3://b/model.json", "s3://b/data")
    assert approved.upstream_task_ids == {"evaluate"}
    assert approved.evaluation == "evaluate"
    assert approved.fail_on_reject
    body = body_of({"loss": 0.25, "auc": 0.9}, "/aerotrain/files/flats/card.html")
    assert "[The card](/aerotrain/files/flats/card.html)" in body
    assert "| auc | 0.9 |" in body


def test_a_step_that_takes_an_exported_version_refuses_the_output_of_another_one() -> None:
    with DAG("mistaken", schedule=None):
        table = prepare("flats")
        model = train("flats", table)
        version = export(model, table, formats=["onnx"])
        with pytest.raises(SpecError, match="serve_check takes what export returns, and got that"):
            serve_check(model)
        with pytest.raises(SpecError, match="promote takes what export returns, and got"):
            promote(model)
        with pytest.raises(SpecError, match="'litert', and 'export' exports savedmodel, onnx"):
            evaluate(version, table, model_format="litert")
        evaluate(version, table, model_format="onnx")


def test_a_misspelt_argument_of_a_step_is_an_error_of_the_dag_file() -> None:
    with DAG("misspelt", schedule=None):
        with pytest.raises(SpecError, match="evaluate has no argument 'basline', did you mean 'ba"):
            evaluate("s3://b/m", "s3://b/data", basline="serving")
        with pytest.raises(SpecError, match="prepare has no argument 'keys', did you mean 'key'"):
            prepare("flats", keys=["flat"])


def test_a_pipeline_prepares_two_data_sets_in_groups_of_their_own() -> None:
    with DAG("two", schedule=None) as two:
        prepare("houses")
        prepare("buyers", name="buyers", group_id="prepare_buyers")
    assert {"prepare.finalize", "prepare_buyers.check", "prepare_buyers.plan"} <= set(two.task_ids)


def test_every_step_takes_the_arguments_of_airflows_operators() -> None:
    data, scored = Asset("flats-data"), Asset("flats-scored")
    with DAG("argued", schedule=None) as argued:
        table = prepare("flats", key=["flat"], queue="small", outlets=[data], pool="writers")
        evaluate("s3://b/m", table, queue="small", priority_weight=7)
        export("s3://b/m", table, queue="small")
        serve_check("s3://b/flats/serving/1", queue="small")
        predict("serving", "flats", queue="small", outlets=[scored], batch_size=10)
        rollback(pipeline="flats", reason="slow", queue="small")
    assert {task.queue for task in argued.tasks if task.task_id != "prepare.check"} == {"small"}
    assert argued.get_task("evaluate").priority_weight == 7
    assert {task.task_id: task.outlets for task in argued.tasks if task.outlets} == {
        "prepare.finalize": [data],
        "predict.finalize": [scored],
    }
    plan, partition = argued.get_task("prepare.plan"), argued.get_task("prepare.partition")
    assert cast(JobOperator, plan).job["arguments"]["key"] == ["flat"]
    assert (plan.pool, partition.pool) == ("default_pool", "writers")
    of_predictions = cast(JobOperator, argued.get_task("predict.plan")).job["arguments"]
    assert of_predictions["batch_size"] == 10
