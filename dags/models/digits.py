"""Handwritten digits: the source of the scans, and the network that classifies them.

TensorFlow and Keras are imported in the functions that use them, because preparing the data needs
neither, and their import takes seconds.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

PARTS = 4


def list_parts() -> list[dict[str, Any]]:
    """Row ranges of scikit-learn's file, and its checksum, so that another file has other parts."""
    content = _file().read_bytes()
    rows = gzip.decompress(content).count(b"\n")
    edges = [rows * number // PARTS for number in range(PARTS + 1)]
    return [
        {"first": first, "last": last, "sha256": hashlib.sha256(content).hexdigest()}
        for first, last in pairwise(edges)
    ]


def read_part(part: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The scans of one row range: ``image`` (8, 8) uint8 from 0 to 16, ``label`` int64 0 to 9."""
    with gzip.open(_file().open("rb"), "rt") as lines:
        for row, line in enumerate(islice(lines, part["first"], part["last"]), part["first"]):
            *pixels, label = (int(float(value)) for value in line.split(","))
            image = np.array(pixels, np.uint8).reshape(8, 8)
            yield f"digit-{row:04d}", {"image": image, "label": np.int64(label)}


def _file() -> Path:
    # Only a file of the package is needed; importing it takes seconds.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    return Path(str(file))


def transform(features: Mapping[str, Any]) -> tuple[Any, Any]:
    """Scans as ``(batch, 8, 8, 1)`` float32 from 0 to 1, and their labels."""
    import tensorflow as tf

    image = tf.cast(features["image"], tf.float32) / 16
    return image[..., tf.newaxis], features["label"]


def build_model(hparams: Mapping[str, Any]) -> Any:
    """A small convolutional network; ``hparams`` may have a ``learning_rate``."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(hparams.get("learning_rate", 0.001)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
