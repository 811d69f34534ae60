"""Models with embeddings, for ``shared_steps.py``: ids repeat within and across replicas."""

import os

import numpy as np

from aerotrain.layers import ShardedEmbedding

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras

_draw = np.random.default_rng(5)
IDS, LENGTH = 40, 10
#: Most ids are among the first few.
_ids = np.minimum(_draw.geometric(0.2, (128, LENGTH)), IDS - 1).astype(np.int32)
DATA = (_ids, _ids.mean(axis=1, keepdims=True).astype(np.float32))


def compiled(model, optimizer):
    model.compile(optimizer, "mse")
    return model


def one(optimizer, dim=8, **options):
    return pooled(keras.layers.Embedding(IDS, dim, **options), optimizer)


def pooled(table, optimizer):
    layers = [table, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    return compiled(keras.Sequential(layers), optimizer)


def several(optimizer):
    ids = keras.Input((LENGTH,), dtype="int32")
    rows = [keras.layers.Flatten()(keras.layers.Embedding(IDS, dim)(ids)) for dim in (4, 8, 4, 3)]
    joined = keras.layers.Concatenate()(rows)
    return compiled(keras.Model(ids, keras.layers.Dense(1)(joined)), optimizer)


def used_twice(optimizer):
    ids = keras.Input((LENGTH,), dtype="int32")
    table = keras.layers.Embedding(IDS, 8)
    parts = [keras.layers.Flatten()(table(each)) for each in (ids[:, :4], ids[:, 2:])]
    joined = keras.layers.Concatenate()(parts)
    return compiled(keras.Model(ids, keras.layers.Dense(1)(joined)), optimizer)


def sharded(optimizer):
    """Each batch looks up a different number of rows in each shard."""
    return pooled(ShardedEmbedding(IDS, 8, shards=3), optimizer)


optimizers = keras.optimizers

MODELS = {
    # Its slices need a large message.
    "a large table": lambda: one(optimizers.Adam(0.05), dim=2**12),
    "clipped by norm, with weight decay": lambda: one(
        optimizers.AdamW(0.05, weight_decay=0.1, clipnorm=0.01)
    ),
    "clipped by the global norm": lambda: several(optimizers.SGD(0.1, global_clipnorm=0.01)),
    "accumulated by the loop": lambda: several(optimizers.Adam(0.05)),
    "a regularizer": lambda: one(optimizers.Adam(0.05), embeddings_regularizer="l2"),
    "a table used twice": lambda: used_twice(optimizers.Adam(0.05)),
    "a table in shards": lambda: sharded(optimizers.Adam(0.05)),
    "compiled by XLA": lambda: one(optimizers.Adam(0.05)),
}

OPTIONS = {
    "accumulated by the loop": {"gradient_accumulation_steps": 2},
    "compiled by XLA": {"jit_compile": True},
}
