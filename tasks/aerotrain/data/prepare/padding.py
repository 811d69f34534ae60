"""Lists of different lengths as arrays of one length, so that every record has the same shape.

Models, strategies and exported signatures then need to know nothing of lengths.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature
from aerotrain.data.records import Column, column_of, is_list_type
from aerotrain.data.sources import Padding


def longer_than(padding: Padding, name: str, lists: Any) -> tuple[NDArray[np.bool_], str]:
    """The rows that are rejected because their lists are longer than the padding, and why."""
    if padding.longer != "reject" or not is_list_type(lists.type):
        return np.zeros(len(lists), np.bool_), ""
    return _lengths(lists) > padding.length, (
        f"column {name!r} has more than the {padding.length} values of 'pad'; give a greater "
        "length there, or cut them off with 'longer': 'truncate'"
    )


def padded(name: str, lists: pa.Array, feature: Feature, padding: Padding) -> Column:
    """The column of arrays of ``padding.length`` values; a null counts as an empty list.

    ``feature`` is the one of the schema, from which the column may differ in its dtype, and in the
    shape of a single value.

    Raises:
        TypeError: these are no lists.
        RecordError: no record can hold their values.
    """
    if not is_list_type(lists.type):
        raise TypeError(f"it is {lists.type}, and 'pad' takes lists")
    values = lists.flatten()
    one = Feature(feature.dtype, feature.shape[1:])
    found = column_of(name, values) if len(values) else Column.empty(one)
    lengths = _lengths(lists)
    begins = np.cumsum(lengths) - lengths
    places = np.arange(padding.length)
    rows = np.where(places < lengths[:, None], begins[:, None] + places, len(found))
    taken = _with_padding(found, padding.value).take(rows.ravel())
    arrays = padding.feature(taken.feature)
    if taken.is_text:
        return Column(arrays, taken.values)
    return Column(arrays, taken.values.reshape(len(lengths), *arrays.shape))


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    lengths = pc.list_value_length(lists).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _with_padding(column: Column, value: Any) -> Column:
    """The column with the padding as its last row, in a type that holds both."""
    if column.is_text:
        size = int(np.prod(column.feature.shape))
        last = pa.array([value or ""] * size, pa.large_binary())
        return Column(column.feature, pa.concat_arrays([column.values, last]))
    dtype = column.values.dtype
    if value is not None:
        kind = np.float64 if isinstance(value, float) else np.min_scalar_type(value)
        dtype = np.result_type(dtype, kind)
    last = np.full((1, *column.feature.shape), value or 0, dtype)
    values = np.concatenate([column.values, last], dtype=dtype)
    return Column(Feature(dtype.name, column.feature.shape), values)
