"""The date of a run in templates, and the folders that a run reads."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowFailException
from jinja2 import UndefinedError

from aerotrain_airflow.dates import FoldersOfRun
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.steps import prepare

TABLE = "s3://bucket/sales"


def plan_of(url: Any) -> JobOperator:
    """The first task that reads the source."""
    with DAG("sales", schedule=None) as dag:
        prepare({"kind": "parquet", "url": url}, shards=4, allow_drift=False)
    task = cast(JobOperator, dag.get_task("prepare.plan"))
    task.launcher, task.is_dry_run = None, False
    job = task.job["arguments"]
    task.job = {**task.job, "arguments": {**job, "shards": 4, "allow_drift": False}}
    return task


def context_of(task: JobOperator, date: datetime | None, *folders: list[str]) -> Any:
    """The context of a run with that date, started by events of new files in these folders."""
    dated = {"ds": f"{date:%Y-%m-%d}", "logical_date": date} if date else {}
    payloads = [{"url": TABLE, "count": 1, "folders": each} for each in folders]
    extras: list[dict[str, Any]] = [{"payload": each, "from_trigger": True} for each in payloads]
    return {
        "task": task,
        "dag_run": SimpleNamespace(dag_id="sales", logical_date=date),
        "triggering_asset_events": {
            Asset("sales"): [SimpleNamespace(extra=extra) for extra in extras],
            Asset("by hand"): [SimpleNamespace(extra={})],
        },
        **dated,
    }


def source_of(task: JobOperator, context: Any) -> Any:
    task.render_template_fields(context)
    return task.job["arguments"]["source"]["url"]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("s3://bucket/dt={{ ds }}/", "ds"),
        ("s3://bucket/{{ logical_date.year }}/{{ ts }}", "logical_date"),
        ("s3://bucket/{{ data_interval_start | ds }}/", "data_interval_start"),
        (FoldersOfRun(TABLE, "dt={{ ds }}"), "ds"),
    ],
)
def test_a_run_without_a_date_is_told_what_needs_one(template: Any, name: str) -> None:
    task = plan_of(template)
    with pytest.raises(AirflowFailException, match=rf"{name}.*no logical date.*trigger the DAG"):
        source_of(task, context_of(task, None))


def test_a_template_that_needs_no_date_is_not_blamed_on_it() -> None:
    task = plan_of("s3://bucket/{{ ds | default('all') }}/")
    assert source_of(task, context_of(task, None)) == "s3://bucket/all/"
    task = plan_of("s3://bucket/{{ dss }}/")
    with pytest.raises(UndefinedError, match="'dss' is undefined"):
        source_of(task, context_of(task, datetime(2026, 11, 23, tzinfo=UTC)))


def test_a_run_reads_the_folder_of_its_date_or_those_with_new_files() -> None:
    task = plan_of(folders := FoldersOfRun(TABLE, "dt={{ ds }}"))
    day = datetime(2026, 11, 23, tzinfo=UTC)
    assert folders.resolve(context_of(task, day)) == [f"{TABLE}/dt=2026-11-23/"]
    new = context_of(task, None, ["dt=2026-11-22"], ["dt=2026-11-21", "dt=2026-11-22"])
    assert source_of(task, new) == [f"{TABLE}/dt=2026-11-21/", f"{TABLE}/dt=2026-11-22/"]
    assert folders.resolve(context_of(task, None, [""])) == [f"{TABLE}/"]
