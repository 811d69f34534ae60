"""A model that looks the pixels of a digit up in a table whose rows are in four shards."""

import keras
import tensorflow as tf

from aerotrain.layers import ShardedEmbedding


def build_model(hparams):
    model = keras.Sequential(
        [
            keras.Input((64,), dtype="int32"),
            ShardedEmbedding(64 * 17, 8, shards=4, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # Read by a test, to find the ps of each shard.
    for variable in model.weights[:4]:
        print(f"shard {variable.path} on {variable.value.device}", flush=True)
    return model


def transform(features):
    pixels = tf.reshape(tf.cast(features["image"], tf.int32), [-1, 64])
    return pixels + 17 * tf.range(64), features["label"]
