"""Recognise handwritten digits: from scans to a model that TensorFlow Serving can load.

The data are scikit-learn's *digits*: 1,797 real scans of 8 × 8 pixels. `prepare` shards them
into TFRecords, `train` trains the small network of `models/digits.py` under the strategy that
the run asks for, `evaluate` measures it on scans it never saw, and `export` publishes it, if
it is good enough, under the next version number.

Trigger it from the form, or over REST with any of its params as `conf`.
"""

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, dag

from aerotrain_airflow.params import training_params
from aerotrain_airflow.steps import evaluate, export, prepare, train


@dag(
    # Every Sunday. By default it would also start a run at once when it is turned on within
    # a tenth of the week after one (whatever `run_immediately=False` says in Airflow 3.3).
    schedule=CronTriggerTimetable("0 0 * * 0", timezone="UTC", run_immediately=timedelta(0)),
    catchup=False,
    # Only what another try may mend is tried again, and training goes on where it was.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=training_params(epochs=12, threshold=0.95),
)
def digits() -> None:
    shards = prepare("digits")
    model = train("digits", shards)
    evaluate(model, shards) >> export(model, shards)


digits()
