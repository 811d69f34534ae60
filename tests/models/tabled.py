"""A model with lookup tables, in its transform and in a layer, that is trained as ``stoppable``."""

import keras
import tensorflow as tf
from stoppable import callbacks  # noqa: F401 -- they are this module's too

LABELS = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
        tf.range(10, dtype=tf.int64), tf.range(9, -1, -1, dtype=tf.int64)
    ),
    default_value=-1,
)


def transform(features):
    return tf.cast(features["image"], tf.int64), LABELS.lookup(features["label"])


def build_model(hparams):
    model = keras.Sequential(
        [
            keras.Input((8, 8), dtype="int64"),
            keras.layers.Flatten(),
            keras.layers.IntegerLookup(vocabulary=list(range(17))),
            keras.layers.Embedding(18, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model
