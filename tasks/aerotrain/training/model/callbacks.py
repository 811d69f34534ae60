"""The user's Keras callbacks, which the chief calls while the job trains.

They are called as ``fit`` calls them: in the same order, with the same arguments and logs, outside
any scope of a strategy. They receive the trained model, and what they assign takes effect in the
next step. As under ``fit``, ``on_train_batch_*`` are called once per execution.

A checkpoint keeps the state of callbacks: of Keras's, the attributes that determine their
decisions; of a callback of the user's own, what ``get_state()`` returns, which is JSON, and
``set_state(state)`` takes. All other callbacks start over.

``KINDS`` is the table of Keras's own. Those of which the loop does the same are left
out with a note.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError, by_nearness, nearest
from aerotrain.training.internals import keras3
from aerotrain.training.model.keras_adapter import KERAS

#: Content by file name.
Files = Mapping[str, bytes]

#: Before and after an execution, by the names of Keras 3 and by older ones.
BEFORE = ("on_train_batch_begin", "on_batch_begin")
AFTER = ("on_train_batch_end", "on_batch_end")

_HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]

#: The ends of the names of files of a callback, after its place in the list.
_LOG, _WEIGHTS = "-log.csv", "-best-weights.npz"

_VARIABLES = (keras.Variable, tf.Variable)

#: Where the code of the hooks is that are not the user's own.
_NOT_OWN = ("keras.", "aerotrain.")


class BestWeights(keras.callbacks.EarlyStopping):  # type: ignore[misc]  # Keras has no types
    """Sets the weights of the best epoch when training ends, and never stops it.

    ``name`` is that of a metric, one of ``logged`` unless a callback adds it; ``min:name`` and
    ``max:name`` say what is best where Keras does not know it.

    Raises:
        FinalError: Keras does not know it.
    """

    def __init__(self, name: str, model: keras.Model, logged: Sequence[str]) -> None:
        mode, _, monitor = name.rpartition(":")
        mode = mode or keras3.monitor_mode(model, monitor) or ""
        if mode not in ("min", "max"):
            raise FinalError(
                f"export_best is {name!r}, of which Keras does not know whether more or less is "
                f"better{nearest(monitor, logged)}; write max:{monitor} or min:{monitor} if a "
                f"callback adds it, or one of {', '.join(logged) or 'the metrics'}"
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
    one of ``logged`` unless a callback adds it. ``steps`` is the number of steps of an epoch.
    """

    def __init__(
        self,
        module: str,
        given: Any,
        model: keras.Model,
        epochs: int,
        export_best: str | None = None,
        logged: Sequence[str] = (),
        steps: int | None = None,
    ) -> None:
        """Raises FinalError for an object that is no callback, or that this optimizer refuses."""
        self.given = _checked(module, given)
        for each in self.given:
            _check_optimizer(module, each, model)
        if export_best:
            KERAS.check_callbacks(module)
            # Last, so that its weights are final, and that the others may add to the logs.
            self.given.append(BestWeights(export_best, model, logged))
        self._module = module
        self._model = model
        self._model.stop_training = False
        #: Calls all of them.
        self.list = keras.callbacks.CallbackList(
            self.given, add_history=True, model=model, verbose=0, epochs=epochs, steps=steps
        )

    @property
    def monitor_validation(self) -> bool:
        """Whether a callback monitors a metric of the validation split."""
        return any(str(getattr(each, "monitor", "")).startswith("val_") for each in self.given)

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
            if kind_of(each).rate:
                names.append("learning_rate")
            name = getattr(each, "monitor", None)
            if not isinstance(name, str) or name in names:
                continue
            if measured is None and name.startswith("val_"):
                continue
            who = f"{type(each).__name__} of callbacks of {self._module!r} monitors"
            others = ", ".join(by_nearness(name, names))
            message = (
                f"{'export_best is' if isinstance(each, BestWeights) else who} {name!r}, which "
                f"is not logged{nearest(name, names)}; what is: {others}"
            )
            if not may_add:
                raise FinalError(message)
            print(f"warning: {message}, unless a callback adds it", flush=True)

    def defines(self, *hooks: str) -> bool:
        """Whether a callback does something in one of these hooks."""
        return any(
            getattr(getattr(each, name), "__func__", None)
            is not getattr(keras.callbacks.Callback, name)
            for each in self.given
            for name in hooks
        )

    @property
    def own_by_batch(self) -> str:
        """The hook of a batch that the user's code defines, as ``Class.hook``, or nothing."""
        found = (
            f"{type(each).__name__}.{name}"
            for each in self.given
            for name in (*BEFORE, *AFTER)
            if _is_own(each, name)
        )
        return next(found, "")

    @property
    def stop(self) -> bool:
        """Whether a callback has requested the end of the training."""
        return bool(self._model.stop_training)

    def variables(self, created: Sequence[tf.Variable] = ()) -> list[tf.Variable]:
        """The variables that a callback may change, in the same order in every replica.

        They are those of the model and its optimizer, those of callbacks, and ``created``, those
        that the user's module has created.
        """
        if not any(
            kind_of(each).assigns or any(_is_own(each, hook) for hook in _HOOKS)
            for each in self.given
        ):
            return []
        known = variables_of(self._model, *self.given)
        ids = {id(each) for each in known}
        return [*known, *(each for each in created if id(each) not in ids)]

    def begin(self, state: Mapping[str, Any], files: Files) -> bool:
        """Start the training, or resume from the state that ``remember`` returned.

        Returns whether a callback had ended the training before.
        """
        kept = list(enumerate(zip(self.given, state.get("callbacks", []), strict=False)))
        if [each["kind"] for each in state.get("callbacks", [])] != self._kinds and kept:
            print("the callbacks are others than those of the checkpoint: they start over")
            kept = []
        for index, (each, _) in kept:
            if log := files.get(f"{index}{_LOG}"):
                each.append = True
                Path(each.filename).write_bytes(log)
        self.list.on_train_begin()  # resets callbacks, so the rest is restored after it
        for index, (each, own) in kept:
            if _keeps_own_state(each):
                each.set_state(own["state"])
            else:
                for name in kind_of(each).state:
                    setattr(each, name, own["state"][name])
            if weights := files.get(f"{index}{_WEIGHTS}"):
                with np.load(io.BytesIO(weights)) as arrays:
                    each.best_weights = [arrays[name] for name in arrays.files]
        self._model.stop_training |= (stopped := bool(state.get("stopped")))
        return stopped

    @property
    def _kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.given]

    def remember(self) -> tuple[dict[str, Any], Files]:
        """The state for a checkpoint: JSON, and files by name."""
        files: dict[str, bytes] = {}
        for index, each in enumerate(self.given):
            if isinstance(each, keras.callbacks.CSVLogger):
                files[f"{index}{_LOG}"] = Path(each.filename).read_bytes()
            if getattr(each, "best_weights", None) is not None:
                content = io.BytesIO()
                np.savez(content, *each.best_weights)
                files[f"{index}{_WEIGHTS}"] = content.getvalue()
        pairs = zip(self._kinds, self.given, strict=True)
        states = [{"kind": kind, "state": _state_of(each)} for kind, each in pairs]
        return {"callbacks": states, "stopped": self.stop}, files

    def logs(self) -> list[Path]:
        """The log files of Keras's callbacks in this machine's folder."""
        loggers = [each for each in self.given if isinstance(each, keras.callbacks.CSVLogger)]
        return [path for each in loggers if (path := Path(each.filename)).is_file()]


def variables_of(model: keras.Model, *holders: Any, optimizers: bool = True) -> list[tf.Variable]:
    """All variables of ``model``, and those that are attributes of its parts or of ``holders``.

    Its parts are its layers, its losses and, if asked for, its optimizers.
    """
    objects = [*keras3.layers(model), *KERAS.losses(model), *holders]
    held = [value for each in objects for value in getattr(each, "__dict__", {}).values()]
    found = [*model.variables, *(each for each in held if isinstance(each, _VARIABLES))]
    if optimizers:
        kind = keras.optimizers.Optimizer
        found += [part for each in held if isinstance(each, kind) for part in each.variables]
    values = [each.value if isinstance(each, keras.Variable) else each for each in found]
    return list({id(each): each for each in values if each.dtype != tf.string}.values())


def _checked(module: str, given: Any) -> list[keras.callbacks.Callback]:
    """The callbacks that are not redundant; a note names each that is."""
    callbacks: list[Any] = []
    for each in given if isinstance(given, list | tuple) else [given]:
        in_list = isinstance(each, keras.callbacks.CallbackList)
        callbacks += each.callbacks if in_list else [each]
    if callbacks:
        KERAS.check_callbacks(module)
    for each in callbacks:
        name = type(each).__name__
        if not isinstance(each, keras.callbacks.Callback):
            raise FinalError(
                f"callbacks of {module!r} returned {name}; return a list of "
                "keras.callbacks.Callback"
            )
        if instead := kind_of(each).instead:
            print(f"{name} of callbacks of {module!r} is left out: {instead}", flush=True)
    return [each for each in callbacks if not kind_of(each).instead]


def _check_optimizer(module: str, callback: Any, model: keras.Model) -> None:
    """Check that the optimizer has what the callback of Keras sets.

    Raises:
        FinalError: its learning rate is that of a schedule, or it has no averages.
    """
    optimizer = getattr(model, "optimizer", None)  # one with a step of its own may have none
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    optimizers = getattr(optimizer, "optimizers", [optimizer] if optimizer else [])
    who = f"{type(callback).__name__} of callbacks of {module!r}"
    if kind_of(callback).rate and not all(
        isinstance(each.learning_rate, keras.Variable) for each in optimizers
    ):
        raise FinalError(
            f"{who} sets the learning rate, and that of the optimizer is a schedule; compile the "
            "model with a number as learning_rate, or leave the callback out"
        )
    if isinstance(callback, keras.callbacks.SwapEMAWeights) and not any(
        each.use_ema for each in optimizers
    ):
        raise FinalError(
            f"{who} swaps the averages of the weights, and the optimizer keeps none; give it "
            "use_ema=True, or leave the callback out"
        )


def _is_own(callback: Any, hook: str) -> bool:
    """Whether the method of that name is code of the user's."""
    return not getattr(getattr(callback, hook), "__module__", "").startswith(_NOT_OWN)


def _keeps_own_state(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _state_of(callback: Any) -> Any:
    if _keeps_own_state(callback):
        return callback.get_state()
    values = {name: getattr(callback, name, None) for name in kind_of(callback).state}
    return {
        name: None if value is None else float(value) if name == "best" else int(value)
        for name, value in values.items()
    }


@dataclass(frozen=True, kw_only=True)
class CallbackKind:
    """What the loop knows of a kind of callback.

    ``instead`` is what does the same in this project, so that the callback is left out. ``state``
    are the attributes that determine its decisions. ``assigns`` is whether it may change a variable
    before training ends, and ``rate`` whether it sets the learning rate.
    """

    instead: str = ""
    state: tuple[str, ...] = ()
    assigns: bool = True
    rate: bool = False
    note: str = ""


_CHECKPOINTS = CallbackKind(
    instead="checkpoints are in the store; see checkpoint_interval, keep, export_best"
)
_SETTABLE = "refused if the learning rate is a schedule"

KINDS: Mapping[str, CallbackKind] = {
    "BackupAndRestore": CallbackKind(
        instead="a training resumes from its newest checkpoint by itself"
    ),
    "CSVLogger": CallbackKind(assigns=False, note="its file is also in the store, under logs/"),
    "Callback": CallbackKind(note="an own callback; its variables reach all replicas"),
    "CallbackList": CallbackKind(note="taken apart"),
    "EarlyStopping": CallbackKind(
        state=("wait", "stopped_epoch", "best", "best_epoch"), assigns=False
    ),
    "History": CallbackKind(assigns=False, note="it starts over after a restart"),
    "LambdaCallback": CallbackKind(),
    "LearningRateScheduler": CallbackKind(rate=True, note=_SETTABLE),
    "ModelCheckpoint": _CHECKPOINTS,
    "OrbaxCheckpoint": _CHECKPOINTS,
    "ProgbarLogger": CallbackKind(instead="the log has the progress"),
    "ReduceLROnPlateau": CallbackKind(
        state=("wait", "cooldown_counter", "best"), rate=True, note=_SETTABLE
    ),
    "RemoteMonitor": CallbackKind(assigns=False),
    "SwapEMAWeights": CallbackKind(state=(keras3.SWAPPED,), note="refused without use_ema"),
    "TensorBoard": CallbackKind(instead="the event files are in the store, under tensorboard/"),
    "TerminateOnNaN": CallbackKind(
        instead="a training ends at the first loss that is no finite number"
    ),
}


def kind_of(callback: keras.callbacks.Callback) -> CallbackKind:
    """The row of the nearest class of Keras; what is not Keras's own may assign anything."""
    for each in type(callback).__mro__:
        if each.__module__.startswith("keras.") and each.__name__ in KINDS:
            return KINDS[each.__name__]
    return KINDS["Callback"]


def rows() -> Iterator[tuple[str, str, str]]:
    """Name, setting and outcome of each callback of Keras, for a table of the documentation."""
    for name, kind in KINDS.items():
        outcome = f"left out: {kind.instead}" if kind.instead else "as under fit"
        yield name, "all strategies", "; ".join(filter(None, (outcome, kind.note)))
