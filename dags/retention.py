"""Remove what is old from the store every night: runs, versions, data sets, predictions and others.

It removes nothing until you turn it on. A run with `dry_run` lists in its log what would go, by
kind and oldest first, with its bytes, and why all else is kept. What is served, what rollbacks
would serve, what a running job uses, the newest data set, and what a kept run or version was made
of are kept at any age.
"""

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, Param, dag

from aerotrain_airflow.params import RunParam, retention_params
from aerotrain_airflow.steps.retention import RetentionOperator

_FORM = {"section": "Run Parameters"}


@dag(
    # Every night, the first time in the night after it is turned on: see digits.py.
    schedule=CronTriggerTimetable("0 3 * * *", timezone="UTC", run_immediately=timedelta(0)),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params={
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="List what would be removed, and remove nothing.",
            **_FORM,
        ),
        "pipeline": Param(
            None,
            type=["null", "string"],
            title="Pipeline",
            description="Id of one DAG. Empty: all pipelines of the store.",
            **_FORM,
        ),
        **retention_params(),
    },
)
def retention() -> None:
    RetentionOperator(
        task_id="remove",
        policy={name: RunParam(name) for name in retention_params()},
        pipeline=RunParam("pipeline"),
        dry_run=RunParam("dry_run"),
    )


retention()
