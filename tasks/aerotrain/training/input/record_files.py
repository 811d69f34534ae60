"""Files of serialized records as ``tf.data`` reads them, each completely before the next.

They are on this disk, or shards in the store, of which a few are on this disk at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import tensorflow as tf

from aerotrain.data.dataset import Shard
from aerotrain.training.input.shards import in_turn

#: The name of a file, and its size in bytes.
_NAMED = (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64))


@dataclass(frozen=True)
class RecordFiles:
    """Files in their order: the name and the size in bytes of each, and the ``bytes`` of all."""

    named: tf.data.Dataset
    bytes: int

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Self:
        """Files that are on this disk."""
        sizes = [path.stat().st_size for path in paths]
        named = ([str(path) for path in paths], tf.constant(sizes, tf.int64))
        return cls(tf.data.Dataset.from_tensor_slices(named), sum(sizes))

    def records(self) -> tf.data.Dataset:
        """Every record, as a string."""
        # ``map`` would be called for several names ahead, and their files be removed meanwhile.
        return self.named.flat_map(lambda name, _: tf.data.TFRecordDataset(name))


@contextmanager
def streamed(url: str, shards: Sequence[Shard], scratch: Path) -> Iterator[RecordFiles]:
    """Shards of the data set at ``url``, downloaded below ``scratch`` while others are read.

    Each time they are read, they are downloaded; each is removed once it was read.

    Raises:
        CorruptError: a shard does not match the data set's manifest; the message names it.
    """
    errors: list[Exception] = []

    def named() -> Iterator[tuple[str, int]]:
        try:
            for path, shard in zip(in_turn(url, shards, scratch), shards, strict=True):
                yield str(path), shard.bytes
        except Exception as error:
            errors.append(error)
            raise

    try:
        yield RecordFiles(
            tf.data.Dataset.from_generator(named, output_signature=_NAMED),
            sum(shard.bytes for shard in shards),
        )
    except tf.errors.OpError:
        if errors:  # of which TensorFlow's error has only the text
            raise errors[0] from None
        raise
