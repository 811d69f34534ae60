"""Train day by day on a table of flats that grows, and predict with each model that is promoted.

The table has a folder for each day, as `dt=2026-11-23/`, in `incoming/flats` of the store of all
pipelines. When new files land there, `flats_daily` trains the served model further on their days,
compares it with the served one, and promotes it, which starts `flats_daily_predictions`. A run with
a logical date reads the folder of that day: each night that of the day before, and in a backfill.
It fails if there is none. A run that has not ended after two hours is reported.

    .venv/bin/python -m devtools.days s3://aerotrain/incoming/flats 2026-11-01 2026-11-30
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import (
    Asset,
    AssetOrTimeSchedule,
    AssetWatcher,
    AsyncCallback,
    CronDataIntervalTimetable,
    DeadlineAlert,
    DeadlineReference,
    dag,
)

from aerotrain_airflow.dates import FoldersOfRun
from aerotrain_airflow.params import prediction_params, training_params
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.steps import evaluate, export, no_worse, predict, prepare, promote, train
from aerotrain_airflow.steps.late_runs import report_failure, report_late
from aerotrain_airflow.steps.new_files import NewFiles

TABLE = f"{Settings.read().store}/incoming/flats"
NEW = Asset("flats-incoming", watchers=[AssetWatcher("flats-files", trigger=NewFiles(TABLE))])
MODEL = Asset("flats-daily-model")
#: Airflow backfills only a DAG that also has a schedule by time.
NIGHTLY = CronDataIntervalTimetable("@daily", timezone="UTC")
EXAMPLE = {
    "default_args": {
        "retries": 2,
        "retry_delay": timedelta(seconds=10),
        "on_failure_callback": report_failure,
    },
    "doc_md": __doc__,
    "tags": ["aerotrain"],
}


@dag(
    schedule=AssetOrTimeSchedule(timetable=NIGHTLY, assets=[NEW]),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # each starts from the model of the one before; a backfill has its own limit
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(hours=2),
        callback=AsyncCallback(report_late),
    ),
    params=training_params(epochs=10),
    **EXAMPLE,
)
def flats_daily() -> None:
    folders = FoldersOfRun(TABLE, "dt={{ ds }}")
    # The gate needs 100 records to compare two models, of the 400 of a day.
    shares = {"train": 0.6, "validation": 0.1, "test": 0.3}
    days = prepare({"kind": "parquet", "url": folders}, key=["dt", "flat"], splits=shares)
    model = train("flats", days, start_from="serving")
    metrics = evaluate(model, days, gate=[no_worse("accuracy", by=0.05)], first_run="accept")
    version = export(model, days)
    metrics >> version
    promote(version, metrics=metrics, outlets=[MODEL])


@dag(schedule=[MODEL], params=prediction_params(), **EXAMPLE)
def flats_daily_predictions() -> None:
    predict("serving", {"kind": "parquet", "url": TABLE}, dag_id="flats_daily", keep=["flat", "dt"])


flats_daily()
flats_daily_predictions()
