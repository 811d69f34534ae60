"""Lines of text, from words that are hashed: a word that is new is some number all the same."""

from collections.abc import Mapping
from typing import Any

LENGTH = 12
BUCKETS = 1000


def transform(features: Mapping[str, Any]) -> tuple[Any, Any]:
    """``(batch, LENGTH)`` numbers of words, 0 where a line has ended."""
    import tensorflow as tf

    words = tf.strings.split(tf.strings.lower(features["line"]))
    ids = tf.strings.to_hash_bucket_fast(words, BUCKETS - 1) + 1
    return ids.to_tensor(shape=[None, LENGTH]), features["label"]


def build_model(hparams: Mapping[str, Any]) -> Any:
    """The mean of the words' embeddings; ``hparams`` may hold a ``learning_rate``."""
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
