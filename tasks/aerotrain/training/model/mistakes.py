"""Errors of Keras and TensorFlow about a user's model, as one sentence with the module's line."""

import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import AerotrainError, FinalError, message_of, nearest

#: What Keras and TensorFlow raise for arguments, names and shapes that do not fit.
_KINDS = (ValueError, TypeError, tf.errors.InvalidArgumentError)

#: Names of losses, optimizers and others that Keras does not know, and where it looks for them.
_UNKNOWN = re.compile(r"Could not (?:interpret|locate) [\w ]+?(?: identifier:)? '?(\w+)'?")
_KNOWN = {
    "loss": keras.losses,
    "optimizer": keras.optimizers,
    "metric": keras.metrics,
    "activation": keras.activations,
    "initializer": keras.initializers,
}

_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")

#: Lines around the cause in a message of TensorFlow, and what is not of the cause in its line.
_AROUND = re.compile(
    r"Graph execution error|Detected at node|<stack traces|File \"|\d+ root error|\[\[|"
    r"Additional GRPC error|:\{\"|Function call stack|Errors may have originated|In\[\d"
)
_LEADING = re.compile(r"^\s*(\(\d+\)\s*)?([A-Z_]+: +)?(Collective ops is aborted by: )?")

_LONGEST = 300


@contextmanager
def mistakes_explained(module: str, build_model: Any, batch: Any = None) -> Iterator[None]:
    """A scope in which errors about the model of ``build_model`` are explained in one sentence.

    ``batch`` is the element spec of the model's batches.

    Raises:
        FinalError: the model or its compilation has a mistake, or does not fit the batches.
    """
    try:
        yield
    except AerotrainError:
        raise
    except _KINDS as error:
        raise explained(error, module, build_model, batch) from error


def explained(error: Exception, module: str, build_model: Any, batch: Any = None) -> FinalError:
    """The sentence for ``error``; see ``mistakes_explained``."""
    message = message_of(error)
    place = place_of(error, build_model)
    if label := _LABEL.search(message):
        last = int(label[2]) - 1
        return FinalError(
            f"a label is {label[1]}, and the model of {module!r} has outputs for the labels 0 to "
            f"{last}{place}; give it an output for each label, or correct the labels"
        )
    said = f"the model of {module!r} has a mistake{place}: {_sentence(message)}"
    if unknown := _UNKNOWN.search(message):
        fitting = [each for kind, each in _KNOWN.items() if kind in unknown[0]]
        names = {name for each in fitting or _KNOWN.values() for name in dir(each)}
        return FinalError(said + nearest(unknown[1], names | {name.lower() for name in names}))
    return FinalError(said + ("" if batch is None else f"; its batches are {_described(batch)}"))


def _sentence(message: str) -> str:
    """The first paragraph of ``message`` that says what is wrong, in one line."""
    lines = [_LEADING.sub("", line) for line in message.splitlines()]
    kept = [line for line in lines if line.strip() and not _AROUND.match(line.strip())]
    first = " ".join(kept[:2]) if kept and kept[0].endswith(":") else next(iter(kept), message)
    return re.sub(r"\s+", " ", first).strip().rstrip(".")[:_LONGEST]


def place_of(error: Exception, build_model: Any) -> str:
    """Where the mistake is: the line that ``error`` came through, else the one that compiles."""
    code = getattr(inspect.unwrap(build_model), "__code__", None)
    if code is None:
        return ""
    file = Path(code.co_filename).resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(file.parent):
            return f" (line {frame.lineno} of {path.relative_to(file.parent)}, in {frame.name})"
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError:
        return ""
    places = [number for number, line in enumerate(lines, first) if ".compile(" in line]
    return f" (compiled in line {places[0]} of {file.name})" if places else ""


def _described(batch: Any) -> str:
    """Shapes and dtypes of a batch: ``x float32 (None, 8, 8), y int64 (None,)``."""
    parts = zip(
        ("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(batch), strict=True
    )
    return ", ".join(f"{name} {_shapes(part)}" for name, part in parts if part is not None)


def _shapes(part: Any) -> str:
    if isinstance(part, dict):
        return "{" + ", ".join(f"{name}: {_shapes(each)}" for name, each in part.items()) + "}"
    if isinstance(part, tuple | list):
        return "[" + ", ".join(map(_shapes, part)) + "]"
    return f"{part.dtype.name} {tuple(part.shape)}"
