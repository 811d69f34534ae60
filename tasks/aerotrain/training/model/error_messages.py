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
    place = _place_of(error, build_model)
    if label := _LABEL.search(message):
        last = int(label[2]) - 1
        return FinalError(
            f"a label is {label[1]}, and the model of {module!r} has outputs for the labels 0 to "
            f"{last}{place}; give it an output for each label, or correct the labels"
        )
    said = f"the model of {module!r} has a mistake{place}: {sentence_of(message)}"
    return FinalError(said + ("" if batch is None else f"; its batches are {_described(batch)}"))


def sentence_of(message: str) -> str:
    """The first paragraph of ``message`` that says what is wrong, in one line."""
    lines = [_LEADING.sub("", line) for line in message.splitlines()]
    kept = [line for line in lines if line.strip() and not _AROUND.match(line.strip())]
    first = " ".join(kept[:2]) if kept and kept[0].endswith(":") else next(iter(kept), message)
    return re.sub(r"\s+", " ", first).strip().rstrip(".")[:_LONGEST]


def _place_of(error: Exception, build_model: Any) -> str:
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
    shapes = tf.nest.map_structure(lambda each: f"{each.dtype.name} {tuple(each.shape)}", batch)
    parts = zip(
        ("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(shapes), strict=True
    )
    said = [f"{name} {part}" for name, part in parts if part is not None]
    return ", ".join(said).replace("'", "")


#: Another process of the cluster ended, or the network between failed.
_OTHER_FAILED = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
#: The same on a mesh, whose errors do not keep the type of the first one.
_ABORTED = "Collective ops is aborted"


#: What collectives say if one process computes with the others while these do something else.
_MISMATCHED = re.compile(r"Collective instance \d+ expected .* but got")

#: TensorFlow's file system has no error type for a full disk.
_FULL_DISK = ("No space left on device", "File too large", "Disk quota exceeded")

#: An operation for which DTensor has no rule; a tensor that is on no mesh where one is expected.
_NOT_ON_MESH = re.compile(r"'tf\.(\w+)' op does not implement layout propagation")
_OFF_MESH = "was expecting a DTensor"

#: What TensorFlow puts before the message of an operation: the function that it was in, and the
#: iterator that called this.
_CALLERS = re.compile(
    r"\{\{function_node [^}]*\}\}\s*"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)


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
        message = str(error.message)
        if any(words in message for words in _FULL_DISK):
            raise TemporaryError(
                f"the disk that holds {scratch} is full ({_first_line(error)}); free some of it, "
                "or use another"
            ) from error
        if reason := _of_strategy(error, code):
            raise FinalError(reason) from error
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
        message = str(error.message)
        lost = isinstance(error, _OTHER_FAILED) or NO_MORE in message
        aborted = isinstance(error, tf.errors.InternalError) and _ABORTED in message
        if not (lost or aborted) or _MISMATCHED.search(message):
            raise
        raise TemporaryError(
            f"another process of this job was lost ({_first_line(error)}); see its own log, "
            "and try again from the last checkpoint"
        ) from error


def _of_strategy(error: tf.errors.OpError, code: "UserCode") -> str:
    """What the model does that its strategy cannot; empty for another error."""
    message = str(error.message)
    _, too_many, rest = message.partition(TOO_MANY)
    if too_many:
        return too_many + rest.partition("\n")[0]
    if _MISMATCHED.search(message):
        return (
            f"the processes of this job compute different things ({_first_line(error)}); let no "
            f"callback of {code.name!r} compute over all replicas, for only the chief calls it, "
            "and let each process build the same model"
        )
    if operation := _NOT_ON_MESH.search(message):
        return (
            f"the model of {code.name!r} needs {operation[1]}, an operation that 'dtensor' cannot "
            "compute; replace the layer that uses it, or choose 'mirrored' or "
            "'multi_worker_mirrored'"
        )
    if _OFF_MESH in message:
        return (
            f"{code.name!r} uses a tensor outside of the mesh of 'dtensor', or one of the mesh "
            f"outside of the step{_place_of(error, code.build_model)}; create a tf.constant in the "
            "function that uses it, let a callback call predict of the model, or choose another "
            "strategy"
        )
    return ""


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
    return sentence_of(_CALLERS.sub("", str(error.message)))
