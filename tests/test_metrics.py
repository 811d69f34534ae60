"""Metrics have the names and the values that ``fit`` gives them, or are rejected before a step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import load_dataset
from aerotrain.evaluation import evaluate
from aerotrain.training.input.batches import RecordFiles, every_record
from aerotrain.training.input.shards import download
from aerotrain.training.model.callbacks import Callbacks
from aerotrain.training.model.code import UserCode, features_and_label
from aerotrain.training.model.whole_batches import check_sharing
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.steps.state import MetricState, numbers
from aerotrain.training.steps.step import TrainStep
from aerotrain.training.train import run
from support.training_fixtures import input_pipeline_of

pytestmark = pytest.mark.process

STEPS_PER_EPOCH = 40


def built(build, batch):
    return UserCode("here", lambda _: build(), features_and_label).build({}, batch)


@pytest.fixture(scope="module")
def trained(digits):
    """A training that stops after two epochs because of a monitored validation metric."""
    stop = {"monitor": "val_auc", "mode": "max", "min_delta": 9, "patience": 1}
    arguments = {"model": "measuring", "data": digits.data, "epochs": 5}
    hparams = {"callbacks": {"EarlyStopping": stop}}
    return run(digits.replica("train", "measuring", hparams=hparams, **arguments))


@pytest.fixture(scope="module")
def fit(digits):
    """The model and the last logs of ``fit`` on the same batches in two epochs."""
    dataset, user = load_dataset(digits.data), UserCode.load("measuring")
    replica = digits.replica("train", "fit-measuring", model="measuring", data=digits.data)
    feed = input_pipeline_of(replica, dataset, user)
    keras.utils.set_random_seed(0)
    model = user.build({}, feed.spec)
    with feed.caching_shards():
        history = model.fit(
            feed.local(0),
            epochs=2,
            steps_per_epoch=STEPS_PER_EPOCH,
            validation_data=records_of(digits, dataset, user, "validation"),
            verbose=0,
        )
    return model, {name: values[-1] for name, values in history.history.items()}


def records_of(digits, dataset, user, name):
    split = dataset.splits[name]
    files = RecordFiles.of(download(digits.data, split.shards, digits.folder))
    schema, transform = dataset.schema, user.transform
    return every_record(files, schema, transform, records=split.records, batch_size=32)


def test_a_monitored_validation_metric_stops_training(trained):
    assert ModelManifest.load(trained).step == 2 * STEPS_PER_EPOCH


def test_metrics_of_training_and_validation_equal_those_that_fit_logs(trained, fit):
    metrics = ModelManifest.load(trained).metrics
    _, logs = fit
    assert {"auc", "val_auc", "f1_score", "right", "val_wrong", "seen", "largest"} < logs.keys()
    assert metrics == pytest.approx(numbers(logs), rel=1e-3)


def test_an_evaluation_has_the_same_metrics_as_keras(digits, trained, fit):
    replica = digits.replica("evaluate", "measuring", model=trained, data=digits.data)
    measured = evaluate.run(replica)
    model, _ = fit
    user = UserCode.load("measuring")
    batches = records_of(digits, load_dataset(digits.data), user, "test")
    expected = model.evaluate(batches, return_dict=True, verbose=0)
    assert measured == pytest.approx(numbers(expected), rel=1e-3)


def outputs_without_names():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(2)(inputs)])
    metrics = [[keras.metrics.AUC()], ["mae"]]
    model.compile("sgd", ["mse", "mse"], metrics=metrics)
    return model


def test_a_model_that_is_built_again_has_the_same_metric_names():
    batch = (
        tf.TensorSpec([None, 4]),
        (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 2])),
    )
    for _ in range(2):
        names = MetricState(built(outputs_without_names, batch)).names()
        assert {"dense_loss", "dense_auc", "dense_1_mae"} < set(names)


LOGGED = ["loss", "auc"]


def callbacks(*given):
    return Callbacks("m", list(given), keras.Sequential([keras.layers.Dense(1)]), 1)


@pytest.mark.parametrize(
    ("kind", "monitor", "message"),
    [
        (keras.callbacks.EarlyStopping, "val_auc_1", "'val_auc_1', .* did you mean 'val_auc'"),
        (keras.callbacks.ReduceLROnPlateau, "acc", "ReduceLROnPlateau .* monitors 'acc'"),
        (type("Mine", (keras.callbacks.EarlyStopping,), {}), "acc", "Mine of .* monitors 'acc'"),
    ],
)
def test_a_callback_that_monitors_a_name_that_is_never_logged_is_refused(kind, monitor, message):
    with pytest.raises(FinalError, match=message):
        callbacks(kind(monitor)).check_monitored(LOGGED, LOGGED)


def test_a_callback_that_monitors_a_name_that_another_may_add_causes_a_warning(capsys):
    class Adding(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["f1"] = 0.5

    stop = keras.callbacks.EarlyStopping("f1")
    callbacks(Adding(), stop).check_monitored(LOGGED, [])
    assert "warning: EarlyStopping" in capsys.readouterr().out
    with pytest.raises(FinalError, match=r"monitors 'f1'"):
        callbacks(stop, Adding()).check_monitored(LOGGED, [])


class Kept(keras.metrics.Metric):
    """A metric of one number, which ``state`` computes from the previous one and a batch's."""

    def __init__(self, state=lambda old, new: old + new, args=2):
        super().__init__(name="kept")
        self.kept = self.add_weight(name="kept", initializer="zeros")
        self._state, self._args = state, args

    def update_state(self, *given, sample_weight=None):
        if len(given) != self._args:
            raise ValueError("it is given something else")
        self.kept.assign(self._state(self.kept, keras.ops.mean(given[-1])))

    def result(self):
        return self.kept


BATCH = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
_draw = np.random.default_rng(3)
RECORDS = tf.nest.map_structure(
    lambda each: tf.constant(_draw.normal(size=[8, *each.shape[1:]]), tf.float32), BATCH
)


def step_with(*metrics):
    def build():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=list(metrics))
        return model

    return TrainStep(built(build, BATCH), tf.Variable(0, dtype=tf.int64))


NO_SUMS = {
    "a maximum of what is negative": lambda old, new: keras.ops.maximum(old, -new - 0.1),
    "a moving mean": lambda old, new: 0.9 * old + 0.1 * new,
    "the last value": lambda old, new: new,
}


@pytest.mark.parametrize("state", NO_SUMS)
def test_a_metric_whose_state_is_no_sum_is_refused_by_strategies_that_add_states(state):
    step = step_with("mae", Kept(NO_SUMS[state]))
    with pytest.raises(FinalError, match=r"'mirrored' adds up .* the state of kept is no sum"):
        check_sharing("mirrored", step, RECORDS, adds=True, cuts=False)


def test_metrics_whose_states_are_sums_are_accepted(capsys):
    metrics = [keras.metrics.AUC(), keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError()]
    step = step_with("mae", *metrics, Kept())
    check_sharing("mirrored", step, RECORDS, adds=True, cuts=False)
    assert not capsys.readouterr().out


class Measured(keras.layers.Layer):
    """Updates a metric of its own with its inputs."""

    def __init__(self, state):
        super().__init__()
        self.kept = Kept(state, 1)

    def call(self, x):
        self.kept.update_state(x)
        return x


def step_measured(state):
    def build():
        model = keras.Sequential([Measured(state), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    return TrainStep(built(build, BATCH), tf.Variable(0, dtype=tf.int64))


def test_a_metric_of_a_layer_is_checked_too():
    a_sum, a_maximum = map(step_measured, (lambda old, new: old + new, keras.ops.maximum))
    check_sharing("parameter_server", a_sum, RECORDS, adds=True, cuts=False)
    with pytest.raises(FinalError, match="state of kept is no sum"):
        check_sharing("parameter_server", a_maximum, RECORDS, adds=True, cuts=False)
