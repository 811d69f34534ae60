"""Reviews: a network of hashed words, so that unknown words also have a number."""

from collections.abc import Mapping
from typing import Any

LENGTH = 12
BUCKETS = 1000


def transform(features: Mapping[str, Any]) -> tuple[Any, Any]:
    """Word numbers as ``(batch, LENGTH)`` int64, 0 after the end of a line, and labels."""
    import tensorflow as tf

    words = tf.strings.split(tf.strings.lower(features["line"], "utf-8"))
    ids = tf.strings.to_hash_bucket_fast(words, BUCKETS - 1) + 1
    return ids.to_tensor(shape=[None, LENGTH]), features["label"]


def build_model(hparams: Mapping[str, Any]) -> Any:
    """The mean of the words' embeddings; ``hparams`` may have a ``learning_rate``."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Embedding(BUCKETS, 8, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(20 * hparams.get("learning_rate", 0.001)),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
    return model
