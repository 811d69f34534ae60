"""Flats: a small network over scaled numbers and the towns that the data set knows."""

from collections.abc import Mapping
from typing import Any

NUMBERS = ("rooms", "area", "built")


def transform(features: Mapping[str, Any], statistics: Mapping[str, Any]) -> tuple[Any, Any]:
    """Numbers with mean 0 and deviation 1, where one is missing the mean, and the town's place."""
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
    """Two layers; ``hparams`` may hold a ``learning_rate``."""
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
