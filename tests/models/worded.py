"""A model that reads the pixels of a digit as words, by the vocabulary ``words``."""

import keras
import tensorflow as tf


def build_model(hparams):
    words = hparams["words"]
    model = keras.Sequential(
        [
            keras.Input((64,), dtype="string"),
            keras.layers.StringLookup(vocabulary=words),
            keras.layers.Embedding(len(words) + 1, 4),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(8, activation="relu", dtype=hparams.get("dtype")),
            keras.layers.Dense(hparams.get("classes", 10)),
        ],
        name="worded",
    )
    model.compile(
        keras.optimizers.SGD(hparams["learning_rate"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class Fails(keras.callbacks.Callback):
    """Ends a training before its first step."""

    def on_train_begin(self, logs=None):
        raise RuntimeError("as the test wants it")


def callbacks(hparams):
    return [Fails()] if hparams.get("fails") else []


def transform(features):
    pixels = tf.reshape(tf.cast(features["image"], tf.int32), [-1, 64])
    return tf.strings.as_string(pixels), features["label"]
