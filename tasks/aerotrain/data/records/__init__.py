"""Encoding of ``tf.train.Example`` from columns, and TFRecord framing, without TensorFlow.

A process that prepares data therefore starts in a fraction of a second. The message is
defined in https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
and the framing in https://www.tensorflow.org/tutorials/load_data/tfrecord. The code is
vectorized over many records; no operation on a single record takes a microsecond.
"""

from aerotrain.data.records.columns import (
    FLATTEN,
    Column,
    Columns,
    RecordError,
    arrow_type,
    check_fits,
    column_of,
    concatenated,
    exact_float,
    is_list_type,
    is_text_type,
    largest_of,
    lists_of,
    nulls_within,
    schema_of,
    stacked,
    to_pad,
)
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import (
    Frames,
    FramingError,
    encoded_frames,
    framed,
    read_frames,
)

__all__ = [
    "FLATTEN",
    "Column",
    "Columns",
    "Frames",
    "FramingError",
    "RecordError",
    "arrow_type",
    "check_fits",
    "column_of",
    "concatenated",
    "encode",
    "encoded_frames",
    "exact_float",
    "framed",
    "is_list_type",
    "is_text_type",
    "largest_of",
    "lists_of",
    "nulls_within",
    "read_frames",
    "schema_of",
    "stacked",
    "to_pad",
]
