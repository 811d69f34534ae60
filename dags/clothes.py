"""Tell ten kinds of clothes apart: Fashion-MNIST where Debian's package is, else drawn shapes.

Where the images come from, `models/clothes.py` decides; files of any kind need no module.
"""

from datetime import timedelta

from airflow.sdk import dag

from aerotrain_airflow.params import training_params
from aerotrain_airflow.steps import evaluate, export, prepare, train


@dag(
    schedule=None,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=training_params(strategy="one_device", epochs=2, batch_size=64, threshold=0.6),
)
def clothes() -> None:
    images = prepare("clothes")
    model = train("clothes", images)
    evaluate(model, images) >> export(model, images)


clothes()
