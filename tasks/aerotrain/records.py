"""Records as bytes: ``tf.train.Example`` encoded by hand, and TFRecord framing around it.

So preparing data needs no TensorFlow, and starts in a fraction of a second. The message is
defined in https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
and the framing in https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Feature, Schema

#: The dtypes that an int64 list can hold, and uint8, which is kept as raw bytes.
_NUMBERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})

_LENGTH_DELIMITED = 2  # https://protobuf.dev/programming-guides/encoding/#structure
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3  # field numbers of tensorflow.Feature

_CRC_MASK = 0xA282EAD8


class RecordError(FinalError):
    """A record cannot be stored, or is not like the records before it."""


def schema_of(record: Mapping[str, Any]) -> dict[str, Feature]:
    """The schema that this record has.

    Raises:
        RecordError: it has no feature, or one that cannot be stored; the message names it.
    """
    if not record:
        raise RecordError("it has no feature; give it at least one")
    return {name: _feature_of(name, value) for name, value in record.items()}


def check_fits(record: Mapping[str, Any], schema: Schema) -> None:
    """Make sure that the record has exactly the features of ``schema``.

    Raises:
        RecordError: it has others, or one of another dtype or shape; the message names it.
    """
    found = schema_of(record)
    if found.keys() != schema.keys():
        raise RecordError(
            f"its features are {', '.join(sorted(found))}, where the first record has "
            f"{', '.join(sorted(schema))}; give all records the same features"
        )
    for name, feature in found.items():
        if feature != schema[name]:
            raise RecordError(
                f"its feature {name!r} is {feature}, where the first record's is "
                f"{schema[name]}; give all records the same dtype and shape"
            )


def encode(record: Mapping[str, Any], schema: Schema) -> bytes:
    """One record that fits ``schema`` as a serialized ``tf.train.Example``.

    Features are in the order of their names, so that equal records are equal bytes.
    """
    features = b"".join(
        _message(
            1,  # an entry of the map in tensorflow.Features
            _message(1, name.encode()) + _message(2, _value(record[name], schema[name])),
        )
        for name in sorted(schema)
    )
    return _message(1, features)


def frame(record: bytes) -> bytes:
    """One serialized record as it stands in a TFRecord file, with both of its checksums."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, _masked_crc(length), record, _masked_crc(record)))


def _feature_of(name: str, value: Any) -> Feature:
    try:
        array = _array(value)
    except ValueError as error:  # lists of different lengths
        raise RecordError(f"its feature {name!r} is no array: {error}") from error
    dtype = "string" if _is_text(array) else _stored_dtype(array.dtype)
    if dtype is None:
        raise RecordError(
            f"its feature {name!r} is {type(value).__name__} of dtype {array.dtype}, which no "
            "record can hold; give integers of at most 64 signed bits, floats, bool, str or bytes"
        )
    return Feature(dtype, array.shape)


@cache  # NumPy takes longer to spell a dtype's name than we do to encode its value
def _stored_dtype(dtype: np.dtype[Any]) -> str | None:
    """The dtype under which numbers of ``dtype`` are kept, if any."""
    if dtype.kind == "f":
        return "float32"  # an Example knows no other floats
    return dtype.name if dtype.name in _NUMBERS else None


def _array(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    # NumPy's own strings lose trailing zero bytes, so text stays what it was.
    return np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array


def _is_text(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "O" and all(isinstance(each, str | bytes) for each in array.flat)


def _value(value: Any, feature: Feature) -> bytes:
    """A ``tensorflow.Feature`` message."""
    array = _array(value)
    if feature.dtype == "uint8":
        return _message(_BYTES_LIST, _message(1, array.tobytes()))
    if feature.dtype == "string":
        texts = (each.encode() if isinstance(each, str) else each for each in array.flat)
        return _message(_BYTES_LIST, b"".join(_message(1, text) for text in texts))
    if feature.dtype == "float32":
        return _message(_FLOAT_LIST, _message(1, array.astype("<f4").tobytes()))
    return _message(_INT64_LIST, _message(1, _varints(array.astype(np.int64).ravel().tolist())))


def _message(number: int, content: bytes) -> bytes:
    """A length-delimited field: a message in a message, bytes, or packed numbers."""
    tag = number << 3 | _LENGTH_DELIMITED
    return b"".join((bytes((tag,)), _varints((len(content),)), content))


def _varints(values: Iterable[int]) -> bytes:
    """Integers as varints; one below zero as the 64 bits of its two's complement."""
    encoded = bytearray()
    for value in values:
        left = value & 0xFFFF_FFFF_FFFF_FFFF
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
    return bytes(encoded)


def _masked_crc(data: bytes) -> bytes:
    """The CRC-32C of ``data``, rotated and shifted: a CRC of data that holds CRCs is weak."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFF_FFFF)
