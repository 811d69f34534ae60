"""The pipelines in dags/: they import, survive serialization, and are documented."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Asset, Context, TaskGroup
from airflow.serialization.serialized_objects import DagSerialization

from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.contract.strategy import STRATEGIES
from aerotrain_airflow.operators.description import describe
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.params import FORM, training_params
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


def test_every_pipeline_imports_survives_serialization_and_has_a_form_with_sections(
    bag: DagBag,
) -> None:
    assert bag.import_errors == {}
    for dag in bag.dags.values():
        once = DagSerialization.to_dict(dag)
        assert DagSerialization.from_dict(once).task_ids == dag.task_ids
        assert dag.doc_md
        for name in dag.params:
            schema = dag.params.get_param(name).schema
            assert {"title", "section", "type"} <= schema.keys(), name


def described_job(dag: DAG, task_id: str, tries: tuple[int, int] = (1, 0), **params: Any) -> Job:
    """The job of a training in a run with these params, at that try and of so many retries."""
    task = cast(JobOperator, dag.get_task(task_id))
    try_number, retries = tries
    instance = SimpleNamespace(
        dag_id=dag.dag_id,
        run_id="run",
        task_id=task_id,
        map_index=-1,
        try_number=try_number,
        max_tries=retries,
    )
    context = cast(Context, {"params": {**dag.params.dump(), **params}, "ti": instance, "dag": dag})
    known = {**task.job["arguments"], "data": "file:///what/prepare/gives"}
    job = {**task.job, "arguments": known}
    job = task.render_template(job, context, task.get_template_env())
    return describe(task, job, {}, context, Settings.read())


@pytest.mark.parametrize(
    ("word", "replicas"), [(word, REPLICAS.get(word, {"chief": 1})) for word in STRATEGIES]
)
def test_a_strategy_needs_only_its_name_in_the_form(
    bag: DagBag, word: str, replicas: dict[str, int]
) -> None:
    described = described_job(bag.dags["digits"], "train", strategy=word)
    assert described.strategy == word
    assert {each.role: each.count for each in described.replicas if each.count} == replicas


def test_an_option_of_a_run_may_be_an_argument_of_one_training() -> None:
    with DAG("phases", params=training_params(epochs=9)) as dag:
        train(
            "flats",
            "file:///data",
            task_id="head",
            epochs=2,
            strategy="multi_worker_mirrored",
            workers=3,
            evaluator=True,
            restarts={"crashes": 2},
            resources={"worker": {"cpu": 4}},
        )
        train("flats", "file:///data", task_id="all", start_from="serving", learning_rate=1e-4)
    head = described_job(dag, "head", strategy="one_device", batch_size=64)
    assert (head.strategy, head.restarts.crashes) == ("multi_worker_mirrored", 2)
    assert (head.arguments["epochs"], head.arguments["batch_size"]) == (2, 64)
    workers = head.replica(Role.WORKER)
    assert (workers.count, workers.resources.cpu, head.count(Role.EVALUATOR)) == (3, 4, 1)
    everything = described_job(dag, "all", strategy="one_device", epochs=5)
    assert (everything.strategy, everything.arguments["epochs"]) == ("one_device", 5)
    assert everything.arguments["learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("tries", "worker", "ps"),
    [((1, 2), True, False), ((3, 2), False, False), ((1, 0), True, False)],
)
def test_workers_may_be_on_spot_nodes_but_at_the_last_of_several_tries(
    tries: tuple[int, int], worker: bool, ps: bool
) -> None:
    with DAG("cheap", params=training_params(strategy="parameter_server")) as dag:
        train("digits", "file:///data", spot=["worker"])
        train("digits", "file:///data", task_id="anywhere")
    job = described_job(dag, "train", tries)
    assert (job.replica(Role.WORKER).spot, job.replica(Role.PS).spot) == (worker, ps)
    assert job.replica(Role.CHIEF).spot is False
    assert {each.spot for each in described_job(dag, "anywhere", tries).replicas} == {None}


@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        ("ps", "spot names the ps, which stays on demand, because .* nodes are worker and input"),
        ("wroker", "must be one of .*, got 'wroker', did you mean 'worker'"),
    ],
)
def test_a_dag_whose_spot_names_what_others_need_is_not_loaded(role: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence), DAG("cheap"):
        train("digits", "file:///data", spot=[role])


def test_a_dag_sets_the_environment_of_every_replica_and_options_that_the_form_lacks() -> None:
    wanted = {"TF_USE_LEGACY_KERAS": "1"}
    options: dict[str, Any] = {"class_weight": {"3": 2.5}, "keep": 5}
    with DAG("legacy") as dag:
        model = train("digits", "file:///data", environment=wanted, **options, pool="gpus")
        evaluate(model, "file:///data", environment=wanted)
        export(model, "file:///data", environment=wanted)
    jobs = [cast(JobOperator, task).job for task in dag.tasks]
    environments = [replica["environment"] for job in jobs for replica in job["replicas"]]
    assert environments == [wanted] * 7  # a training may have five roles
    assert jobs[0]["arguments"].items() >= options.items()
    assert dag.get_task("train").pool == "gpus"


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


def test_a_person_sees_the_metrics_and_the_way_to_the_card_before_they_approve() -> None:
    with DAG("flats") as dag:
        approved = approve(evaluate("s3://b/model.json", "s3://b/data"), fail_on_reject=True)
        approved >> export("s3://b/model.json", "s3://b/data")
    assert approved.upstream_task_ids == {"evaluate"}
    assert approved.fail_on_reject
    measured = SimpleNamespace(xcom_pull=lambda task_ids: {"loss": 0.25, "auc": 0.9123456789})
    context = cast(Context, {"dag": dag, "run_id": "a/b c", "ti": measured})
    approved.render_template_fields(context)
    assert "/dags/flats/runs/a%2Fb%20c/tasks/evaluate" in approved.body
    assert "|---|---|\n| loss | 0.25 |\n| auc | 0.912346 |\n" in f"{approved.body}\n"


def test_a_mistake_in_a_step_is_an_error_of_the_dag_file() -> None:
    with DAG("mistaken", schedule=None):
        table = prepare("flats")
        model = train("flats", table)
        version = export(model, table, formats=["onnx"])
        evaluate(version, table, model_format="onnx")
        mistakes: dict[str, Callable[[], Any]] = {
            "serve_check takes what export returns": lambda: serve_check(model),
            "promote takes what export returns": lambda: promote(model),
            "'litert', and 'export' exports savedmodel, onnx": lambda: evaluate(
                version, table, model_format="litert"
            ),
            "did you mean 'baseline'": lambda: evaluate(version, table, basline="serving"),
            "train has no argument 'epoch', did you mean 'epochs'": lambda: train(
                "flats", table, epoch=3
            ),
            "did you mean 'key'": lambda: prepare("flats", keys=["flat"]),
            "did you mean 'thresholds'": lambda: evaluate(model, table, gate=[], threshold=0.9),
        }
        for message, mistake in mistakes.items():
            with pytest.raises(SpecError, match=message):
                mistake()


def test_every_option_of_the_form_is_also_an_argument_of_a_step() -> None:
    steps: tuple[Callable[..., Any], ...] = (
        lambda **option: prepare("flats", **option),
        lambda **option: train("flats", "file:///data", **option),
        lambda **option: evaluate("s3://b/m", "file:///data", **option),
    )
    with DAG("given", schedule=None) as dag:
        for name, declared in FORM.items():
            found = []
            for number, step in enumerate(steps):
                with TaskGroup(f"{name}_{number}"), suppress(SpecError):
                    found.append(step(**{name: declared.default}))
            assert found, name
        prepare("flats", check_model=False)
        evaluate("s3://b/m", "file:///data", threshold=0.7)
    assert cast(Any, dag.get_task("prepare.check")).check_model is False
    assert cast(Any, dag.get_task("evaluate")).job["arguments"]["gate"][0]["bound"] == 0.7


def test_every_step_takes_the_arguments_of_airflows_operators() -> None:
    data, scored = Asset("flats-data"), Asset("flats-scored")
    with DAG("argued", schedule=None) as argued:
        table = prepare("flats", key=["flat"], queue="small", outlets=[data], pool="writers")
        evaluate("s3://b/m", table, queue="small", priority_weight=7)
        export("s3://b/m", table, queue="small")
        serve_check("s3://b/flats/serving/1", queue="small")
        predict("serving", "flats", queue="small", outlets=[scored], batch_size=10)
        rollback(pipeline="flats", reason="slow", queue="small")
        prepare("buyers", name="buyers", group_id="buyers", queue="small")
    assert {"buyers.check", "buyers.plan"} <= set(argued.task_ids)
    assert {task.queue for task in argued.tasks if task.task_id[-6:] != ".check"} == {"small"}
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
