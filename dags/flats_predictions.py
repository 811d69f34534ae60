"""Predict the class of each flat of a table, by the model that the DAG `flats` serves.

It starts whenever that DAG promotes a model, which updates the asset `flats-model`. The predictions
are Parquet files with the flat's number and town. The task `finalize` returns their URL.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import Asset, dag

from aerotrain_airflow.params import prediction_params
from aerotrain_airflow.steps import predict

TABLE = Path(__file__).parent / "data" / "flats.parquet"


@dag(
    schedule=[Asset("flats-model")],
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=prediction_params(),
)
def flats_predictions() -> None:
    table = {"kind": "parquet", "url": TABLE.as_uri()}
    predict("serving", table, dag_id="flats", keep=["flat", "town"])


flats_predictions()
