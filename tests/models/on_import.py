"""The model ``small``, in a module that creates all that TensorFlow can when it is imported."""

import keras
import tensorflow as tf

COSTS = tf.constant([1.0] * 5 + [2.0] * 5)
SCALE = tf.Variable(16.0, trainable=False)
CLASSES = keras.layers.IntegerLookup(vocabulary=[*range(10)], num_oov_indices=0)
BASE = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(32)])


def weighted(labels, outputs):
    costs = tf.gather(COSTS, tf.cast(labels, tf.int32))
    return costs * keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def build_model(hparams):
    model = keras.Sequential(
        [
            BASE,
            keras.layers.ReLU(),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, kernel_regularizer="l2"),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 20, 0.9)
    model.compile(keras.optimizers.Adam(rate), weighted, metrics=["accuracy"])
    return model


def transform(features):
    return tf.cast(features["image"], tf.float32) / SCALE, CLASSES(features["label"])
