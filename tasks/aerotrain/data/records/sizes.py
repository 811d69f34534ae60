"""The sizes of rows in memory, and the division of rows into parts of a limited size.

The size of stored data says little about them: a value that repeats in a Parquet file, or in a
compressed one, is stored once.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.records.columns import Column, is_list_type, is_text_type

Sizes = NDArray[np.int64]


def parts_of(sizes: Sizes, most: int) -> Iterator[slice]:
    """Slices of rows of these ``sizes``, which have about ``most`` bytes each, or one row."""
    ends = np.cumsum(sizes)
    cuts = np.flatnonzero(np.diff((ends - 1) // most)) + 1
    for start, end in pairwise([0, *cuts.tolist(), len(sizes)]):
        if start < end:
            yield slice(start, end)


def bytes_of_rows(values: Any) -> Sizes:
    """The bytes of each row of a column, with its values in full where they are stored once."""
    if isinstance(values, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.int64), *map(bytes_of_rows, values.chunks)])
    if isinstance(values, pa.Array):
        return _of_arrow(values)
    if isinstance(values, Column) and values.is_text:
        return _of_arrow(values.values).reshape(len(values), -1).sum(axis=1)
    array = values.values if isinstance(values, Column) else values
    return np.full(len(array), array.dtype.itemsize * prod(array.shape[1:]), np.int64)


def _of_arrow(values: pa.Array) -> Sizes:
    kind = values.type
    if pa.types.is_dictionary(kind):
        each = np.append(_of_arrow(values.dictionary), 0)  # the last is that of a null
        indices = values.indices.cast(pa.int64()).fill_null(len(each) - 1)
        return each[indices.to_numpy(zero_copy_only=False)]
    if is_list_type(kind):
        lengths = _integers(pc.list_value_length(values))
        ends = np.cumsum(np.append(0, _of_arrow(values.flatten())))
        rows = np.cumsum(np.append(0, lengths))
        return ends[rows[1:]] - ends[rows[:-1]]
    if is_text_type(kind):
        return _integers(pc.binary_length(values))
    try:
        width = -(-kind.bit_width // 8)
    except ValueError:  # a struct or another type that no record can hold
        width = values.nbytes // max(1, len(values))
    return np.full(len(values), width, np.int64)


def _integers(lengths: pa.Array) -> Sizes:
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
