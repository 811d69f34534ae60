"""Columns: one feature of many records, in the types that a tf.train.Example can hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature

#: The dtypes that fit an int64 list, and uint8, which is stored as raw bytes.
NUMBERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})

_CAN_BE_HELD = "give integers of at most 64 signed bits, floats, bool, str or bytes"


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

    def __len__(self) -> int:
        size = prod(self.feature.shape)
        return len(self.values) // size if self.is_text and size else len(self.values)

    @property
    def is_text(self) -> bool:
        return self.feature.dtype == "string"

    def take(self, rows: NDArray[np.int64]) -> "Column":
        """The same feature of some of the records, in the order of ``rows``."""
        if not self.is_text:
            return Column(self.feature, self.values[rows])
        size = prod(self.feature.shape)
        flat = rows if size == 1 else (rows[:, None] * size + np.arange(size)).ravel()
        return Column(self.feature, self.values.take(pa.array(flat)))


Columns = Mapping[str, Column]


def stored_dtype(dtype: np.dtype[Any]) -> str | None:
    """The dtype in which numbers of ``dtype`` are stored; None if they cannot be."""
    if dtype.kind == "f":
        return "float32"  # the only float type of an Example
    return dtype.name if dtype.name in NUMBERS else None


def column_of(name: str, values: Any) -> Column:
    """Convert NumPy or Arrow values without nulls to a column that records can hold.

    Timestamps become microseconds since 1970, dates the number of days since then.

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
    dtype = stored_dtype(values.dtype)
    if dtype is None:
        raise RecordError(
            f"the column {name!r} is of dtype {values.dtype}, which no record can hold; "
            f"{_CAN_BE_HELD}"
        )
    return Column(Feature(dtype, values.shape[1:]), np.ascontiguousarray(values, dtype))


def _of_arrow(name: str, values: pa.Array) -> Column:
    for applies, convert in _CONVERSIONS:
        if applies(values.type):
            return convert(name, values)
    raise RecordError(
        f"the column {name!r} is of type {values.type}, which no record can hold; "
        f"{_CAN_BE_HELD}, or leave it out by naming the other columns in 'columns'"
    )


def _numbers(name: str, values: pa.Array) -> Column:
    return column_of(name, values.to_numpy(zero_copy_only=False))


def _texts(_name: str, values: pa.Array) -> Column:
    return Column(Feature("string"), values.cast(pa.large_binary()))


def _decoded(name: str, values: pa.Array) -> Column:
    return column_of(name, values.dictionary_decode())


def _as(target: pa.DataType) -> Callable[[str, pa.Array], Column]:
    return lambda name, values: column_of(name, values.cast(target, safe=False))


def _microseconds(name: str, values: pa.Array) -> Column:
    zone = getattr(values.type, "tz", None)
    timestamps = values.cast(pa.timestamp("us", zone), safe=False)
    return column_of(name, timestamps.cast(pa.int64()))


def _lists(name: str, values: pa.Array) -> Column:
    """Lists of equal length as arrays: a fixed shape is needed to parse an Example."""
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0]))
        raise RecordError(
            f"the column {name!r} holds lists of {lengths[0]} and of {lengths[row]} values; "
            "give all of them the same length"
        )
    if pa.types.is_fixed_size_list(values.type):
        length = values.type.list_size
    else:
        length = int(lengths[0]) if len(lengths) else 0
    inner = column_of(name, values.flatten())
    shape = (length, *inner.feature.shape)
    held = inner.values if inner.is_text else inner.values.reshape(len(values), *shape)
    return Column(Feature(inner.feature.dtype, shape), held)


def _is_text(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    more = (pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in (*checks, *more))


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


#: The conversion of each Arrow type; the first that applies is used.
_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.Array], Column]], ...]
_CONVERSIONS = (
    (lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind), _numbers),
    (pa.types.is_boolean, _numbers),
    (_is_text, _texts),
    (pa.types.is_dictionary, _decoded),
    (pa.types.is_timestamp, _microseconds),
    (pa.types.is_date, lambda name, each: _as(pa.int32())(name, each.cast(pa.date32()))),
    (lambda kind: pa.types.is_time(kind) or pa.types.is_duration(kind), _as(pa.int64())),
    (pa.types.is_decimal, _as(pa.float64())),
    (_is_list, _lists),
)
