"""Fashion-MNIST, as Debian packages it, and two small networks that read it."""

import gzip
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
IMAGES, LABELS = (FOLDER / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
RECORDS = 60_000
PARTS = 4
HEADERS = {IMAGES: 16, LABELS: 8}  # bytes of the header, http://yann.lecun.com/exdb/mnist/


def list_parts():
    edges = range(0, RECORDS + 1, RECORDS // PARTS)
    return [{"first": first, "last": first + RECORDS // PARTS} for first in edges[:-1]]


def read_part(part):
    images = _bytes(IMAGES).reshape(RECORDS, 28, 28)
    labels = _bytes(LABELS)
    for row in range(part["first"], part["last"]):
        yield f"{row:05d}", {"image": images[row], "label": np.int64(labels[row])}


def _bytes(file):
    return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8)[HEADERS[file] :]


def transform(features):
    import tensorflow as tf

    return tf.cast(features["image"], tf.float32)[..., tf.newaxis] / 255, features["label"]


def build_model(hparams):
    import tensorflow as tf

    # Keras 3, or tf_keras where TF_USE_LEGACY_KERAS says so: both sides of a comparison run this.
    keras = tf.keras
    layers = [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu")]
    if hparams.get("convolutions"):
        layers = [
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            *layers,
        ]
    model = keras.Sequential([keras.Input((28, 28, 1)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.001),
        loss,
        metrics=["accuracy"],
        steps_per_execution=hparams.get("steps_per_execution", 1),  # read by `fit` alone
    )
    return model
