"""Sentences of synthetic words; the embedding is nearly all of the network: 3,200,000 weights."""

import numpy as np

WORDS = 100_000
LENGTH = 64
PARTS = 4
RECORDS_IN_PART = 8_000


def list_parts():
    return [{"seed": seed} for seed in range(PARTS)]


def read_part(part):
    """Sentences with realistically uneven word frequencies; the label is the majority parity."""
    random = np.random.default_rng(part["seed"])
    for row in range(RECORDS_IN_PART):
        words = np.minimum(random.zipf(1.2, LENGTH), WORDS - 1).astype(np.int32)
        label = np.int64(np.mean(words % 2) > 0.5)
        yield f"{part['seed']}-{row:05d}", {"words": words, "label": label}


def transform(features):
    return features["words"], features["label"]


def build_model(hparams):
    import tensorflow as tf

    keras = tf.keras  # Keras 3, or tf_keras where TF_USE_LEGACY_KERAS says so
    embedding = keras.layers.Embedding
    if hparams.get("sharded") and keras.__version__ >= "3":
        from aerotrain.layers import ShardedEmbedding

        embedding = ShardedEmbedding
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            embedding(WORDS, 32),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.001),
        loss,
        steps_per_execution=hparams.get("steps_per_execution", 1),  # read by `fit` alone
    )
    return model
