"""Pipelines of airflow jobs that run as pods, for the tests of the operator."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.preflight import PreflightOperator
from aerotrain_airflow.params import RunParam, training_params

JOBS = str(Path(__file__).parent.parent / "jobs")


def one_job(dag_id: str, **operator: Any) -> DAG:
    """A check, and a job whose chief does what the params say; its worker and ps serve."""
    params = {
        **training_params(launcher="kubernetes"),
        "chief": Param("meet", type="string"),
    }
    with DAG(dag_id, params=params, schedule=None) as dag:
        where = {"launcher": RunParam("launcher"), "dry_run": RunParam("dry_run")}
        check = PreflightOperator(task_id="check", **where)
        job = JobOperator(
            task_id="job",
            job={
                "module": "pod_jobs",
                "code": JOBS,
                "strategy": "parameter_server",
                "replicas": [{"role": role} for role in ("chief", "worker", "ps")],
                "arguments": {"chief": RunParam("chief")},
            },
            **where,
            **operator,
        )
        check >> job
    return dag


pods = one_job("pods")
waiting_pods = one_job("waiting_pods", deferrable=False)
timed_pods = one_job("timed_pods", execution_timeout=timedelta(seconds=4))
