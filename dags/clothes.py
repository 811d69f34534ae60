"""Classify ten kinds of clothes, by images.

The images are those of Fashion-MNIST if Debian's package `dataset-fashion-mnist` is installed, or
drawn shapes otherwise. The module `models/clothes.py` reads them. A model is exported if it is good
enough, and not worse than the exported one, for all images and for each kind.
"""

from datetime import timedelta

from airflow.sdk import dag

from aerotrain_airflow.params import RunParam, training_params
from aerotrain_airflow.steps import at_least, evaluate, export, no_worse, prepare, train


@dag(
    schedule=None,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["aerotrain"],
    params=training_params(epochs=2, batch_size=64, threshold=0.6),
)
def clothes() -> None:
    images = prepare("clothes")
    model = train("clothes", images)
    gate = [
        at_least("accuracy", RunParam("threshold")),
        no_worse("accuracy", slices=["label"], least=50),
    ]
    evaluate(model, images, gate=gate, first_run="accept") >> export(model, images)


clothes()
