"""A model of which a step changes each weight by the share of examples that kept its unit."""

import keras
import tensorflow as tf


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="zeros", name="scale")

    def call(self, x):
        return keras.ops.sum(x * self.scale, axis=-1, keepdims=True)


def first_output(_y, y_pred):
    return y_pred[:, 0]


def build_model(_hparams):
    model = keras.Sequential([keras.layers.Dropout(0.5), Scale()])
    model.compile(keras.optimizers.SGD(0.5), first_output)
    return model


def transform(features):
    return tf.ones([tf.shape(features["label"])[0], 64]), features["label"]
