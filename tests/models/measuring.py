"""A small model whose metrics have no names of their own, one a class, or several names."""

import keras
import tensorflow as tf
from calling import callbacks  # noqa: F401 -- it is this module's too


class Split(keras.metrics.Metric):
    """A metric whose result is several numbers by name."""

    def __init__(self):
        super().__init__()
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign(self.total + keras.ops.sum(y_pred * y))
        self.count.assign(self.count + keras.ops.sum(y))

    def result(self):
        right = self.total / keras.ops.maximum(self.count, 1.0)
        return {"right": right, "wrong": 1.0 - right}


class Largest(keras.metrics.Metric):
    """The largest output: a metric that is not a sum."""

    def __init__(self):
        super().__init__()
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(y_pred)))

    def result(self):
        # A number of now: fit would read a variable only when validation has changed it.
        return 1.0 * self.most


class Seen(keras.Model):
    """Measures its own outputs while it is called."""

    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10, activation="softmax")
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        outputs = self.dense(self.flatten(x))
        self.seen.update_state(keras.ops.max(outputs, axis=1))
        return outputs


def build_model(_hparams):
    model = Seen()
    metrics = [keras.metrics.AUC(), keras.metrics.F1Score(), Split(), Largest()]
    model.compile(keras.optimizers.SGD(0.05), "categorical_crossentropy", metrics=metrics)
    return model


def transform(features):
    return tf.cast(features["image"], tf.float32) / 16, tf.one_hot(features["label"], 10)
