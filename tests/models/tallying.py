"""The model ``small``, which also counts the examples of an epoch and adds up their labels."""

import keras
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
