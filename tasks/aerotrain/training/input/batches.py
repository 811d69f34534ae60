"""From shards of serialized records to the batches of a model.

Files are read by ``tf.data``, each completely before the next; they are on this disk, or shards in
the store, of which a few are on this disk at a time.

If no feature's length depends on its value, each value is at the same offset in every record, and
slices parse a batch as a matrix: one row per record. That holds for bytes, for floats, and for
integers from 0 to 127, whose varint is one byte, the minimum. So a shard that has exactly the
minimum size of its records has one layout, and need not be scanned.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Feature, Schema, Shard
from aerotrain.training.input.shards import FOOT, HEAD, in_turn
from aerotrain.training.input.shuffle_windows import AS_WRITTEN, of_files
from aerotrain.training.internals import tensorflow2

#: Takes a batch of features by name, returns ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
Transform = Callable[[dict[str, tf.Tensor]], Any]

#: A line of the user's code in an error of AutoGraph, the last of which raised it.
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
#: The key in such an error.
_KEY = re.compile(r"KeyError: '(.*)'")


@AS_WRITTEN  # type: ignore[untyped-decorator]
def parse(records: tf.Tensor, schema: Schema) -> dict[str, tf.Tensor]:
    """Parse a batch of serialized ``tf.train.Example`` to features, ``(batch, *shape)`` each.

    Records are strings, or ``uint8`` of ``(batch, width)`` if all have one layout.
    """
    records = tf.convert_to_tensor(records)
    rows = RowLayout.of(schema) if records.dtype == tf.uint8 else None
    if rows is None:
        return _parsed(records, schema)
    return rows.parse(records, lambda strings: _parsed(strings, schema))


def _parsed(serialized: tf.Tensor, schema: Schema) -> dict[str, tf.Tensor]:
    spec = {}
    for name, feature in schema.items():
        kept = feature.dtype if feature.dtype in ("string", "float32") else "int64"
        shape, kind = ((), "string") if feature.is_raw else (feature.shape, kept)
        spec[name] = tf.io.FixedLenFeature(shape, tf.as_dtype(kind))
    features = {}
    stored = tf.io.parse_example(serialized, spec)
    for name, feature in schema.items():
        value, dtype = stored[name], tf.as_dtype(feature.dtype)
        if feature.is_raw:
            value = tf.reshape(tf.io.decode_raw(value, dtype), [-1, *feature.shape])
        features[name] = value if value.dtype == dtype else tf.cast(value, dtype)
    return features


def ready(batches: tf.data.Dataset, schema: Schema, transform: Transform) -> tf.data.Dataset:
    """Parse and transform batches of records, and prefetch them.

    Records are parsed by the batch, which is several times faster than one by one. The number of a
    lease before each batch is kept.
    """
    return mapped(batches, transformed(schema, transform))


def transformed(
    schema: Schema, transform: Transform, cut: "MicrobatchSpec | None" = None
) -> Callable[..., Any]:
    """A function of the records of a batch, or with ``cut`` of the number of a replica and these.

    It returns the transformed batch, or its microbatches for that replica: a tuple of
    (weight, microbatch).
    """
    transform = tensorflow2.converted(transform)
    if cut is None:
        return lambda records: transform(parse(records, schema))
    accumulate = cut.accumulate

    def microbatches(replica: Any, records: tf.Tensor) -> Any:
        pieces = (cut.piece(records, replica * accumulate + each) for each in range(accumulate))
        return tuple((weight, transform(parse(piece, schema))) for weight, piece in pieces)

    return microbatches


def mapped(
    batches: tf.data.Dataset,
    function: Callable[..., Any],
    cut: "MicrobatchSpec | None" = None,
    calls: int = tf.data.AUTOTUNE,
) -> tf.data.Dataset:
    """Map a function such as ``transformed`` returns over batches, and prefetch its results.

    With ``cut``, there is one element per local replica for each batch. For one replica, the number
    of a lease before each batch is kept. The function is called for so many batches at once.
    """
    if cut is None:
        return _mapped(batches, _after_lease(function), calls).prefetch(tf.data.AUTOTUNE)

    def for_each_replica(batch: tf.Tensor) -> tf.data.Dataset:
        # ``enumerate`` would rewrite a graph by Grappler for each batch.
        numbers = tf.data.Dataset.range(cut.first, cut.first + cut.local)
        return tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensors(batch).repeat()))

    if cut.local == 1:
        of_first = _after_lease(lambda batch: function(cut.first, batch))
        made = _mapped(batches, of_first, calls)
    else:
        made = _mapped(batches.flat_map(AS_WRITTEN(for_each_replica)), function, calls)
    # Otherwise TensorFlow synchronizes the replicas before each step, to agree that there is one.
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return made.apply(endless).prefetch(tf.data.AUTOTUNE)


def _after_lease(function: Callable[[tf.Tensor], Any]) -> Callable[..., Any]:
    """The same function of a batch, or of the number of its lease, which is kept, and a batch."""

    def applied(*element: tf.Tensor) -> Any:
        *lease, batch = element
        return (*lease, function(batch)) if lease else function(batch)

    return applied


def _mapped(
    dataset: tf.data.Dataset, function: Callable[..., Any], calls: int = tf.data.AUTOTUNE
) -> tf.data.Dataset:
    """Map ``function`` over the elements, several at once, in their order."""
    return dataset.map(AS_WRITTEN(function), num_parallel_calls=calls, deterministic=True)


@dataclass(frozen=True, kw_only=True)
class MicrobatchSpec:
    """How global batches are divided: ``accumulate`` microbatches for each of ``replicas``.

    This machine feeds ``local`` of the replicas, starting with replica ``first``.
    """

    accumulate: int = 1
    replicas: int = 1
    first: int = 0
    local: int = 1

    def piece(self, batch: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The weight of the microbatch of that number, its part of the batch, and its records.

        If a batch has fewer records than microbatches, some are empty. An empty one gets one record
        with a weight of 0, because models cannot compute on none.
        """
        records = tf.shape(batch, tf.int64)[0]
        pieces = self.accumulate * self.replicas
        begin, end = number * records // pieces, (number + 1) * records // pieces
        weight = tf.cast(end - begin, tf.float32) / tf.cast(records, tf.float32)
        return weight, batch[begin : tf.maximum(end, begin + 1)]


def in_parts(
    batches: tf.data.Dataset, schema: Schema, transform: Transform, cut: MicrobatchSpec
) -> tf.data.Dataset:
    """For each batch after the number of its lease, that number and one (weight, microbatch).

    The number says which one: the remainder of its division by their number.
    """
    transform = tensorflow2.converted(transform)

    def part(number: tf.Tensor, batch: tf.Tensor) -> Any:
        weight, piece = cut.piece(batch, number % (cut.accumulate * cut.replicas))
        return number, (weight, transform(parse(piece, schema)))

    return _mapped(batches, part).prefetch(1)


def batch_spec(schema: Schema, transform: Transform) -> Any:
    """The shapes and dtypes of a model's batches, without reading any.

    Raises:
        FinalError: the transform looks up a column that does not exist, or raises this itself.
    """
    try:
        with tf.device("CPU:0"):
            record = {name: tf.zeros(each.shape, each.dtype) for name, each in schema.items()}
            return tf.data.Dataset.from_tensors(record).batch(1).map(transform).element_spec
    except FinalError as error:  # AutoGraph has put the lines of its code before the message
        raise FinalError(str(error).rpartition("FinalError: ")[2].strip()) from error
    except KeyError as error:
        found = _KEY.search(str(error.args[0]))
        name = found[1] if found else str(error.args[0])
        if name in schema:
            raise  # by another lookup of the transform
        places = _PLACE.findall(str(error))
        place = f" (line {places[-1][1]} of {Path(places[-1][0]).name})" if places else ""
        raise FinalError(
            f"transform looks up {name!r}{place}, and does not find it{nearest(name, schema)}; the "
            f"columns of the data set are {', '.join(schema)}"
        ) from error


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


def every_record(
    files: RecordFiles, schema: Schema, transform: Transform, *, records: int, batch_size: int
) -> tf.data.Dataset:
    """Each of the ``records`` records of ``files`` once; the last batch may be smaller."""
    rows = RowLayout.of(schema)
    if rows is not None and files.bytes == records * rows.width:
        blocks = of_files(files.named, rows.width)
        parsed = _mapped(blocks, lambda rows: parse(rows, schema)).rebatch(batch_size)
    else:
        batches = files.records().batch(batch_size)
        parsed = _mapped(batches, lambda strings: parse(strings, schema))
    count = tf.data.experimental.assert_cardinality(-(-records // batch_size))
    made = _mapped(parsed, tensorflow2.converted(transform)).apply(count)
    return untuned(made.prefetch(tf.data.AUTOTUNE))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same elements, read by as many threads as there are cores, which tf.data does not tune.

    The destructor of an iterator that is tuned often waits: the tuning thread is notified before it
    can see that it is cancelled, so it sleeps until the next tuning, up to a minute later.
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/model.cc
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/cancellation.cc
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def first_records(files: RecordFiles, count: int) -> tf.Tensor:
    """The first ``count`` records of ``files``, or all of them, as a vector of strings."""
    return files.records().take(count).batch(count).get_single_element()


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
        # The begin and the end of each run of bytes that are no values.
        ends = [0, *(np.flatnonzero(np.diff(free)) + 1).tolist(), len(free)]
        fixed = [each for each in itertools.pairwise(ends) if not free[each[0]]]
        runs = [(0, 8), *((HEAD + begin, HEAD + end) for begin, end in fixed)]
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
            lambda: otherwise(
                tf.strings.reduce_join(
                    tf.gather(_BYTES, tf.cast(rows[:, HEAD:-FOOT], tf.int32)), axis=1
                )
            ),
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
