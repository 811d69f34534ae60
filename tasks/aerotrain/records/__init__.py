"""Records as bytes: ``tf.train.Example`` encoded from columns, and TFRecord framing around it.

So preparing data needs no TensorFlow, and starts in a fraction of a second. The message is
defined in https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
and the framing in https://www.tensorflow.org/tutorials/load_data/tfrecord. Everything is done
for many records at once; nothing that is done for one of them alone takes a microsecond.
"""

from aerotrain.records.columns import Column, Columns, RecordError, column_of
from aerotrain.records.encoding import encode
from aerotrain.records.framing import Frames, encoded_frames, framed
from aerotrain.records.reading import Damage, FramingError, read_frames
from aerotrain.records.single import check_fits, schema_of, stacked

__all__ = [
    "Column",
    "Columns",
    "Damage",
    "Frames",
    "FramingError",
    "RecordError",
    "check_fits",
    "column_of",
    "encode",
    "encoded_frames",
    "framed",
    "read_frames",
    "schema_of",
    "stacked",
]
