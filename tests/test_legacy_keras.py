"""tf_keras: what the loop supports and what it rejects, each in a process of its own.

TF_USE_LEGACY_KERAS chooses the Keras when TensorFlow and the loop are imported, so that they are
forked from a process with tf_keras.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.training.model.code import UserCode
from support.training_fixtures import (
    CHIEF,
    said_of_shared_steps,
    start_python,
    steps_of_replicas,
)

pytestmark = pytest.mark.process

STEPS = 45  # an epoch of 1,249 records has 40 batches of 32; the last one has 1 record


@pytest.fixture(autouse=True)
def _legacy(models, monkeypatch):
    pytest.importorskip("tf_keras", reason="the extra 'legacy' is not installed")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")


def said_by(started):
    """The output of a process that must succeed."""
    with started as process:
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    return said


def jobs_of(digits, strategies, workers=0):
    """A job of each strategy with its options, and how many steps of it to run."""
    replicas = [ReplicaSpec(role=Role.CHIEF), *[ReplicaSpec(role=Role.WORKER)] * workers]
    common = {"model": "legacy", "data": digits.data, "steps_per_execution": 1}
    made = (
        digits.job("train", "legacy", {**common, **more}, strategy=name, replicas=tuple(replicas))
        for name, more in strategies.items()
    )
    return [(job, STEPS) for job in made]


def test_replicas_that_share_a_batch_train_the_same_tf_keras_model_as_one(digits):
    here = {"one_device": {}, "mirrored": {"gradient_accumulation_steps": 2}}
    several = jobs_of(digits, {"multi_worker_mirrored": {}}, workers=1)
    with ThreadPoolExecutor() as pool:
        folder = digits.folder / "legacy"
        one = pool.submit(steps_of_replicas, jobs_of(digits, here), folder / "here", 2)
        other = pool.submit(steps_of_replicas, several, folder / "workers", 1)
        [[alone], mirrored], [workers] = one.result(), other.result()
    for replica in [*mirrored, *workers]:
        assert replica["counter"] == replica["iterations"] == STEPS
        for name in alone:
            np.testing.assert_allclose(
                replica[name], alone[name], rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_losses_weights_and_metrics_are_those_of_fit_of_tf_keras(tmp_path):
    models = [
        "metric_models: statistics of batches, and a schedule",
        "embedding_models: clipped by norm, with weight decay",
        "metric_models: metrics of each output",
        "metric_models: metrics of the model's own call",
    ]
    assert said_of_shared_steps(models, tmp_path) == dict.fromkeys(models, "the same as fit")


PIPELINE = """
import sys
from pathlib import Path
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.training import train
from support.training_fixtures import MODELS, Pipeline
digits = Pipeline(Path(sys.argv[1]), sys.argv[2])
sys.path.insert(0, str(MODELS))
wanted = dict(model="legacy", data=digits.data, hparams={"normalize": True})
first = train.run(digits.replica("train", "keras2", epochs=1, **wanted))
digits.started.append("again")
model = train.run(digits.replica("train", "keras2", epochs=3, validate=True, **wanted))
digits.started.append("more")
given = dict(model=model, data=digits.data)
print(evaluate.run(digits.replica("evaluate", "keras2", thresholds={"accuracy": 0.8}, **given)))
print(export.run(digits.replica("export", "keras2", **given)))
"""


def test_a_tf_keras_model_is_trained_again_evaluated_and_exported(digits, tmp_path):
    said = said_by(start_python(["-c", PIPELINE, str(tmp_path), digits.data], tmp_path))
    assert "resuming from the checkpoint of step 40" in said
    assert "val_accuracy=" in said
    assert "without Keras, both signatures give the same predictions" in said
    assert "published as version 1" in said


def test_parameter_servers_train_a_tf_keras_model(digits):
    with digits.cluster("keras2-ps", model="legacy", epochs=3) as processes:
        said = processes[str(CHIEF)].communicate(timeout=200)[0]
        assert processes[str(CHIEF)].returncode == 0, said
    assert "the checkpoint of step 120 is in the store" in said
    [epoch] = [line for line in said.splitlines() if line.startswith("epoch 3 of 3")]
    assert float(epoch.partition("accuracy=")[2].split()[0]) > 0.8


REFUSALS = """
import keras, tf_keras
import tensorflow as tf
from functools import partial
from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.training.model.code import UserCode, features_and_label
from aerotrain.training.model.callbacks import Callbacks
from aerotrain.training.model.keras_adapter import KERAS

class Own(tf_keras.Sequential):
    def train_step(self, data):
        return {}

class Measuring(tf_keras.Sequential):
    def compute_metrics(self, x, y, y_pred, sample_weight):
        return {}

class Listing(tf_keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="listing")
        self.counts = [self.add_weight(name="count", initializer="zeros")]
    def update_state(self, y, y_pred, sample_weight=None):
        self.counts[0].assign_add(1.0)
    def result(self):
        return self.counts[0]

def compiled(kind=tf_keras.Sequential, optimizer="sgd", metrics=(), library=tf_keras):
    model = kind([library.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=list(metrics))
    return model

def train(model):
    spec = (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)))
    built = UserCode("mine", lambda _: model, features_and_label).build({}, spec)
    KERAS.step(built, tf.Variable(0, dtype=tf.int64), spec)

arguments = partial(TrainArguments, model="m", data="d")

def scaling():
    return tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD())

for refused in (
    lambda: train(compiled(Own)),
    lambda: train(compiled(Measuring)),
    lambda: train(compiled(metrics=[Listing()])),
    lambda: train(compiled(optimizer=tf_keras.optimizers.legacy.SGD())),
    lambda: train(compiled(optimizer=scaling())),
    lambda: train(compiled(keras.Sequential, library=keras)),
    lambda: Callbacks("mine", [tf_keras.callbacks.History()], compiled(), 1),
    lambda: KERAS.check_supported("dtensor", arguments()),
    lambda: KERAS.check_supported("one_device", arguments(jit_compile=True)),
    lambda: KERAS.check_supported("mirrored", arguments(synchronized_batch_norm=True)),
):
    try:
        refused()
    except FinalError as error:
        print("refused:", error)
    else:
        print("refused: nothing")
"""


def test_unsupported_features_of_tf_keras_are_refused_with_an_alternative(tmp_path):
    lines = said_by(start_python(["-c", REFUSALS], tmp_path)).splitlines()
    for line, words in zip(
        [line for line in lines if line.startswith("refused: ")],
        (
            "Own has a train_step of its own",
            "Measuring has a compute_metrics of its own",
            "the metric 'listing' of Listing keeps its variables in a list",
            "none of tf_keras.optimizers.legacy",
            "use mixed_bfloat16",
            "return a tf_keras.Model, or leave TF_USE_LEGACY_KERAS out",
            "callbacks of 'mine' returned some",
            "strategy 'dtensor' trains no tf_keras models",
            "jit_compile is for Keras 3 models only",
            "synchronized_batch_norm is for Keras 3 models only",
        ),
        strict=True,
    ):
        assert words in line


def test_without_the_variable_a_tf_keras_model_is_refused_with_a_solution():
    model = type("Model", (), {"__module__": "tf_keras.src.engine.training"})()
    with pytest.raises(FinalError, match="give the replicas TF_USE_LEGACY_KERAS=1 in their"):
        UserCode("mine", lambda _: model, None).build({}, None)
