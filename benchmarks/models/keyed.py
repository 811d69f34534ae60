"""Records with a key each, and a model that counts how often it was trained on each of them.

Its loss is the sum of the weights of the batch's keys, so that a step of SGD takes 1 from each. The
hyperparameter ``pause`` is for how many seconds it waits after each epoch.
"""

import sys
import time
from pathlib import Path

import numpy as np

KEYS = 6400


def list_parts():
    return [{"first": first} for first in range(0, KEYS, KEYS // 4)]


def read_part(part):
    for key in range(part["first"], part["first"] + KEYS // 4):
        yield str(key), {"key": np.int64(key)}


def transform(features):
    import tensorflow as tf

    return features["key"], tf.zeros_like(features["key"], tf.float32)


def build_model(hparams):
    import keras

    class Total(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return y_pred[:, 0]

    model = keras.Sequential([keras.layers.Embedding(KEYS, 1, "zeros")])
    model.build((None,))
    model.compile(keras.optimizers.SGD(1.0), Total(reduction="sum"))
    return model


def callbacks(hparams):
    import keras

    class Counts(keras.callbacks.Callback):
        """Prints how many keys were trained more or less often than there were epochs.

        Training stops once there is the file ``stop_file``, if hparams have it.
        """

        def on_epoch_end(self, epoch, logs=None):
            counts = -self.model.layers[0].embeddings.numpy()[:, 0].round().astype(int)
            [lost] = np.nonzero(counts < epoch + 1)
            [twice] = np.nonzero(counts > epoch + 1)
            print(f"counted: epoch {epoch + 1}, {len(lost)} lost, {len(twice)} twice")
            sys.stdout.flush()
            time.sleep(hparams.get("pause", 0))
            if Path(hparams.get("stop_file", "")).is_file():
                self.model.stop_training = True

    return [Counts()]
