"""Classify reviews as positive or negative, by JSON lines of text."""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag

from aerotrain_airflow.params import training_params
from aerotrain_airflow.steps import evaluate, export, prepare, train

LINES = Path(__file__).parent / "data" / "reviews.jsonl"


@dag(
    schedule=None,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=training_params(epochs=10, threshold=0.9),
)
def reviews() -> None:
    lines = prepare(
        {"kind": "jsonl", "url": LINES.as_uri()},
        split_by={"way": "stratified", "column": "label"},
    )
    model = train("reviews", lines)
    evaluate(model, lines) >> export(model, lines)


reviews()
