"""Models with metrics of every kind, for ``shared_steps.py``, in Keras 3 or tf_keras."""

import os

import numpy as np
import tensorflow as tf

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras

CLASSES = 3
_draw = np.random.default_rng(5)
_x = _draw.normal(size=(128, 8)).astype(np.float32)
_label = _draw.integers(0, CLASSES, 128)
_weight = _draw.uniform(0.5, 2.0, 128).astype(np.float32)
DATA = (
    _x,
    {"kind": np.eye(CLASSES, dtype=np.float32)[_label], "sum": _x.sum(1, keepdims=True)},
    _weight,
)


class Split(keras.metrics.Metric):
    """A metric whose result is several numbers by name."""

    def __init__(self, name="split"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign(self.total + tf.reduce_sum(tf.cast(y_pred, self.dtype)))
        self.count.assign(self.count + tf.cast(tf.size(y_pred), self.dtype))

    def result(self):
        mean = self.total / tf.maximum(tf.convert_to_tensor(self.count), 1.0)
        return {"split_mean": mean, "split_double": 2.0 * mean}


class Seen(keras.Model):
    """Measures its own outputs while it is called, and so does one of its layers."""

    def __init__(self):
        super().__init__()
        self.hidden = Sized()
        self.kind = keras.layers.Dense(CLASSES, activation="softmax")
        self.sum = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        hidden = self.hidden(x)
        outputs = {"kind": self.kind(hidden), "sum": self.sum(hidden)}
        self.seen.update_state(tf.abs(outputs["sum"]))
        return outputs


class Sized(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(6, activation="relu")
        self.size = keras.metrics.Mean(name="size")

    def call(self, x):
        hidden = self.dense(x)
        self.size.update_state(hidden)
        return hidden


def two_outputs(*layers):
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(6, activation="relu")(inputs)
    for each in layers:
        hidden = each(hidden)
    kind = keras.layers.Dense(CLASSES, activation="softmax", name="kind")(hidden)
    return keras.Model(inputs, {"kind": kind, "sum": keras.layers.Dense(1, name="sum")(hidden)})


def distance(y, y_pred):
    return tf.abs(y - y_pred)


def compiled(model, optimizer=None, **metrics):
    loss = {"kind": keras.losses.CategoricalCrossentropy(name="entropy"), "sum": "mse"}
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    model.compile(optimizer, loss, loss_weights={"kind": 0.3, "sum": 0.7}, **metrics)
    return model


def decaying():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)
    return keras.optimizers.Adam(rate, clipnorm=0.5, weight_decay=0.01)


MODELS = {
    "metrics of each output": lambda: compiled(
        two_outputs(),
        metrics={"kind": ["accuracy", keras.metrics.AUC()], "sum": [distance, "mae"]},
        weighted_metrics={"kind": ["accuracy"], "sum": ["mse"]},
    ),
    "several numbers by name": lambda: compiled(two_outputs(), metrics={"kind": [Split()]}),
    "metrics of the model's own call": lambda: compiled(Seen(), metrics={"sum": ["mae"]}),
    "statistics of batches, and a schedule": lambda: compiled(
        two_outputs(
            keras.layers.BatchNormalization(), keras.layers.Dense(4, kernel_regularizer="l2")
        ),
        decaying(),
        metrics={"kind": ["accuracy"]},
    ),
}

#: Statistics of batches are those of fit on one device only.
OPTIONS = {"statistics of batches, and a schedule": {"strategy": "one_device"}}
