"""The state of callbacks that is kept in a checkpoint.

For Keras's callbacks, the table below lists the attributes that determine their decisions. A
callback of the user's own that has ``get_state()``, which returns JSON, and ``set_state(state)``
continues from its state. All other callbacks start over.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

#: Content by file name.
Files = Mapping[str, bytes]

_NUMBERS: Mapping[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
}


def remembered(callbacks: Sequence[Any]) -> tuple[list[dict[str, Any]], Files]:
    """The state of each callback as JSON, and the parts of it that are files."""
    files: dict[str, bytes] = {}
    states = []
    for index, each in enumerate(callbacks):
        states.append({"kind": type(each).__name__, "state": _state(each)})
        if isinstance(each, keras.callbacks.CSVLogger):
            files[_log(index)] = Path(each.filename).read_bytes()
        if getattr(each, "best_weights", None) is not None:
            content = io.BytesIO()
            np.savez(content, *each.best_weights)
            files[_weights(index)] = content.getvalue()
    return states, files


@contextmanager
def resumed(
    callbacks: Sequence[Any], states: Sequence[Mapping[str, Any]], files: Files
) -> Iterator[None]:
    """Restore the state of callbacks, which start in this scope."""
    if [each["kind"] for each in states] != [type(each).__name__ for each in callbacks]:
        if states:
            print("the callbacks are others than those of the checkpoint: they begin anew")
        yield
        return
    for index, each in enumerate(callbacks):
        if isinstance(each, keras.callbacks.CSVLogger) and _log(index) in files:
            each.append = True
            Path(each.filename).write_bytes(files[_log(index)])
    yield  # on_train_begin resets a callback, so the rest is restored after it
    for index, (each, kept) in enumerate(zip(callbacks, states, strict=True)):
        _restore(each, kept["state"])
        if _weights(index) in files:
            with np.load(io.BytesIO(files[_weights(index)])) as arrays:
                each.best_weights = [arrays[name] for name in arrays.files]


def _state(callback: Any) -> Any:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return callback.get_state()
    values = {name: getattr(callback, name, None) for name in _names(callback)}
    return {
        name: None if value is None else float(value) if name == "best" else int(value)
        for name, value in values.items()
    }


def _restore(callback: Any, state: Any) -> None:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    for name in _names(callback):
        setattr(callback, name, state[name])


def _names(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _NUMBERS.items() if isinstance(callback, kind)), ())


def _log(index: int) -> str:
    return f"{index}-log.csv"


def _weights(index: int) -> str:
    return f"{index}-best-weights.npz"
