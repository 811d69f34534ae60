"""Pipelines of airflow jobs without TensorFlow, for the tests of the operator."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, XComArg, task, task_group

from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.preflight import PreflightOperator
from aerotrain_airflow.params import RunParam, training_params
from aerotrain_airflow.steps import at_least, train

JOBS = str(Path(__file__).parent.parent / "jobs")
MODELS = str(Path(__file__).parent.parent / "models")
REPLICAS = [
    {"role": "chief"},
    {"role": "worker", "count": RunParam("workers")},
    {"role": "ps", "count": RunParam("ps")},
]
DATA_WORKERS = [
    {"role": "input", "count": RunParam("data_workers")},
]


def one_job(dag_id: str, *, job: dict[str, Any] | None = None, **operator: Any) -> DAG:
    """A job whose chief does what the run's params say, while its workers and ps serve."""
    params = {
        **training_params(strategy="parameter_server"),
        "chief": Param("finish", type="string"),
        "word": Param("hello", type="string"),
    }
    with DAG(dag_id, params=params, schedule=None) as dag:
        arguments = {"chief": RunParam("chief"), "word": RunParam("word"), "run": "{{ run_id }}"}
        JobOperator(
            task_id="job",
            job={
                "module": "small_jobs",
                "code": JOBS,
                "strategy": RunParam("strategy"),
                "replicas": REPLICAS,
                "arguments": arguments,
                **(job or {}),
            },
            **operator,
        )
    return dag


def checked(
    dag_id: str,
    code: str = JOBS,
    source: str = "small_jobs",
    model: str = "small_jobs",
    metric: str = "accuracy",
    **train: Any,
) -> DAG:
    """A check, the tasks of the data, and a training and its gate, which must not start."""
    with DAG(dag_id, params=training_params(shards=2), schedule=None) as dag:
        check = PreflightOperator(task_id="check", dry_run=RunParam("dry_run"))
        described = {"kind": "python", "module": source}
        plan = JobOperator(
            task_id="plan",
            job={
                "module": "aerotrain.data.prepare.plan",
                "code": code,
                "arguments": {"source": described, "shards": RunParam("shards")},
            },
        )
        finalize = JobOperator(
            task_id="finalize",
            job={
                "module": "aerotrain.data.prepare.finalize",
                "code": code,
                "arguments": {"output": XComArg(plan, "output")},
            },
            trigger_rule="none_failed",
        )
        training = JobOperator(
            task_id="train",
            job={
                "module": "aerotrain.training.train",
                "code": code,
                "strategy": RunParam("strategy"),
                "replicas": [*REPLICAS, *DATA_WORKERS],
                "arguments": {"model": model, "data": finalize.output, **train},
            },
        )
        evaluation = JobOperator(
            task_id="evaluate",
            job={
                "module": "aerotrain.evaluation.evaluate",
                "code": code,
                "arguments": {
                    "model": training.output,
                    "data": finalize.output,
                    "gate": [at_least(metric, RunParam("threshold"))],
                },
            },
        )
        check >> plan >> finalize >> training >> evaluation
    return dag


def swept() -> DAG:
    """A model that is trained with several hyperparameters, in each way that Airflow maps."""
    data = "file:///data"
    with DAG("swept", params=training_params(strategy="one_device"), schedule=None) as dag:
        check = PreflightOperator(task_id="check", check_model=False)

        @task
        def choose() -> list[dict[str, Any]]:
            return [{"units": 3}, {"units": 4}]

        @task_group
        def group(hparams: Any) -> None:
            train("small", data, hparams=hparams)

        listed = train.partial("small", data, task_id="listed", hparams={"rate": 7})
        check >> listed.expand(hparams=[{"units": 1}, {"units": 2, "learning_rate": 0.5}])
        train.partial("small", data, task_id="chosen").expand(hparams=choose())
        group.expand(hparams=[{"units": 5}, {"units": 6}])
    return dag


small = one_job("small", outlets=[Asset("greetings")])
with_timeout = one_job("with_timeout", execution_timeout=timedelta(seconds=2))
reusing = one_job(
    "reusing",
    job={"arguments": {"chief": "echo", "word": RunParam("word")}},
    reuse=RunParam("reuse"),
)
skipping = one_job("skipping", skip_key="scratch")
swept_by_hparams = swept()
well_described = checked("well_described")
misspelt_module = checked("misspelt_module", model="smal_jobs")
misspelt_argument = checked("misspelt_argument", eppochs=1)
misspelt_metric = checked(
    "misspelt_metric", code=MODELS, source="text", model="text", metric="acuracy"
)
