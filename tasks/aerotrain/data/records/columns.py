"""Columns: one feature of many records, in the types that a tf.train.Example can hold.

They are made of a batch's NumPy or Arrow values, or of single records that user code yields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature, Schema

#: The dtypes that fit an int64 list, and uint8, which is stored as raw bytes.
_INTEGERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})

_USE_TYPES = "give integers of at most 64 signed bits, floats, bool, str or bytes"

#: What to do with objects, structs and maps.
FLATTEN = "flatten it by a source of the kind python, as 'Objects' in docs/data.md shows"


class RecordError(FinalError):
    """A record cannot be stored, or its features differ from those of earlier records."""


@dataclass(frozen=True)
class Column:
    """The values of one feature.

    Numbers are an array ``(records, *shape)``. Strings are a ``large_binary`` array of
    ``records × prod(shape)`` values, in C order.
    """

    feature: Feature
    values: Any

    @classmethod
    def empty(cls, feature: Feature) -> Self:
        """The column of no record."""
        if feature.dtype == "string":
            return cls(feature, pa.array([], pa.large_binary()))
        return cls(feature, np.zeros((0, *feature.shape), feature.dtype))

    def __len__(self) -> int:
        size = prod(self.feature.shape)
        return len(self.values) // size if self.is_text and size else len(self.values)

    @property
    def is_text(self) -> bool:
        return self.feature.dtype == "string"

    def __getitem__(self, rows: slice) -> "Column":
        """The same feature of adjacent records, without a copy."""
        size = prod(self.feature.shape) if self.is_text else 1
        return Column(self.feature, self.values[rows.start * size : rows.stop * size])

    def take(self, rows: NDArray[np.int64]) -> "Column":
        """The same feature of some of the records, in the order of ``rows``."""
        if not self.is_text:
            return Column(self.feature, self.values[rows])
        size = prod(self.feature.shape)
        flat = rows if size == 1 else (rows[:, None] * size + np.arange(size)).ravel()
        return Column(self.feature, self.values.take(pa.array(flat)))


Columns = Mapping[str, Column]


@cache  # NumPy is slow to build the name of a dtype
def _exact_dtype(dtype: np.dtype[Any]) -> str | None:
    """The smallest dtype of a feature that holds each value of ``dtype``; None if there is none."""
    if dtype.kind == "f":
        return {2: "float32", 4: "float32", 8: "float64"}.get(dtype.itemsize)
    return dtype.name if dtype.name in _INTEGERS else None


def column_of(name: str, values: Any) -> Column:
    """Convert NumPy or Arrow values without nulls to a column that records can hold.

    Numbers are unchanged, but uint64 is int64: ``aerotrain.data.prepare.cast`` casts them to the
    types of the schema. A null in a list of numbers is NaN. Timestamps become microseconds since
    1970, dates the number of days since then, times of day in seconds microseconds, decimals
    float64.

    Raises:
        RecordError: no record can hold such values; the message names the column.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return _of_arrow(name, values)
    if values.dtype.kind in "OSU":
        texts = pa.array(values.ravel().tolist(), pa.large_binary())
        return Column(Feature("string", values.shape[1:]), texts)
    if values.dtype == np.uint64:
        values = _signed(name, values)
    dtype = _exact_dtype(values.dtype)
    if dtype is None:
        raise RecordError(
            f"the column {name!r} is of dtype {values.dtype}, which no record can hold; "
            f"{_USE_TYPES}"
        )
    return Column(Feature(dtype, values.shape[1:]), np.ascontiguousarray(values, dtype))


def _signed(name: str, values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The same integers as int64. Raises ``RecordError`` if one does not fit."""
    if values.max(initial=0) > np.iinfo(np.int64).max:
        raise RecordError(
            f"the column {name!r} is of type uint64, with the value {values.max()}, which int64 "
            "cannot hold; declare it string or float64 in 'types' of the source, or leave it out "
            "with 'skip'"
        )
    return values.astype(np.int64)


def _of_arrow(name: str, values: pa.Array) -> Column:
    kind, types = values.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return column_of(name, values.to_numpy(zero_copy_only=False))
    if is_text_type(kind) or types.is_fixed_size_binary(kind):
        return Column(Feature("string"), values.cast(pa.large_binary()))
    if is_list_type(kind):
        return _of_lists(name, values)
    if types.is_dictionary(kind):
        return column_of(name, values.dictionary_decode())
    if types.is_timestamp(kind):
        microseconds = values.cast(pa.timestamp("us", kind.tz), safe=False)
        return column_of(name, microseconds.cast(pa.int64()))
    if types.is_date(kind):
        return column_of(name, values.cast(pa.date32()).cast(pa.int32()))
    if types.is_time32(kind):
        values, kind = values.cast(pa.time64("us")), pa.time64("us")
    if types.is_time(kind) or types.is_duration(kind):
        return column_of(name, values.cast(pa.int64(), safe=False))
    if types.is_decimal(kind):
        return column_of(name, values.cast(pa.float64(), safe=False))
    what = FLATTEN if types.is_nested(kind) else _USE_TYPES
    raise RecordError(
        f"the column {name!r} is of type {kind}, which no record can hold; {what}, or leave it out "
        "with 'skip'"
    )


def _of_lists(name: str, values: pa.Array) -> Column:
    """Lists of equal length as arrays: a fixed shape is needed to parse an Example."""
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0]))
        raise RecordError(
            f"the column {name!r} holds lists of {lengths[0]} and of {lengths[row]} values; "
            f"{to_pad(name, int(lengths.max()))}"
        )
    if pa.types.is_fixed_size_list(values.type):
        length = values.type.list_size
    else:
        length = int(lengths[0]) if len(lengths) else 0
    inner = column_of(name, values.flatten())
    shape = (length, *inner.feature.shape)
    held = inner.values if inner.is_text else inner.values.reshape(len(values), *shape)
    return Column(Feature(inner.feature.dtype, shape), held)


def to_pad(name: str, longest: int) -> str:
    """What to do with lists of different lengths, of which one has ``longest`` values."""
    return f"pad them to one length with 'pad' of the source, such as {{{name!r}: {longest}}}"


def is_text_type(kind: pa.DataType) -> bool:
    """Whether Arrow values of that type are strings or bytes of any length."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def is_list_type(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def arrow_type(feature: Feature) -> pa.DataType:
    """The type of Arrow values of that feature, of any length."""
    kind = pa.large_binary() if feature.dtype == "string" else pa.float64()
    if feature.dtype in _INTEGERS:
        kind = pa.from_numpy_dtype(np.dtype(feature.dtype))
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind


def nulls_within(lists: pa.Array) -> NDArray[np.bool_]:
    """The rows whose lists hold a null, at any depth."""
    inner = lists.flatten()
    rows = np.zeros(len(lists), np.bool_)
    if not inner.null_count and not is_list_type(inner.type):
        return rows
    wrong = pc.is_null(inner).to_numpy(zero_copy_only=False)
    if is_list_type(inner.type):
        wrong = wrong | nulls_within(inner)
    rows[pc.list_parent_indices(lists).to_numpy()[wrong]] = True
    return rows


def largest_of(values: Any) -> int:
    """The greatest absolute value of Arrow integers."""
    ends = pc.min_max(values).as_py()
    return max(abs(ends["min"] or 0), abs(ends["max"] or 0))


def exact_float(largest: int) -> str | None:
    """The smallest dtype of floats that holds all integers up to ``largest``; None if none does."""
    return "float32" if largest <= 2**24 else "float64" if largest <= 2**53 else None


def schema_of(record: Mapping[str, Any]) -> dict[str, Feature]:
    """The schema of one record.

    Raises:
        RecordError: it has no feature, or one that cannot be stored; the message names it.
    """
    if not record:
        raise RecordError("it has no feature; give it at least one")
    return {name: _feature_of(name, value) for name, value in record.items()}


def check_fits(found: Schema, schema: Schema) -> None:
    """Check that a record with the features ``found`` has exactly those of ``schema``.

    Raises:
        RecordError: a name, dtype or shape differs; the message names the feature.
    """
    if found.keys() != schema.keys():
        raise RecordError(
            f"its features are {', '.join(sorted(found))}, where the first record has "
            f"{', '.join(sorted(schema))}; give all records the same features"
        )
    for name, feature in found.items():
        first = schema[name]
        are_alike = feature.dtype == first.dtype or (feature.is_float and first.is_float)
        if are_alike and feature.shape == first.shape:
            continue
        raise RecordError(
            f"its feature {name!r} is {feature}, where the first record's is {first}; give all "
            "records the same dtype and shape, such as lists of one length"
        )


def stacked(records: Sequence[Mapping[str, Any]], schema: Schema) -> Columns:
    """Stack records that fit ``schema`` into columns."""
    return {
        name: _stacked([record[name] for record in records], feature)
        for name, feature in schema.items()
    }


def _stacked(values: Sequence[Any], feature: Feature) -> Column:
    if feature.dtype == "string":
        each = (text for value in values for text in _array(value).flat)
        encoded = [text.encode() if isinstance(text, str) else text for text in each]
        return Column(feature, pa.array(encoded, pa.large_binary()))
    dtype = None if feature.is_float else feature.dtype
    array = np.array([np.asarray(value) for value in values], dtype)
    if feature.is_float:  # a schema of float32 takes float64, too: the cast follows
        feature = Feature("float32" if array.dtype.itemsize < 8 else "float64", feature.shape)
        array = array.astype(feature.dtype, copy=False)
    return Column(feature, array.reshape(len(values), *feature.shape))


def _feature_of(name: str, value: Any) -> Feature:
    try:
        array = _array(value)
    except ValueError as error:  # lists of different lengths
        raise RecordError(f"its feature {name!r} is not an array: {error}") from error
    dtype = "string" if _holds_texts(array) else _exact_dtype(array.dtype)
    if dtype is None:
        raise RecordError(
            f"its feature {name!r} is {type(value).__name__} of dtype {array.dtype}, which no "
            f"record can hold; {_USE_TYPES}"
        )
    return Feature(dtype, array.shape)


def _array(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    # NumPy's own strings lose trailing zero bytes; object arrays keep them.
    return np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array


def _holds_texts(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "O" and all(isinstance(each, str | bytes) for each in array.flat)
