"""Cast a source's batch to the schema of the data set, and reject rows that do not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import nearest
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import Column, Columns, RecordError, column_of
from aerotrain.data.sources import Batch, Rejected, SourceError

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class CastBatch:
    """The rows of a batch that can be stored: their columns, and their indices in the batch.

    ``missing`` counts, for each feature, the null values that were filled. Those that became NaN
    are not counted here: the statistics recognize them.
    """

    columns: Columns
    rows: NDArray[np.int64]
    missing: Mapping[str, int]
    rejected: Sequence[Rejected]


def cast_to_schema(batch: Batch, schema: Schema, rules: PlanArguments) -> CastBatch:
    """The records of ``batch`` that fit ``schema`` and the rules.

    A missing float becomes NaN and a missing string becomes empty; a missing integer is rejected
    unless ``rules.fill`` has a value for it. A missing label is always rejected.

    Raises:
        SourceError: a column is missing, or its type is not the schema's.
    """
    values = {name: _values(batch, name) for name in schema}
    rejections = _Rejections(batch)
    nulls = {name: mask for name, each in values.items() if (mask := _nulls(each)) is not None}
    for name, mask in nulls.items():
        rejections.add(mask, _why_no_null(name, schema[name], rules))
    rows = rejections.accepted()
    columns = {}
    for name, each in values.items():
        kept = each if len(rows) == len(batch) else _take(each, rows)
        columns[name] = _column(name, kept, schema[name], rules.fill.get(name), batch.file)
    for name, (least, greatest) in rules.ranges.items():
        outside = np.zeros(len(batch), bool)
        outside[rows] = _outside(columns[name], least, greatest)
        rejections.add(outside, f"column {name!r} is not from {least} to {greatest}")
    accepted = rejections.accepted()
    if len(accepted) < len(rows):
        inside = np.flatnonzero(np.isin(rows, accepted))
        columns = {name: column.take(inside) for name, column in columns.items()}
    return CastBatch(
        columns=columns,
        rows=accepted,
        missing={
            name: int(mask[accepted].sum())
            for name, mask in nulls.items()
            if name in rules.fill or schema[name].dtype != "float32"
        },
        rejected=[*batch.rejected, *rejections.rejected()],
    )


class _Rejections:
    """The rejected rows of a batch, each with the first reason that was found."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._reasons: dict[int, str] = {}

    def add(self, rows: Mask, reason: str | None) -> None:
        if reason is not None:
            for row in np.flatnonzero(rows):
                self._reasons.setdefault(int(row), reason)

    def accepted(self) -> NDArray[np.int64]:
        return np.delete(np.arange(len(self._batch)), list(self._reasons))

    def rejected(self) -> list[Rejected]:
        return [self._batch.reject(row, self._reasons[row]) for row in sorted(self._reasons)]


def _values(batch: Batch, name: str) -> Any:
    if name not in batch.columns:
        raise SourceError(
            f"{batch.file} has no column {name!r}{nearest(name, list(batch.columns))}, which the "
            "schema has; give all files the same columns"
        )
    values = batch.columns[name]
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _nulls(values: Any) -> Mask | None:
    if not isinstance(values, pa.Array) or not values.null_count:
        return None
    return pc.is_null(values).to_numpy(zero_copy_only=False)


def _why_no_null(name: str, feature: Feature, rules: PlanArguments) -> str | None:
    """Why a null of this column cannot be stored; None if it can."""
    if name == rules.label:
        return f"the label {name!r} is missing"
    if name in rules.fill or (feature.dtype in ("float32", "string") and feature.shape == ()):
        return None
    return (
        f"column {name!r} is missing, and {feature.dtype} has no value for missing; give one in "
        "'fill'"
    )


def _take(values: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(values, Column):
        return values.take(rows)
    return values.take(pa.array(rows)) if isinstance(values, pa.Array) else values[rows]


def _column(name: str, values: Any, feature: Feature, fill: Any, file: str) -> Column:
    try:
        column = (
            values if isinstance(values, Column) else column_of(name, _fill_nulls(values, fill))
        )
        return _cast(feature, column)
    except (RecordError, TypeError, pa.ArrowInvalid) as error:
        raise SourceError(
            f"{file}: column {name!r} cannot be cast to {feature}, its type in the schema: "
            f"{error}; give all files the same types, or leave the column out"
        ) from error


def _fill_nulls(values: Any, fill: Any) -> Any:
    if not isinstance(values, pa.Array) or not values.null_count:
        return values
    if pa.types.is_null(values.type):
        values = values.cast(pa.float64() if fill is None else pa.scalar(fill).type)
    if fill is not None:
        return values.fill_null(pa.scalar(fill).cast(values.type))
    if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        return values.cast(pa.float64()).fill_null(float("nan"))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_binary()).fill_null(b"")


def _cast(feature: Feature, column: Column) -> Column:
    """The column cast to ``feature``, if no value changes.

    Raises:
        TypeError: a value would change, or the shape differs.
    """
    found = column.feature
    if found == feature or not len(column):
        return column if found == feature else _empty(feature)
    if found.shape == feature.shape and not {found.dtype, feature.dtype} & {"string", "bool"}:
        cast = column.values.astype(feature.dtype)
        if (cast == column.values).all():
            return Column(feature, cast)
    raise TypeError(f"it is {found}")


def _empty(feature: Feature) -> Column:
    if feature.dtype == "string":
        return Column(feature, pa.array([], pa.large_binary()))
    return Column(feature, np.zeros((0, *feature.shape), feature.dtype))


def _outside(column: Column, least: float, greatest: float) -> Mask:
    values = column.values.reshape(len(column), -1)
    return ~((values >= least) & (values <= greatest)).all(axis=1)
