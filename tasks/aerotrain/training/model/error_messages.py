"""Errors of Keras and TensorFlow for the readers of the log: a sentence, with the module's line."""

import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import (
    AerotrainError,
    FinalError,
    TemporaryError,
    message_of,
    nearest,
)
from aerotrain.data.dataset import Dataset
from aerotrain.training.input.batches import RecordFiles, every_record
from aerotrain.training.input.shards import in_turn, split_of
from aerotrain.training.input.shuffle_windows import NO_MORE
from aerotrain.training.steps.microbatches import TOO_MANY

if TYPE_CHECKING:
    from aerotrain.training.model.code import UserCode  # which imports this module


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


#: Another process of the cluster ended, or the network between failed.
_OTHER_FAILED = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)

#: The same error on a mesh, whose errors do not keep the type of the first one.
_ABORTED = "Collective ops is aborted"

#: What collectives say if one process computes with the others while these do something else.
_MISMATCHED = re.compile(r"Collective instance \d+ expected .* but got")

#: Errors of a reader whose shards' process, or dispatcher, has ended.
_NO_INPUT = (NO_MORE, "Unknown iteration client id")

#: An operation for which DTensor has no rule.
_NOT_ON_MESH = re.compile(r"'tf\.(\w+)' op does not implement layout propagation")

#: A tensor that is on no mesh where one on a mesh is expected.
_OFF_MESH = "was expecting a DTensor"

#: What TensorFlow puts before the message of an operation: the function that it was in, and the
#: iterator that called this.
_CALLERS = re.compile(
    r"\{\{function_node [^}]*\}\}\s*"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)

#: TensorFlow's file system has no error type for a full disk.
_FULL_DISK = ("No space left on device", "File too large", "Disk quota exceeded")


@contextmanager
def errors_translated(
    code: "UserCode", dataset: Dataset, url: str, split: str, scratch: Path
) -> Iterator[None]:
    """Translate TensorFlow's errors on records of ``split`` into aerotrain's.

    Raises:
        FinalError: the user's transform fails on a record, and the message names it and its shard;
            the model does not fit the records, or the mesh; a step has too many slices of
            gradients; or one process alone computes over all replicas.
        TemporaryError: another process of the cluster failed, or the disk is full.
    """
    try:
        with lost_processes_explained():
            yield
    except tf.errors.OpError as error:
        if _MISMATCHED.search(str(error.message)):
            raise FinalError(
                f"the processes of this job compute different things ({_first_line(error)}); let "
                f"no callback of {code.name!r} compute over all replicas, for only the chief calls "
                "it, and let each process build the same model"
            ) from error
        if any(words in str(error.message) for words in _FULL_DISK):
            raise TemporaryError(
                f"the disk that holds {scratch} is full ({_first_line(error)}); free some of it, "
                "or use another"
            ) from error
        if operation := _NOT_ON_MESH.search(str(error.message)):
            raise FinalError(
                f"the model of {code.name!r} needs {operation[1]}, an operation that 'dtensor' "
                "cannot compute; replace the layer that uses it, or choose 'mirrored' or "
                "'multi_worker_mirrored'"
            ) from error
        if _OFF_MESH in str(error.message):
            raise FinalError(
                f"{code.name!r} uses a tensor outside of the mesh of 'dtensor', or one of the mesh "
                f"outside of the step{place_of(error, code.build_model)}; create a "
                "tf.constant in the function that uses it, let a callback call predict of the "
                "model, which is computed by a copy, or choose another strategy"
            ) from error
        _, found, rest = str(error.message).partition(TOO_MANY)
        if found:
            raise FinalError(found + rest.partition("\n")[0]) from error
        _blame_record(code, dataset, url, split, scratch)
        if isinstance(error, tf.errors.InvalidArgumentError):
            raise explained(error, code.name, code.build_model) from error
        raise  # TensorFlow's message is the best


@contextmanager
def lost_processes_explained() -> Iterator[None]:
    """A scope in which TensorFlow's errors about other processes are temporary ones.

    Raises:
        TemporaryError: another process of the cluster failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if not _is_of_another_process(error):
            raise
        raise TemporaryError(
            f"another process of this job was lost ({_first_line(error)}); see its own log, "
            "and try again from the last checkpoint"
        ) from error


def _is_of_another_process(error: tf.errors.OpError) -> bool:
    message = str(error.message)
    if _MISMATCHED.search(message):
        return False
    aborted = isinstance(error, tf.errors.InternalError) and _ABORTED in message
    return (
        aborted or isinstance(error, _OTHER_FAILED) or any(words in message for words in _NO_INPUT)
    )


def _blame_record(code: "UserCode", dataset: Dataset, url: str, split: str, scratch: Path) -> None:
    """Find the first record on which the user's transform fails, one record at a time."""
    shards = split_of(dataset, split).shards
    for shard, file in zip(shards, in_turn(url, shards, scratch), strict=True):
        records = every_record(
            RecordFiles.of([file]),
            dataset.schema,
            code.transform,
            records=shard.records,
            batch_size=1,
        )
        index = 0
        try:
            for _ in records:
                index += 1
        except tf.errors.OpError as error:
            raise FinalError(
                f"the transform of {code.name!r} fails on record {index} (from 0) of "
                f"{shard.file}: {_first_line(error)}; correct the transform, or the record's "
                "source"
            ) from error


def _first_line(error: tf.errors.OpError) -> str:
    """What TensorFlow says first, without the names of its internal functions."""
    return _CALLERS.sub("", str(error.message)).strip().partition("\n")[0]
