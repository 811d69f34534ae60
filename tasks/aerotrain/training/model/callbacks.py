"""Keras callbacks of the user's, called by the chief while the job trains.

They see the model that is trained: what they assign to its optimizer's learning rate, or to
its weights, is what the next step uses. ``on_train_batch_*`` are called once an execution,
which is several steps, and only where a callback has them.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import keras

from aerotrain.contract.errors import FinalError
from aerotrain.contract.strategy import nearest
from aerotrain.training.model.callback_state import Files, remembered, resumed
from aerotrain.training.model.keras_adapter import KERAS

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")

#: Callbacks of Keras that would do again, in this machine's folder, what the loop does.
_REDUNDANT: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.ModelCheckpoint: "checkpoints are in the store; see checkpoint_interval, keep",
    keras.callbacks.BackupAndRestore: "a training that is started again goes on by itself",
    keras.callbacks.TensorBoard: "its event files are in the store already",
}


#: Callbacks of Keras that log the rate.
_RATES = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class Callbacks:
    """The callbacks of one training, in the order in which the user's module gives them."""

    def __init__(self, module: str, given: Any, model: keras.Model, epochs: int) -> None:
        """Raises FinalError for what is no callback, or one that the loop makes redundant."""
        self.given = _checked(module, given)
        self._module = module
        self._model = model
        self._list = keras.callbacks.CallbackList(self.given, model=model)
        self._list.set_params({"verbose": 0, "epochs": epochs, "steps": None})
        self._model.stop_training = False
        self._by_batch = any(_has(each, name) for each in self.given for name in _BATCH_HOOKS)

    @property
    def monitor_validation(self) -> bool:
        """Whether one of them asks for the metrics of the validation split."""
        return any(name.startswith("val_") for name in self.monitored)

    @property
    def monitored(self) -> list[str]:
        """The names of metrics that they ask for."""
        names = [getattr(each, "monitor", None) for each in self.given]
        return [name for name in names if isinstance(name, str)]

    def refuse_unlogged(self, logged: Sequence[str], measured: Sequence[str] | None) -> None:
        """Refuse a callback that monitors what is never logged, and so would never act.

        ``logged`` is what training logs, ``measured`` what is measured of the validation split,
        if that is known. What a callback of the user's own may add to the logs is not known
        either: those behind it, and itself, are warned of.

        Raises:
            FinalError: one does; the message holds what is logged, the nearest first.
        """
        names = [*logged, *(f"val_{name}" for name in measured or ())]
        may_add = False
        for each in self.given:
            may_add |= not each.on_epoch_end.__module__.startswith("keras.")
            if isinstance(each, _RATES):
                names.append("learning_rate")
            name = getattr(each, "monitor", None)
            if not isinstance(name, str) or name in names:
                continue
            if measured is None and name.startswith("val_"):
                continue
            message = (
                f"{type(each).__name__} of callbacks of {self._module!r} monitors {name!r}, which "
                f"is not logged{nearest(name, names)}; what is: {_by_nearness(name, names)}"
            )
            if not may_add:
                raise FinalError(message)
            print(f"warning: {message}, unless a callback adds it", flush=True)

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


def _by_nearness(name: str, names: Sequence[str]) -> str:
    return ", ".join(get_close_matches(name, names, n=len(names), cutoff=0.0))


def _checked(module: str, given: Any) -> list[keras.callbacks.Callback]:
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    if callbacks:
        KERAS.check_callbacks(module)
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
