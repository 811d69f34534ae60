"""Records of one layout, parsed as a matrix: one row per record, and columns per feature.

If no feature's length depends on its value, each value is at the same offset in every record, and
slices parse a batch. That holds for bytes, for floats, and for integers from 0 to 127, whose varint
is one byte, the minimum. So a shard that has exactly the minimum size of its records has one
layout, and need not be scanned.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, Schema, Shard
from aerotrain.training.input.shards import FOOT, HEAD

#: All single-byte strings, to convert numbers to strings.
_BYTES = [bytes([each]) for each in range(256)]

Features = dict[str, tf.Tensor]


@dataclass(frozen=True)
class RowLayout:
    """The layout of records of ``schema``: ``width`` bytes each in a file.

    ``expected`` is a record with its frame. ``places`` are the begin and the end of each feature's
    values in it. ``fixed`` are the runs of bytes that are the same in every record.
    """

    schema: Schema
    expected: bytes
    places: Mapping[str, tuple[int, int]]
    fixed: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, schema: Schema) -> "RowLayout | None":
        """The layout, or None if the length of a feature depends on its value."""
        if not all(_width(feature) for feature in schema.values()):
            return None
        zero = _record(schema, dict.fromkeys(schema, 0))
        free = np.zeros(len(zero), bool)
        places = {}
        for name, feature in schema.items():
            [where] = np.nonzero(_record(schema, {**dict.fromkeys(schema, 0), name: 1}) != zero)
            places[name] = (HEAD + int(where[0]), HEAD + int(where[-1]) + 1)
            if len(where) != _width(feature) or where[-1] - where[0] + 1 != len(where):
                return None
            free[where] = True
        head = len(zero).to_bytes(8, "little")
        # The checksums are not compared: the shard's own hash has verified all of its bytes.
        runs = [(0, 8), *((HEAD + begin, HEAD + end) for begin, end in _runs(~free))]
        return cls(schema, head + bytes(4) + zero.tobytes() + bytes(FOOT), places, runs)

    @property
    def width(self) -> int:
        """Bytes of one record in a file, with its frame."""
        return len(self.expected)

    def parse(self, rows: tf.Tensor, otherwise: Callable[[tf.Tensor], Features]) -> Features:
        """The features of ``rows``, ``uint8`` of ``(records, width)``, ``(records, *shape)`` each.

        ``otherwise`` parses records as strings if they do not have the expected layout, such as
        records of another writer, with their features in another order.
        """
        return tf.cond(
            self._are_as_expected(rows),
            lambda: {name: self._feature(rows, name) for name in self.schema},
            lambda: otherwise(_strings(rows[:, HEAD:-FOOT])),
        )

    def _are_as_expected(self, rows: tf.Tensor) -> tf.Tensor:
        # One comparison for all of them: a batch is small, and each operation has a fixed cost.
        same = b"".join(self.expected[begin:end] for begin, end in self.fixed)
        found = tf.concat([rows[:, begin:end] for begin, end in self.fixed], axis=1)
        numbers = [
            rows[:, slice(*self.places[name])]
            for name, feature in self.schema.items()
            if not feature.is_raw and not feature.is_float
        ]
        below = tf.reduce_all(tf.concat(numbers, axis=1) < 128) if numbers else True
        return tf.reduce_all(found == list(same)) & below

    def _feature(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        feature = self.schema[name]
        values = rows[:, slice(*self.places[name])]
        if feature.is_float:
            dtype = tf.as_dtype(feature.dtype)
            values = tf.bitcast(tf.reshape(values, [-1, prod(feature.shape), dtype.size]), dtype)
        elif feature.dtype != "uint8":
            values = tf.cast(values, tf.as_dtype(feature.dtype))
        return tf.reshape(values, [-1, *feature.shape])


def layout_of(schema: Schema, shards: Sequence[Shard]) -> RowLayout | None:
    """The layout of the records of ``shards``, or None if they do not all have it."""
    rows = RowLayout.of(schema)
    if rows and all(shard.bytes == shard.records * rows.width for shard in shards):
        return rows
    return None


def _width(feature: Feature) -> int:
    """Bytes of the values of one record, or 0 if their number varies."""
    if feature.dtype == "string":
        return 0
    return prod(feature.shape) * (tf.as_dtype(feature.dtype).size if feature.is_float else 1)


def _record(schema: Schema, values: Mapping[str, int]) -> NDArray[np.uint8]:
    """A record in which every byte of a feature's values is 0 or 1."""
    features = {}
    for name, feature in schema.items():
        value, size = values[name], prod(feature.shape)
        if feature.is_raw:
            raw = bytes([value]) * _width(feature)
            held = tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
        elif feature.dtype == "float32":
            floats = np.frombuffer(bytes([value]) * 4 * size, "<f4")
            held = tf.train.Feature(float_list=tf.train.FloatList(value=floats))
        else:
            held = tf.train.Feature(int64_list=tf.train.Int64List(value=[value] * size))
        features[name] = held
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return np.frombuffer(example.SerializeToString(deterministic=True), np.uint8)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The begin and the end of each run in which the mask is true."""
    places = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    return [(begin, end) for begin, end in itertools.pairwise(places) if mask[begin]]


def _strings(rows: tf.Tensor) -> tf.Tensor:
    return tf.strings.reduce_join(tf.gather(_BYTES, tf.cast(rows, tf.int32)), axis=1)
