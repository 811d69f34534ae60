"""Single records, as a Python generator yields them: their schema, and columns of them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records.columns import Column, Columns, RecordError, stored_dtype

#: A cache, because NumPy is slow to build the name of a dtype.
_stored = cache(stored_dtype)


def schema_of(record: Mapping[str, Any]) -> dict[str, Feature]:
    """The schema of one record.

    Raises:
        RecordError: it has no feature, or one that cannot be stored; the message names it.
    """
    if not record:
        raise RecordError("it has no feature; give it at least one")
    return {name: _feature_of(name, value) for name, value in record.items()}


def check_fits(record: Mapping[str, Any], schema: Schema) -> None:
    """Check that the record has exactly the features of ``schema``.

    Raises:
        RecordError: a name, dtype or shape differs; the message names the feature.
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
    array = np.array([np.asarray(value) for value in values], feature.dtype)
    return Column(feature, array.reshape(len(values), *feature.shape))


def _feature_of(name: str, value: Any) -> Feature:
    try:
        array = _array(value)
    except ValueError as error:  # lists of different lengths
        raise RecordError(f"its feature {name!r} is not an array: {error}") from error
    dtype = "string" if _is_text(array) else _stored(array.dtype)
    if dtype is None:
        raise RecordError(
            f"its feature {name!r} is {type(value).__name__} of dtype {array.dtype}, which no "
            "record can hold; give integers of at most 64 signed bits, floats, bool, str or bytes"
        )
    return Feature(dtype, array.shape)


def _array(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    # NumPy's own strings lose trailing zero bytes; object arrays keep them.
    return np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array


def _is_text(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "O" and all(isinstance(each, str | bytes) for each in array.flat)
