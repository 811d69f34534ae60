"""Keras callbacks of the user's, called by the chief while the job trains.

They see the model that is trained: what they assign to its optimizer's learning rate, or to
its weights, is what the next step uses. ``on_train_batch_*`` are called once an execution,
which is several steps, and only where a callback has them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from aerotrain.contract.errors import FinalError
from aerotrain.training.model.callback_state import Files, remembered, resumed
from aerotrain.training.model.flavour import KERAS

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")

#: Callbacks of Keras that would do again, in this machine's folder, what the loop does.
_REDUNDANT: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.ModelCheckpoint: "checkpoints are in the store; see checkpoint_interval, keep",
    keras.callbacks.BackupAndRestore: "a training that is started again goes on by itself",
    keras.callbacks.TensorBoard: "its event files are in the store already",
}


class Callbacks:
    """The callbacks of one training, in the order in which the user's module gives them."""

    def __init__(self, module: str, given: Any, model: keras.Model, epochs: int) -> None:
        """Raises FinalError for what is no callback, or one that the loop makes redundant."""
        self.given = _checked(module, given)
        self._model = model
        self._list = keras.callbacks.CallbackList(self.given, model=model)
        self._list.set_params({"verbose": 0, "epochs": epochs, "steps": None})
        self._model.stop_training = False
        self._by_batch = any(_has(each, name) for each in self.given for name in _BATCH_HOOKS)

    @property
    def monitor_validation(self) -> bool:
        """Whether one of them asks for the metrics of the validation split."""
        return any(str(getattr(each, "monitor", "")).startswith("val_") for each in self.given)

    @property
    def by_batch(self) -> bool:
        """Whether one of them is to be called at each execution."""
        return self._by_batch

    @property
    def stop(self) -> bool:
        """Whether one of them has asked for the end of the training."""
        return bool(self._model.stop_training)

    def begin(self, state: Mapping[str, Any], files: Files) -> None:
        """Begin the training, or go on from what ``remember`` gave."""
        with resumed(self.given, state.get("callbacks", []), files):
            self._list.on_train_begin()
        self._model.stop_training = bool(state.get("stopped"))

    def epoch_begins(self, epoch: int) -> None:
        self._list.on_epoch_begin(epoch)

    def execution(self, first: int, last: int, logs: Mapping[str, float]) -> None:
        """The steps ``first`` to ``last`` of the epoch, from 0, are done."""
        self._list.on_train_batch_begin(first)
        self._list.on_train_batch_end(last, logs)

    def epoch_ends(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._list.on_epoch_end(epoch, dict(logs))

    def end(self, logs: Mapping[str, float]) -> None:
        self._list.on_train_end(dict(logs))

    def remember(self) -> tuple[dict[str, Any], Files]:
        """What a checkpoint keeps: JSON, and files by name."""
        callbacks, files = remembered(self.given)
        return {"callbacks": callbacks, "stopped": self.stop}, files

    def logs(self) -> list[Path]:
        """The files in which callbacks of Keras's have logged, in this machine's folder."""
        loggers = [each for each in self.given if isinstance(each, keras.callbacks.CSVLogger)]
        return [path for each in loggers if (path := Path(each.filename)).is_file()]


def _checked(module: str, given: Any) -> list[keras.callbacks.Callback]:
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    if callbacks:
        KERAS.refuse_callbacks(module)
    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise FinalError(
                f"callbacks of {module!r} returned {type(each).__name__}; return a list of "
                "keras.callbacks.Callback"
            )
        for kind, instead in _REDUNDANT.items():
            if isinstance(each, kind):
                raise FinalError(
                    f"callbacks of {module!r} returned {type(each).__name__}, which is not "
                    f"needed here: {instead}. Leave it out"
                )
    return callbacks


def _has(callback: keras.callbacks.Callback, name: str) -> bool:
    """Whether the callback does anything when it is called by that name."""
    function = getattr(getattr(callback, name), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, name)
