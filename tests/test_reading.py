"""A notebook reads what a pipeline has written: ``aerotrain.read``."""

import sys
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import aerotrain
from aerotrain.contract.errors import FinalError
from aerotrain.evaluation import evaluate
from aerotrain.prediction import finalize, partition, plan
from aerotrain.reading import Pipeline
from aerotrain.serving import export
from aerotrain.serving.alias import promote
from aerotrain.store import open_store
from support import training_fixtures

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def written(prepared_digits: training_fixtures.Pipeline, trained: str) -> str:
    """The URL of the store of a run with every step, two versions and predictions."""
    given = {"model": trained, "data": prepared_digits.data}
    evaluate.run(prepared_digits.replica("evaluate", "trained", **given))
    versions = [
        export.run(prepared_digits.replica("export", run, **given)) for run in ("trained", "again")
    ]
    promote(
        open_store(f"{prepared_digits.store}/serving"),
        int(versions[0].rpartition("/")[2]),
        by="ann",
        reason="first",
    )
    rules = {"source": {"kind": "python", "module": "digits"}, "keep": ["label"]}
    planned = plan.run(prepared_digits.replica("prediction.plan", "p", model="serving", **rules))
    for each in planned["partitions"]:
        partition.run(prepared_digits.replica("prediction.partition", "p", **each))
    arguments = {"output": planned["output"]}
    finalize.run(prepared_digits.replica("prediction.finalize", "p", **arguments))
    return prepared_digits.store


@pytest.fixture
def read(written: str, store_url: str) -> Callable[[], Pipeline]:
    """Reads a copy of it, in a folder and in a bucket."""
    source, target = open_store(written), open_store(f"{store_url}/digits")
    for each in source.list():
        target.put(each.key, source.get(each.key))
    return lambda: aerotrain.read(target.url)


def test_a_notebook_has_runs_data_metrics_predictions_and_the_served_model(
    read: Callable[[], Pipeline],
) -> None:
    digits = read()
    run = digits.run("trained")
    assert run.name in [each.name for each in digits.runs()]
    metrics = run.metrics["evaluate"]
    assert metrics["accuracy"] > 0.9
    epochs = run.curves().dropna(subset="epoch")
    assert len(epochs) == 6
    assert epochs["loss"].iloc[-1] < epochs["loss"].iloc[0]

    [data] = digits.datasets()
    count = data.manifest["splits"]["test"]["records"]
    table = data.pandas("test")
    assert len(table) == count
    assert table["image"][0].shape == (8, 8)
    assert len(data.pandas("test", records=5)) == 5
    batches = data.tf_data("test", batch_size=100)
    assert len(batches) == -(-count // 100)
    labels = np.concatenate([each["label"] for each in batches.as_numpy_iterator()])
    assert labels.tolist() == table["label"].tolist()

    served, newest = digits.model(), digits.versions()[0]
    assert served.is_served
    assert (served.name, newest.name, newest.is_served) == ("1", "2", False)
    assert (served.metrics, newest.metrics) == (metrics, {})
    assert digits.store.exists(served.evaluation["card"])
    alias = digits.alias()
    assert alias is not None
    assert (alias.history[0].by, alias.history[0].reason) == ("ann", "first")

    [predictions] = digits.predictions()
    rows = predictions.pandas()
    assert len(rows) == predictions.manifest["records"]
    right = np.stack(rows["predictions"]).argmax(axis=1) == rows["label"]
    assert right.mean() > 0.5
    predict = served.load().signatures["serving_default"]
    images = np.stack(table["image"][:8])
    found = predict(image=tf.constant(images))["predictions"].numpy().argmax(axis=1)
    assert (found == table["label"][:8]).mean() > 0.5


def test_what_is_not_there_is_named_with_what_is(
    read: Callable[[], Pipeline], store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = read()
    with pytest.raises(FinalError, match="not the store of a pipeline; it has digits: add one"):
        aerotrain.read(store_url)
    with pytest.raises(FinalError, match="no run 'traned', did you mean 'trained'"):
        digits.run("traned")
    with pytest.raises(FinalError, match="no version 9; it has 2, 1"):
        digits.model(9)
    with pytest.raises(FinalError, match="no curves of 'evaluate'; it has: train"):
        digits.run("trained").curves("evaluate")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FinalError, match="need the package pandas: install it, or the extra"):
        digits.run("trained").curves()
