"""A model that consists mostly of one layer of 96 MiB, and says how much memory it took."""

import resource

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


class Peak(keras.callbacks.Callback):
    """Prints the most memory that this process has had in use, when the last step has ended."""

    def on_epoch_end(self, epoch, logs=None):
        print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB", flush=True)


def build_model(hparams):
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(24576, activation="relu", name="wide"),
            keras.layers.Dense(10, kernel_initializer="zeros", name="top"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.0001),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def callbacks(hparams):
    return [Peak()]
