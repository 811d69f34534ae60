"""Clothes: Fashion-MNIST (Debian's package dataset-fashion-mnist), or else drawn shapes."""

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
PARTS, RECORDS = 2, 2000


def list_parts() -> list[dict[str, Any]]:
    """``PARTS`` parts of ``RECORDS`` training images, drawn ones if Fashion-MNIST is missing."""
    drawn = not FOLDER.is_dir()
    firsts = range(0, PARTS * RECORDS, RECORDS)
    return [{"first": first, "count": RECORDS, "drawn": drawn} for first in firsts]


def read_part(part: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """``image`` (28, 28) uint8, ``label`` int64 0 to 9."""
    first, count = part["first"], part["count"]
    if part["drawn"]:
        for number in range(first, first + count):
            yield f"drawn-{number:05d}", {"image": drawn(number), "label": np.int64(number % 10)}
        return
    images = _rows("train-images-idx3-ubyte.gz", 16 + 784 * first, 784 * count)
    labels = _rows("train-labels-idx1-ubyte.gz", 8 + first, count)
    pairs = zip(images.reshape(count, 28, 28), labels, strict=True)
    for number, (image, label) in enumerate(pairs, first):
        yield f"train-{number:05d}", {"image": image, "label": np.int64(label)}


def _rows(name: str, begin: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with gzip.open(FOLDER / name) as file:
        file.seek(begin)
        return np.frombuffer(file.read(size), np.uint8)


def drawn(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A bar whose height is its class, with noise over it."""
    image = np.random.default_rng(number).integers(0, 60, (28, 28), np.uint8)
    image[: 2 + 2 * (number % 10), 8:20] += 150
    return image


def transform(features: Mapping[str, Any], statistics: Mapping[str, Any]) -> tuple[Any, Any]:
    """Images as ``(batch, 784)`` float32 with mean 0 and standard deviation 1, and labels."""
    import tensorflow as tf

    image = tf.cast(features["image"], tf.float32)
    scaled = (image - statistics["image"]["mean"]) / statistics["image"]["std"]
    return tf.reshape(scaled, [-1, 784]), features["label"]


def build_model(hparams: Mapping[str, Any]) -> Any:
    """Two dense layers; ``hparams`` may have a ``learning_rate``."""
    import keras

    model = keras.Sequential(
        [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile(
        keras.optimizers.Adam(hparams.get("learning_rate", 0.001)),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
