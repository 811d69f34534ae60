"""Classify handwritten digits: from scans to a model that TensorFlow Serving can load.

The data are scikit-learn's *digits*: 1,797 real scans of 8 × 8 pixels. `prepare` writes them as
TFRecord shards, `train` trains the small network of `models/digits.py` under the strategy of the
run, `evaluate` measures it on the test split, and `export` publishes it under the next version
number if its accuracy is at least the threshold.

Trigger it from the form, or over REST with any of its params as `conf`.
"""

from datetime import timedelta

from airflow.sdk import CronTriggerTimetable, dag

from aerotrain_airflow.params import training_params
from aerotrain_airflow.steps import evaluate, export, prepare, train


@dag(
    # Every Sunday. By default Airflow 3.3 also starts a run when the DAG is unpaused within a tenth
    # of a week after Sunday, even with `run_immediately=False`; a timedelta of 0 prevents it.
    schedule=CronTriggerTimetable("0 0 * * 0", timezone="UTC", run_immediately=timedelta(0)),
    catchup=False,
    # Only temporary errors are retried, and training continues from its newest checkpoint.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=training_params(epochs=12, threshold=0.9),
)
def digits() -> None:
    shards = prepare("digits")
    model = train("digits", shards)
    evaluate(model, shards) >> export(model, shards)


digits()
