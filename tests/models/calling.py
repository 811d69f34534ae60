"""A small model with the callbacks that ``hparams`` ask for."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too

#: The log of the test's own callback.
TOLD = []


def build_model(hparams):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile(
        keras.optimizers.SGD(hparams.get("learning_rate", 0.05)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class Telling(keras.callbacks.Callback):
    """Keeps what it is called with, and a count that outlives its process."""

    def __init__(self):
        super().__init__()
        self.epochs = 0

    def get_state(self):
        return {"epochs": self.epochs}

    def set_state(self, state):
        self.epochs = state["epochs"]

    def on_train_batch_end(self, batch, logs=None):
        TOLD.append(("batch", batch, logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        TOLD.append(("epoch", epoch, dict(logs)))
        print(f"told of {self.epochs} epochs", flush=True)


def callbacks(hparams):
    return [
        getattr(keras.callbacks, name, globals().get(name))(**options)
        for name, options in hparams.get("callbacks", {}).items()
    ]
