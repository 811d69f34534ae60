"""Cast a source's batch to the schema of the data set, and reject rows that do not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records.columns import (
    Column,
    Columns,
    RecordError,
    arrow_type,
    column_of,
    is_list_type,
    nulls_within,
    to_pad,
)
from aerotrain.data.sources.batch import Batch, Padding, Rejected, SourceError

Mask = NDArray[np.bool_]

#: Smaller values are changed by less than a half by float32.
_ROUNDED_FROM = 2.0**23

_TOO_LARGE = (
    "column {!r} is beyond the range of float32, 3.4e38; set its type to float64 in 'types' of the "
    "source"
)


#: In which numbers that are missing are NaN.
_OR_A_FLOAT = ", or declare it float32 or float64 in 'types' of the source"


@dataclass(frozen=True, kw_only=True)
class CastBatch:
    """The rows of a batch that can be stored: their columns, and their indices in the batch.

    ``keys`` are the columns of the key as they were read, before the cast. ``missing`` counts, for
    each feature, the null values that were filled. Those that became NaN or an empty text are not
    counted here: the statistics recognize them. ``rounded`` counts the values that float32 changes
    by a half or more, or to zero.
    """

    columns: Columns
    rows: NDArray[np.int64]
    rejected: Sequence[Rejected]
    keys: Columns = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)


def cast_to_schema(batch: Batch, schema: Schema, rules: PlanArguments) -> CastBatch:
    """The records of ``batch`` that fit ``schema`` and the rules.

    A missing float becomes NaN, a missing string becomes empty, and a missing list that is padded
    counts as empty; a missing integer is rejected unless ``rules.fill`` has a value for it, and so
    is a label that is missing or NaN.

    Raises:
        SourceError: a column is missing, or its type is not the schema's.
    """
    if not len(batch):  # it lacks columns if all of its lines are rejected
        return CastBatch(columns={}, rows=np.zeros(0, np.int64), rejected=())
    values = {name: _values(batch, name, feature) for name, feature in schema.items()}
    nulls = {name: mask for name, each in values.items() if (mask := _nulls(each)) is not None}
    rejections = _Rejections(batch)
    _reject_missing(rejections, values, nulls, schema, rules)
    rows = rejections.accepted()
    columns: dict[str, Column] = {}
    keys: dict[str, Column] = {}
    rounded: dict[str, int] = {}
    for name, each in values.items():
        kept = each if len(rows) == len(batch) else _take(each, rows)
        exact, columns[name] = _cast(name, kept, schema[name], rules.fill.get(name), batch)
        if len(exact) and exact.feature.dtype == "float64" and schema[name].dtype == "float32":
            rejections.add(rows[_overflows(exact, columns[name])], _TOO_LARGE.format(name))
            rounded[name] = _rounded(exact, columns[name])
        elif _is_nanoseconds(kept):
            rounded[name] = pc.sum(pc.not_equal(pc.nanosecond(kept), 0)).as_py() or 0
        if name == rules.label and schema[name].is_float and name not in rules.fill:
            rejections.add(rows[_has_nan(columns[name])], f"the label {name!r} is NaN")
        if name in rules.key:
            filled = _fill_nulls(name, kept, rules.fill.get(name), as_float=schema[name].is_float)
            keys[name] = _key_column(filled, exact)
    for name, (least, greatest) in rules.ranges.items():
        for place in np.flatnonzero(_outside(columns[name], least, greatest)):
            value = str(columns[name].values[place].tolist())
            why = f"column {name!r} is {value:.80}, not from {least} to {greatest}"
            rejections.add(rows[place : place + 1], why)
    accepted = rejections.accepted()
    if len(accepted) < len(rows):
        inside = np.flatnonzero(np.isin(rows, accepted))
        columns = {name: column.take(inside) for name, column in columns.items()}
        keys = {name: column.take(inside) for name, column in keys.items()}
    return CastBatch(
        columns=columns,
        rows=accepted,
        keys=keys,
        missing={
            name: int(mask[accepted].sum())
            for name, mask in nulls.items()
            if rules.fill.get(name, "") != ""
            or name in batch.padding
            or not (schema[name].is_float or schema[name].dtype == "string")
        },
        rounded={name: count for name, count in rounded.items() if count},
        rejected=rejections.rejected(),
    )


def _reject_missing(
    rejections: "_Rejections",
    values: Mapping[str, Any],
    nulls: Mapping[str, Mask],
    schema: Schema,
    rules: PlanArguments,
) -> None:
    """Reject rows with a null that the data set has no value for, or with too long a list."""
    padding = rejections.batch.padding
    for name, each in values.items():
        feature = schema[name]
        if name in nulls and name not in rules.fill:
            rows = np.flatnonzero(nulls[name])
            has_missing = not feature.shape and (feature.is_float or feature.dtype == "string")
            if name == rules.label:
                rejections.add(rows, f"the label {name!r} is missing")
            elif not has_missing and name not in padding:
                is_list = f", a list of {prod(feature.shape)}" if feature.shape else ""
                rejections.add(
                    rows,
                    f"column {name!r} is missing, and {feature.dtype} has no value for missing; "
                    f"give one in 'fill'{is_list}{_OR_A_FLOAT * pa.types.is_integer(each.type)}",
                )
        if not feature.is_float and isinstance(each, pa.Array) and is_list_type(each.type):
            rejections.add(
                np.flatnonzero(nulls_within(each)),
                f"column {name!r} has a null within its list, and {feature.dtype} has no "
                "value for missing; write one in its place"
                f"{_OR_A_FLOAT * ('int' in feature.dtype)}",
            )
        if name in padding:
            rejections.add(*_longer_than(padding[name], name, each))


class _Rejections:
    """The rejected rows of a batch, each with the first reason that was found."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._reasons: dict[int, str] = {}

    def add(self, rows: NDArray[np.int64], reason: str) -> None:
        for row in rows.tolist():
            self._reasons.setdefault(row, reason)

    def accepted(self) -> NDArray[np.int64]:
        return np.delete(np.arange(len(self.batch)), list(self._reasons))

    def rejected(self) -> list[Rejected]:
        return [self.batch.reject(row, self._reasons[row]) for row in sorted(self._reasons)]


def _values(batch: Batch, name: str, feature: Feature) -> Any:
    if name not in batch.columns:
        raise SourceError(
            f"{batch.file} has no column {name!r}{nearest(name, list(batch.columns))}, which the "
            "schema has; give all files the same columns"
        )
    values = batch.columns[name]
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array) and pa.types.is_null(values.type):  # of a file without a value
        return values.cast(arrow_type(feature))
    return values


def _nulls(values: Any) -> Mask | None:
    if not isinstance(values, pa.Array) or not values.null_count:
        return None
    return pc.is_null(values).to_numpy(zero_copy_only=False)


def _has_nan(column: Column) -> Mask:
    return np.isnan(column.values.reshape(len(column), -1)).any(axis=1)


def _take(values: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(values, Column):
        return values.take(rows)
    return values.take(pa.array(rows)) if isinstance(values, pa.Array) else values[rows]


def _cast(
    name: str, values: Any, feature: Feature, fill: Any, batch: Batch
) -> tuple[Column, Column]:
    """The column as it was read, padded if it is to be, and cast to ``feature``."""
    try:
        if name in batch.padding:
            exact = _padded(name, values, feature, batch.padding[name])
        elif isinstance(values, Column):
            exact = values
        else:
            exact = column_of(name, _fill_nulls(name, values, fill, as_float=feature.is_float))
        return exact, _cast_column(name, feature, exact)
    except (RecordError, TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(
            f"{batch.file}: column {name!r} cannot be cast to {feature}, its type in the schema: "
            f"{error}; give all files the same types, or leave the column out"
        ) from error


def _fill_nulls(name: str, values: Any, fill: Any, *, as_float: bool) -> Any:
    """``values`` without nulls: these are ``fill``, or NaN of numbers ``as_float``, or empty.

    Raises:
        SpecError: ``fill`` is no value of the column.
    """
    if not isinstance(values, pa.Array) or not values.null_count:
        return values
    if fill is not None:
        is_day = pa.types.is_date32(values.type) and isinstance(fill, int)
        filled = pa.scalar(fill, pa.int32()) if is_day else pa.scalar(fill)
        try:
            return values.fill_null(filled.cast(values.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SpecError(
                f"fill has {fill!r} for the column {name!r}, whose values are {values.type}; of a "
                "column with a list of words in types, give the number of the word, from 0"
            ) from error
    if as_float or pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        return values.cast(pa.float64()).fill_null(float("nan"))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_binary()).fill_null(b"")


def _cast_column(name: str, feature: Feature, column: Column) -> Column:
    """The column cast to ``feature``, if only rounding to float32 changes a value.

    Raises:
        TypeError: another value would change, or the shape differs.
    """
    found = column.feature
    if found == feature or not len(column):
        return column if found == feature else Column.empty(feature)
    if len(found.shape) == len(feature.shape) > 0 and found.shape[0] != feature.shape[0]:
        advice = to_pad(name, max(found.shape[0], feature.shape[0]))
        raise TypeError(f"it is {found}; {advice}")
    if found.shape != feature.shape or {found.dtype, feature.dtype} & {"string", "bool"}:
        raise TypeError(f"it is {found}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = column.values.astype(feature.dtype)
        if found.dtype == "float64" and feature.dtype == "float32":
            return Column(feature, cast)
        # Compared in the column's own type: both would be rounded to a common one.
        changed = cast.astype(found.dtype) != column.values
        if feature.is_float != found.is_float:
            floats = cast if feature.is_float else column.values
            changed |= ~(np.abs(floats) < 2.0**63)
    if not changed.any():
        return Column(feature, cast)
    raise TypeError(f"it is {found}, with the value {column.values[changed][0]}")


def _overflows(exact: Column, cast: Column) -> Mask:
    """The records with a finite value that is infinite after the cast."""
    lost = np.isinf(cast.values) & np.isfinite(exact.values)
    return lost.reshape(len(cast), -1).any(axis=1)


def _rounded(exact: Column, cast: Column) -> int:
    """How many finite values the cast to float32 changes by a half or more, or to zero."""
    changed = (cast.values == 0) & (exact.values != 0)
    large = np.isfinite(cast.values) & (np.abs(exact.values) >= _ROUNDED_FROM)
    changed[large] = np.abs(cast.values[large] - exact.values[large]) >= 0.5
    return int(changed.sum())


def _key_column(values: Any, exact: Column) -> Column:
    """A column of the key without the rounding of ``column_of``."""
    if _is_nanoseconds(values) or (
        isinstance(values, pa.Array) and pa.types.is_decimal(values.type)
    ):
        return column_of("key", values.cast(pa.string()))
    return exact


def _is_nanoseconds(values: Any) -> bool:
    """Whether these are timestamps that are more exact than the microseconds that are stored."""
    return isinstance(values, pa.Array) and str(values.type).startswith("timestamp[ns")


def _outside(column: Column, least: float, greatest: float) -> Mask:
    values = column.values.reshape(len(column), prod(column.feature.shape))
    return ~((values >= least) & (values <= greatest)).all(axis=1)


# --- lists of different lengths become arrays of one length, which models need not know


def _longer_than(padding: Padding, name: str, lists: Any) -> tuple[NDArray[np.int64], str]:
    """The rows that are rejected because their lists are longer than the padding, and why."""
    if padding.longer != "reject" or not is_list_type(lists.type):
        return np.zeros(0, np.int64), ""
    return np.flatnonzero(_lengths(lists) > padding.length), (
        f"column {name!r} has more than the {padding.length} values of 'pad'; give a greater "
        "length there, or cut them off with 'longer': 'truncate'"
    )


def _padded(name: str, lists: pa.Array, feature: Feature, padding: Padding) -> Column:
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
