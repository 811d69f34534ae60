"""The columns of predictions: their Arrow types, and the values of a batch as such."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.preparing import FILE, KEY, OFFSET
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records.columns import Column
from aerotrain.data.sources.batch import Batch
from aerotrain.serving.classes import SUFFIX, Classes


def output_schema(
    batch: Batch, keep: Sequence[str], outputs: Schema, classes: Mapping[str, Classes]
) -> pa.Schema:
    """The columns of predictions for records such as those of ``batch``.

    ``classes`` are those of outputs by name.

    Raises:
        SpecError: two columns have one name.
    """
    named = [f"{name}{SUFFIX}" for name in classes]
    for name in keep:
        if name in outputs or name in (FILE, OFFSET, KEY, *named):
            raise SpecError(
                f"keep names the column {name!r}, as an output of predictions is called; give it "
                f"another name by rename={{{name!r}: ...}} of the source"
            )
    keys = [] if batch.keys is None else [pa.field(KEY, pa.string())]
    return pa.schema(
        [
            pa.field(FILE, pa.dictionary(pa.int32(), pa.string())),
            pa.field(OFFSET, pa.int64()),
            *keys,
            *(pa.field(name, arrow_of(batch.columns[name]).type) for name in keep),
            *(pa.field(name, _type_of(feature)) for name, feature in outputs.items()),
            *(pa.field(name, pa.dictionary(pa.int32(), pa.string())) for name in named),
        ]
    )


def kept_columns(batch: Batch, rows: NDArray[np.int64], columns: pa.Schema) -> dict[str, pa.Array]:
    """The columns of the predictions of some rows, without the model's outputs.

    Raises:
        FinalError: a column has another type than in the records that were planned with.
    """
    place = pa.array(np.zeros(len(rows), np.int32))
    kept: dict[str, pa.Array] = {
        FILE: pa.DictionaryArray.from_arrays(place, pa.array([batch.file])),
        OFFSET: pa.array(batch.offsets[rows]),
    }
    if KEY in columns.names and batch.keys is not None:
        kept[KEY] = pa.array([batch.keys[row] for row in rows], pa.string())
    for field in columns:
        if field.name in batch.columns and field.name not in kept:
            values = arrow_of(batch.columns[field.name]).take(pa.array(rows))
            try:
                kept[field.name] = values.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise FinalError(
                    f"{batch.file}: the column {field.name!r}, which is kept, cannot be of type "
                    f"{field.type}, which it has in the first file: {error}; give all files the "
                    "same types, or set its type in 'types' of the source"
                ) from error
    return kept


def arrow_of(values: Any) -> pa.Array:
    """A column of a batch as Arrow values, one for each record."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        is_dictionary = pa.types.is_dictionary(values.type)
        return values.dictionary_decode() if is_dictionary else values
    if isinstance(values, Column):
        shape = values.feature.shape
        flat = values.values if values.is_text else pa.array(np.ravel(values.values))
        return nested(flat, shape)
    array = np.asarray(values)
    return nested(pa.array(np.ravel(array)), array.shape[1:])


def nested(flat: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Values in C order as lists of lists, ``(records, *shape)``."""
    for size in reversed(shape):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def output_columns(
    outputs: Mapping[str, Any], columns: pa.Schema, classes: Mapping[str, Classes]
) -> dict[str, pa.Array]:
    """The model's outputs ``(records, *shape)`` as columns; one value a record is no list.

    Columns of the predicted ``classes`` follow them.
    """
    found: dict[str, pa.Array] = {
        f"{name}{SUFFIX}": each.of(outputs[name]) for name, each in classes.items()
    }
    for name, value in outputs.items():
        array = np.asarray(value)
        flat = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        shape = array.shape[1:] if array.shape[1:] != (1,) else ()
        found[name] = nested(pa.array(np.ravel(flat)), shape).cast(columns.field(name).type)
    return found


def _type_of(feature: Feature) -> pa.DataType:
    kind = _SCALARS.get(feature.dtype) or pa.from_numpy_dtype(np.dtype(feature.dtype))
    shape = feature.shape if feature.shape != (1,) else ()
    for size in reversed(shape):
        kind = pa.list_(kind, size) if size > 0 else pa.list_(kind)
    return kind


#: The Arrow types of what NumPy has no type for.
_SCALARS = {"string": pa.binary(), "bfloat16": pa.float32(), "bool": pa.bool_()}
