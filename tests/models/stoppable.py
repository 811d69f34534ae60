"""The model ``small``, trained slowly until a file exists.

So a test that injects faults into a training need not guess how many epochs that takes, and the
restarting replicas have enough CPU.
"""

import time
from pathlib import Path

import keras
from small import build_model, transform  # noqa: F401 -- they are this module's too


class StopOnceThere(keras.callbacks.Callback):
    """Ends training with the first epoch at whose end the file exists."""

    def __init__(self, file):
        super().__init__()
        self.file = Path(file)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.25)
        if self.file.exists():
            self.model.stop_training = True


def callbacks(hparams):
    return [StopOnceThere(hparams["stop_file"])]
