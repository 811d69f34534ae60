"""From shards of serialized records to the batches of a model."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.training.input.record_files import RecordFiles
from aerotrain.training.input.rows import RowLayout
from aerotrain.training.input.shuffle_windows import AS_WRITTEN, of_files
from aerotrain.training.internals import tensorflow2

#: Takes a batch of features by name, returns ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
Transform = Callable[[dict[str, tf.Tensor]], Any]

#: A line of the user's code in an error of AutoGraph, the last of which raised it.
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
#: The key in such an error.
_KEY = re.compile(r"KeyError: '(.*)'")


def parse(records: tf.Tensor, schema: Schema) -> dict[str, tf.Tensor]:
    """Parse a batch of serialized ``tf.train.Example`` to features, ``(batch, *shape)`` each.

    Records are strings, or ``uint8`` of ``(batch, width)`` if all have one layout.
    """
    return AS_WRITTEN(_features)(records, schema)


def _features(records: tf.Tensor, schema: Schema) -> dict[str, tf.Tensor]:
    records = tf.convert_to_tensor(records)
    rows = RowLayout.of(schema) if records.dtype == tf.uint8 else None
    if rows is None:
        return _parsed(records, schema)
    return rows.parse(records, lambda strings: _parsed(strings, schema))


def _parsed(serialized: tf.Tensor, schema: Schema) -> dict[str, tf.Tensor]:
    spec = {name: _stored(feature) for name, feature in schema.items()}
    stored = tf.io.parse_example(serialized, spec)
    return {name: _restored(stored[name], feature) for name, feature in schema.items()}


def _stored(feature: Feature) -> tf.io.FixedLenFeature:
    if feature.is_raw:
        return tf.io.FixedLenFeature([], tf.string)
    dtype = tf.as_dtype(feature.dtype)
    held = dtype if dtype in (tf.string, tf.float32) else tf.int64
    return tf.io.FixedLenFeature(feature.shape, held)


def _restored(value: tf.Tensor, feature: Feature) -> tf.Tensor:
    dtype = tf.as_dtype(feature.dtype)
    if feature.is_raw:
        return tf.reshape(tf.io.decode_raw(value, dtype), [-1, *feature.shape])
    return value if value.dtype == dtype else tf.cast(value, dtype)


def ready(batches: tf.data.Dataset, schema: Schema, transform: Transform) -> tf.data.Dataset:
    """Parse and transform batches of records, and prefetch them.

    Records are parsed by the batch, which is several times faster than one by one.
    """
    transform = tensorflow2.converted(transform)
    return _mapped(batches, lambda records: transform(parse(records, schema))).prefetch(
        tf.data.AUTOTUNE
    )


def _mapped(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Map ``function`` over the elements, several at once, in their order."""
    return dataset.map(
        AS_WRITTEN(function), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


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


def in_microbatches(
    batches: tf.data.Dataset, schema: Schema, transform: Transform, cut: MicrobatchSpec
) -> tf.data.Dataset:
    """For each batch, one element per local replica: a tuple of (weight, microbatch)."""
    transform = tensorflow2.converted(transform)

    def element(replica: Any, batch: tf.Tensor) -> Any:
        pieces = (
            cut.piece(batch, replica * cut.accumulate + each) for each in range(cut.accumulate)
        )
        return tuple((weight, transform(parse(piece, schema))) for weight, piece in pieces)

    def for_each_replica(batch: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(batch).repeat(cut.local).enumerate(cut.first)

    if cut.local == 1:
        made = _mapped(batches, lambda batch: element(cut.first, batch))
    else:
        made = _mapped(batches.flat_map(AS_WRITTEN(for_each_replica)), element)
    # Otherwise TensorFlow synchronizes the replicas before each step, to agree that there is one.
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return made.apply(endless).prefetch(tf.data.AUTOTUNE)


def batch_spec(schema: Schema, transform: Transform) -> Any:
    """The shapes and dtypes of a model's batches, without reading any.

    Raises:
        FinalError: the transform looks up a column that does not exist.
    """
    try:
        with tf.device("CPU:0"):
            record = {name: tf.zeros(each.shape, each.dtype) for name, each in schema.items()}
            return tf.data.Dataset.from_tensors(record).batch(1).map(transform).element_spec
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
