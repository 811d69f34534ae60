"""Models of other tasks than image classification, from a user's unchanged module to serving."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import ExitCode
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.standalone import prepare
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run as train
from support.training_fixtures import Pipeline, read_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def pipeline_of(models, digits, tmp_path_factory):
    """A function that prepares a module's data, and returns the pipeline of the following steps."""
    known = {"own_step": digits}

    def prepared(module):
        if module not in known:
            empty = Pipeline(tmp_path_factory.mktemp(module), data="")
            data = prepare(empty.store, empty.folder / "prepare", module)
            known[module] = replace(empty, data=data)
        return known[module]

    return prepared


def measured_and_served(pipeline, model):
    """The metrics of the test split, and the signature of the published SavedModel."""
    common = {"model": model, "data": pipeline.data}
    metrics = evaluate.run(pipeline.replica("evaluate", "measured", **common))
    url = export.run(pipeline.replica("export", "served", **common))
    loaded = tf.saved_model.load(url.removeprefix("file://"))
    return metrics, loaded.signatures["serving_default"]


def test_a_text_classifier_with_an_embedding_trains_on_parameter_servers_and_is_served(pipeline_of):
    pipeline = pipeline_of("text")
    with pipeline.cluster("text", model="text", epochs=16) as processes:
        read_until(processes["chief"], "epoch 16 of 16")
        assert processes["chief"].wait(60) == ExitCode.OK
    result = pipeline.folder / "store/runs/text/train/result.json"
    model = json.loads(result.read_text())["value"]
    assert ModelManifest.load(model).strategy == "parameter_server"
    metrics, served = measured_and_served(pipeline, model)
    assert metrics["accuracy"] > 0.95
    lines = ["The parcel was late and torn", "it was superb", "we found it awful today"]
    given = served(line=tf.constant(lines))["predictions"].numpy().ravel()
    assert list(given > 0.5) == [False, True, False]


def test_a_tabular_model_with_several_inputs_and_two_outputs_is_served(pipeline_of):
    pipeline = pipeline_of("tabular")
    model = train(
        pipeline.replica("train", "tabular", model="tabular", data=pipeline.data, epochs=12)
    )
    metrics, served = measured_and_served(pipeline, model)
    assert metrics["price_mae"] < 0.1
    assert metrics["sold_accuracy"] > 0.95
    given = served(
        city=tf.constant(["Graz", "Lyon"]),
        rooms=tf.constant([4, 4]),
        area=tf.constant([[1.0, 0.0], [1.0, 0.0]]),
    )
    np.testing.assert_allclose(given["price"].numpy().ravel(), [1.5, 2.0], atol=0.15)
    assert list(given["sold"].numpy().ravel() > 0.5) == [False, True]


def test_a_model_with_its_own_train_step_is_evaluated_and_served(pipeline_of):
    pipeline = pipeline_of("own_step")
    model = train(
        pipeline.replica("train", "own-step", model="own_step", data=pipeline.data, epochs=4)
    )
    metrics, served = measured_and_served(pipeline, model)
    assert metrics["accuracy"] > 0.9
    assert served(image=tf.zeros([2, 8, 8], tf.uint8))["predictions"].shape == (2, 10)
