"""Translation of TensorFlow's errors for the readers of the log."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.data.dataset import Dataset
from aerotrain.training.input.batches import RecordFiles, every_record
from aerotrain.training.input.shards import in_turn, split_of
from aerotrain.training.input.shuffle_windows import NO_MORE
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.mistakes import explained, place_of
from aerotrain.training.steps.microbatches import TOO_MANY

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
    code: UserCode, dataset: Dataset, url: str, split: str, scratch: Path
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


def _blame_record(code: UserCode, dataset: Dataset, url: str, split: str, scratch: Path) -> None:
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
