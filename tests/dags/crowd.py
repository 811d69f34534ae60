"""A DAG of ten simultaneous jobs, each a pod that runs until its deadline or a user ends it."""

from pathlib import Path

from airflow.sdk import DAG

from aerotrain_airflow.operators.job import JobOperator

JOBS = str(Path(__file__).parent.parent / "jobs")

with DAG("crowd", schedule=None) as crowd:
    for number in range(10):
        JobOperator(
            task_id=f"job_{number}",
            launcher="kubernetes",
            job={
                "module": "pod_jobs",
                "code": JOBS,
                "replicas": [{"role": "chief", "resources": {"cpu": 0.01, "memory": "256Mi"}}],
                "arguments": {"chief": "gather", "crowd": 10},
            },
        )
