"""The user's Keras callbacks, which the chief calls while the job trains.

They receive the trained model: what they assign to its optimizer's learning rate, or to its
weights, takes effect in the next step. ``on_train_batch_*`` are called once per execution, which is
several steps, and only if a callback defines them.

A checkpoint keeps the state of callbacks: of Keras's, the attributes that determine their
decisions; of a callback of the user's own, what ``get_state()`` returns, which is JSON, and
``set_state(state)`` takes. All other callbacks start over.

Keras's ModelCheckpoint, BackupAndRestore and TensorBoard are left out with a note, because the loop
does the same in the store.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import keras
import numpy as np

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.training.internals import keras3
from aerotrain.training.model.keras_adapter import KERAS

#: Content by file name.
Files = Mapping[str, bytes]

#: The attributes of Keras's callbacks that determine their decisions.
_STATE: Mapping[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
}

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")

#: Callbacks of Keras that would repeat, in this machine's folder, what the loop does in the store.
_REDUNDANT: Mapping[type[keras.callbacks.Callback], str] = {
    keras.callbacks.ModelCheckpoint: "checkpoints are in the store; see checkpoint_interval, keep",
    keras.callbacks.BackupAndRestore: "a training resumes from its newest checkpoint by itself",
    keras.callbacks.TensorBoard: "the event files are in the store, under tensorboard/",
}

#: Callbacks of Keras that log the learning rate.
_RATES = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class BestWeights(keras.callbacks.EarlyStopping):  # type: ignore[misc]  # Keras has no types
    """Sets the weights of the best epoch when training ends, and never stops it.

    ``name`` is that of a logged metric; ``min:name`` and ``max:name`` say what is best where Keras
    does not know it.

    ``logged`` are the names that training logs.

    Raises:
        FinalError: Keras does not know it.
    """

    def __init__(self, name: str, model: keras.Model, logged: Sequence[str]) -> None:
        mode, found, monitor = name.rpartition(":")
        if not found:
            mode = keras3.monitor_mode(model, monitor) or ""
        if not mode and logged and monitor not in logged:
            raise FinalError(
                f"export_best is {name!r}, which is not logged{nearest(monitor, logged)}; what is: "
                f"{_by_nearness(monitor, logged)}. If a callback adds it, write max:{monitor} or "
                f"min:{monitor}"
            )
        if mode not in ("min", "max"):
            raise FinalError(
                f"export_best is {name!r}, and Keras does not know whether more or less of it is "
                f"better; write max:{monitor} or min:{monitor}"
            )
        super().__init__(monitor, patience=math.inf, mode=mode, restore_best_weights=True)

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)
        if self.best_weights is not None:
            print(
                f"the weights are those of epoch {self.best_epoch + 1}, the best by "
                f"{self.monitor}: {self.best:.4f}",
                flush=True,
            )


class Callbacks:
    """The callbacks of one training, in the order in which the user's module returns them.

    ``export_best`` names the metric by which the best weights become those of the trained model,
    one of ``logged`` unless a callback adds it.
    """

    def __init__(
        self,
        module: str,
        given: Any,
        model: keras.Model,
        epochs: int,
        export_best: str | None = None,
        logged: Sequence[str] = (),
    ) -> None:
        """Raises FinalError for an object that is no callback."""
        self.given, best = _checked(module, given)
        if export_best := export_best or best:
            KERAS.check_callbacks(module)
            # Last, so that its weights are final, and that the others may add to the logs.
            self.given.append(BestWeights(export_best, model, logged))
        self._module = module
        self._model = model
        self._list = keras.callbacks.CallbackList(self.given, model=model)
        self._list.set_params({"verbose": 0, "epochs": epochs, "steps": None})
        self._model.stop_training = False
        self._by_batch = any(_has(each, name) for each in self.given for name in _BATCH_HOOKS)

    @property
    def monitor_validation(self) -> bool:
        """Whether a callback monitors a metric of the validation split."""
        return any(name.startswith("val_") for name in self.monitored)

    @property
    def monitored(self) -> list[str]:
        """The names of the monitored metrics."""
        names = [getattr(each, "monitor", None) for each in self.given]
        return [name for name in names if isinstance(name, str)]

    def check_monitored(self, logged: Sequence[str], measured: Sequence[str] | None) -> None:
        """Check that no callback monitors what is never logged, and so would never act.

        ``logged`` are the names that training logs, ``measured`` those of the validation split, or
        None if they are unknown. What a callback of the user's own may add to the logs is unknown,
        too: for it and for later callbacks there is only a warning.

        Raises:
            FinalError: a callback does; the message lists what is logged, the nearest first.
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
            who = f"{type(each).__name__} of callbacks of {self._module!r} monitors"
            message = (
                f"{'export_best is' if isinstance(each, BestWeights) else who} {name!r}, which "
                f"is not logged{nearest(name, names)}; what is: {_by_nearness(name, names)}"
            )
            if not may_add:
                raise FinalError(message)
            print(f"warning: {message}, unless a callback adds it", flush=True)

    @property
    def by_batch(self) -> bool:
        """Whether a callback is to be called at each execution."""
        return self._by_batch

    @property
    def stop(self) -> bool:
        """Whether a callback has requested the end of the training."""
        return bool(self._model.stop_training)

    def begin(self, state: Mapping[str, Any], files: Files) -> None:
        """Start the training, or resume from the state that ``remember`` returned."""
        with _resumed(self.given, state.get("callbacks", []), files):
            self._list.on_train_begin()
        self._model.stop_training = bool(state.get("stopped"))

    def epoch_begins(self, epoch: int) -> None:
        self._list.on_epoch_begin(epoch)

    def execution(self, first: int, last: int, logs: Mapping[str, float]) -> None:
        """Report that the steps ``first`` to ``last`` of the epoch, from 0, are done."""
        self._list.on_train_batch_begin(first)
        self._list.on_train_batch_end(last, logs)

    def epoch_ends(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._list.on_epoch_end(epoch, dict(logs))

    def end(self, logs: Mapping[str, float]) -> None:
        self._list.on_train_end(dict(logs))

    def remember(self) -> tuple[dict[str, Any], Files]:
        """The state for a checkpoint: JSON, and files by name."""
        callbacks, files = _states_of(self.given)
        return {"callbacks": callbacks, "stopped": self.stop}, files

    def logs(self) -> list[Path]:
        """The log files of Keras's callbacks in this machine's folder."""
        loggers = [each for each in self.given if isinstance(each, keras.callbacks.CSVLogger)]
        return [path for each in loggers if (path := Path(each.filename)).is_file()]


def _by_nearness(name: str, names: Sequence[str]) -> str:
    return ", ".join(get_close_matches(name, names, n=len(names), cutoff=0.0))


def _checked(module: str, given: Any) -> tuple[list[keras.callbacks.Callback], str | None]:
    """The callbacks that are not redundant, and the ``export_best`` that stands for the others."""
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    if callbacks:
        KERAS.check_callbacks(module)
    kept, best = [], None
    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise FinalError(
                f"callbacks of {module!r} returned {type(each).__name__}; return a list of "
                "keras.callbacks.Callback"
            )
        instead = next((why for kind, why in _REDUNDANT.items() if isinstance(each, kind)), None)
        if instead is None:
            kept.append(each)
            continue
        if isinstance(each, keras.callbacks.ModelCheckpoint) and each.save_best_only:
            best = each.monitor if each.mode == "auto" else f"{each.mode}:{each.monitor}"
            instead += f", and the best weights are exported, as with export_best={best}"
        kind = type(each).__name__
        print(f"{kind} of callbacks of {module!r} is left out: {instead}", flush=True)
    return kept, best


def _has(callback: keras.callbacks.Callback, name: str) -> bool:
    """Whether the callback overrides the method of that name."""
    function = getattr(getattr(callback, name), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, name)


def _states_of(callbacks: Sequence[Any]) -> tuple[list[dict[str, Any]], Files]:
    """The state of each callback as JSON, and the parts of it that are files."""
    files: dict[str, bytes] = {}
    states = []
    for index, each in enumerate(callbacks):
        states.append({"kind": type(each).__name__, "state": _state_of(each)})
        if isinstance(each, keras.callbacks.CSVLogger):
            files[_log_file(index)] = Path(each.filename).read_bytes()
        if getattr(each, "best_weights", None) is not None:
            content = io.BytesIO()
            np.savez(content, *each.best_weights)
            files[_weights_file(index)] = content.getvalue()
    return states, files


@contextmanager
def _resumed(
    callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]], files: Files
) -> Iterator[None]:
    """Restore the state of callbacks, which start in this scope."""
    if [each["kind"] for each in states] != [type(each).__name__ for each in callbacks]:
        if states:
            print("the callbacks are others than those of the checkpoint: they start over")
        yield
        return
    for index, each in enumerate(callbacks):
        if isinstance(each, keras.callbacks.CSVLogger) and _log_file(index) in files:
            each.append = True
            Path(each.filename).write_bytes(files[_log_file(index)])
    yield  # on_train_begin resets a callback, so the rest is restored after it
    for index, (each, kept) in enumerate(zip(callbacks, states, strict=True)):
        _restore(each, kept["state"])
        if _weights_file(index) in files:
            with np.load(io.BytesIO(files[_weights_file(index)])) as arrays:
                each.best_weights = [arrays[name] for name in arrays.files]


def _state_of(callback: Any) -> Any:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return callback.get_state()
    values = {name: getattr(callback, name, None) for name in _attributes(callback)}
    return {
        name: None if value is None else float(value) if name == "best" else int(value)
        for name, value in values.items()
    }


def _restore(callback: Any, state: Any) -> None:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    for name in _attributes(callback):
        setattr(callback, name, state[name])


def _attributes(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _STATE.items() if isinstance(callback, kind)), ())


def _log_file(index: int) -> str:
    return f"{index}-log.csv"


def _weights_file(index: int) -> str:
    return f"{index}-best-weights.npz"
