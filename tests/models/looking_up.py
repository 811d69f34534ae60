"""A model that looks its pixels up in a table; each image looks up the same few rows repeatedly."""

import keras
import tensorflow as tf


def build_model(_hparams):
    model = keras.Sequential(
        [
            keras.layers.Embedding(17, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01, clipnorm=0.5, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def transform(features):
    return tf.cast(features["image"], tf.int32), features["label"]
