"""Flats: a small network of scaled numbers and one-hot towns."""

from collections.abc import Mapping
from typing import Any

NUMBERS = ("rooms", "area", "built")


def transform(features: Mapping[str, Any], statistics: Mapping[str, Any]) -> tuple[Any, Any]:
    """Features as ``(batch, columns)`` float32, and labels.

    Numbers have mean 0 and standard deviation 1, and are 0 if missing; each town is a column.
    """
    import tensorflow as tf

    columns = []
    for name in NUMBERS:
        value = tf.cast(features[name], tf.float32)
        scaled = (value - statistics[name]["mean"]) / max(statistics[name]["std"], 1e-6)
        columns.append(tf.where(tf.math.is_nan(scaled), 0.0, scaled))
    columns.append(tf.cast(features["lift"], tf.float32))
    for town in sorted(statistics["town"]["vocabulary"]):
        columns.append(tf.cast(features["town"] == town, tf.float32))
    return tf.stack(columns, axis=1), features["label"]


def build_model(hparams: Mapping[str, Any]) -> Any:
    """Two dense layers; ``hparams`` may have a ``learning_rate``."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(10 * hparams.get("learning_rate", 0.001)),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
    return model
