"""Classify flats as expensive or cheap, by a table in Parquet with missing values.

The table is a file next to this one, so that the pipeline runs on any machine. Pods cannot read it:
they need the URL of a table in a bucket, such as `"s3://bucket/flats/dt={{ ds }}/"`. Numbers are
scaled by the statistics that `prepare` computes, which are also part of the exported model. A model
is promoted if it is good enough, and not worse than the served one, for all flats and for each
town. The DAG `flats_predictions` starts then.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import Asset, dag

from aerotrain_airflow.params import RunParam, training_params
from aerotrain_airflow.steps import at_least, evaluate, export, no_worse, prepare, promote, train

TABLE = Path(__file__).parent / "data" / "flats.parquet"


@dag(
    schedule=None,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=training_params(epochs=20, threshold=0.8),
)
def flats() -> None:
    table = prepare({"kind": "parquet", "url": TABLE.as_uri()}, key=["flat"])
    model = train("flats", table)
    gate = [
        at_least("accuracy", RunParam("threshold")),
        no_worse("accuracy", slices=["town"], least=50),
    ]
    metrics = evaluate(model, table, gate=gate, first_run="accept")
    version = export(model, table)
    metrics >> version
    promote(version, metrics=metrics, outlets=[Asset("flats-model")])


flats()
