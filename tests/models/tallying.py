"""The model ``small``, which also counts the examples of an epoch and adds up their labels.

With the hyperparameter ``noise`` a callback changes the model by random numbers.
"""

import random

import keras
import numpy as np
import small
import tensorflow as tf

transform = small.transform


class Tally(keras.metrics.Metric):
    """The sum of 1000 and its label over all examples: every record changes it."""

    def __init__(self, name="tally"):
        super().__init__(name=name)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, _y_pred, sample_weight=None):
        marks = tf.cast(tf.reshape(y_true, [-1]), tf.float32) + 1000
        self.total.assign_add(tf.reduce_sum(marks))

    def result(self):
        return self.total.value


def build_model(hparams):
    model = small.build_model(hparams)
    model.compile(model.optimizer, model.loss, metrics=["accuracy", Tally()])
    return model


class Noise(keras.callbacks.Callback):
    """Adds noise to the last bias after each execution, from Python's and NumPy's generators."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def on_train_batch_end(self, batch, logs=None):
        bias = self.model.layers[-1].bias
        drawn = np.random.normal(random.gauss(), size=bias.shape)
        bias.assign_add(self.scale * drawn)


def callbacks(hparams):
    return [Noise(hparams["noise"])] if "noise" in hparams else []
