"""The small pipelines in dags/, each from its source to an exported model, in this process."""

from pathlib import Path
from typing import Any

import pytest

from aerotrain import evaluate, export
from aerotrain import train as training
from aerotrain.standalone import prepare
from support.training_fixtures import DIGITS, Pipeline

pytestmark = pytest.mark.process

DATA = DIGITS.parent / "data"


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("module", "source", "rules", "epochs", "threshold"),
    [
        ("clothes", {"kind": "python", "module": "clothes"}, {}, 2, 0.6),
        ("flats", {"kind": "parquet", "url": DATA / "flats.parquet"}, {"key": ["flat"]}, 20, 0.8),
        (
            "reviews",
            {"kind": "jsonl", "url": DATA / "reviews.jsonl"},
            {"split_by": {"way": "stratified", "column": "label"}},
            10,
            0.9,
        ),
    ],
)
def test_a_pipeline_exports_a_model_that_is_good_enough(
    tmp_path: Path,
    module: str,
    source: dict[str, Any],
    rules: dict[str, Any],
    epochs: int,
    threshold: float,
) -> None:
    source = {name: each.as_uri() if name == "url" else each for name, each in source.items()}
    pipeline = Pipeline(tmp_path, data="")
    data = prepare(pipeline.store, tmp_path / "scratch", source, **rules)
    wanted = {"model": module, "data": data, "epochs": epochs, "hparams": {"learning_rate": 1e-3}}
    model = training.run(pipeline.replica("train", "r", **wanted))
    passed = {"model": model, "data": data, "thresholds": {"accuracy": threshold}}
    evaluate.run(pipeline.replica("evaluate", "r", **passed))
    # Export compares the saved model with the trained one, including the statistics.
    assert export.run(pipeline.replica("export", "r", model=model, data=data)).endswith("/1")
