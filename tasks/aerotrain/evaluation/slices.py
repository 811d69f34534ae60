"""Slices of a data set: the records that have one value in a column, or in each of several."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.gate import Column, parts_of
from aerotrain.data.dataset import Schema
from aerotrain.pages.axis import text_of

#: The most values of a column, or of columns that are crossed, that are slices.
MOST_VALUES = 200

#: The name of the slice of all records.
ALL = "all records"

Statistics = Mapping[str, Mapping[str, Any]]
Features = Mapping[str, tf.Tensor | NDArray[Any]]


@dataclass(frozen=True)
class _Cut:
    """One column of a slice; a number may be cut at rising ``boundaries``, or stand for a word.

    ``since_1970`` is the unit of a column of dates.
    """

    column: str
    boundaries: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    since_1970: str = ""

    def parts(self, features: Features) -> tuple[NDArray[np.int64], list[str]]:
        """The part of the slice's name that each record has, as its place in a list."""
        given, column = features[self.column], self.column
        if not self.boundaries:
            # By hashes: NumPy would sort all records, which takes seconds if they are texts.
            unique, places = (np.asarray(each) for each in tf.unique(given, tf.int64))
            order = np.argsort(unique)
            texts = [self._text(each) for each in unique[order].tolist()]
            names = [f"{column}={each}" if each else f"{column} missing" for each in texts]
            return np.argsort(order)[places], names
        texts = self._texts_of_boundaries()
        inner = [f"{a}<={column}<{b}" for a, b in itertools.pairwise(texts)]
        names = [f"{column}<{texts[0]}", *inner, f"{column}>={texts[-1]}", f"{column} missing"]
        numbers = np.asarray(given, np.float64)
        places = np.searchsorted(self.boundaries, numbers, side="right")
        return np.where(np.isnan(numbers), len(names) - 1, places), names

    def _text(self, value: Any) -> str:
        if self.words and 0 <= value < len(self.words):
            return self.words[value]
        if self.since_1970:
            return text_of(int(value), self.since_1970)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def _texts_of_boundaries(self) -> list[str]:
        """Each as short as it can be while it differs from the others."""
        if self.since_1970:  # of which the dates themselves are whole numbers
            texts = [text_of(math.ceil(each), self.since_1970) for each in self.boundaries]
            if len(set(texts)) == len(texts):
                return texts
        for digits in range(6, 18):
            texts = [
                f"{e:.0f}" if e.is_integer() and abs(e) < 1e15 else f"{e:.{digits}g}"
                for e in self.boundaries
            ]
            if len(set(texts)) == len(texts):
                break
        return texts


@dataclass
class Slicing:
    """The slices of one column, or of crossed columns; without any, all records are one slice.

    ``names`` are those of the slices found so far, by their numbers.
    """

    cuts: tuple[_Cut, ...] = ()
    names: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def numbers(self, features: Features, records: int) -> NDArray[np.int64]:
        """The number of the slice that each record is in.

        Raises:
            FinalError: there are more than ``MOST_VALUES`` slices.
        """
        if not self.cuts:
            self._number(ALL)
            return np.zeros(records, np.int64)
        combined, names = np.zeros(records, np.int64), [""]
        for cut in self.cuts:
            places, parts = cut.parts(features)
            if not cut.boundaries:
                self._check_count(len(parts))
            combined = combined * len(parts) + places
            # Only combinations that occur get a name.
            occurring = np.flatnonzero(np.bincount(combined))
            self._check_count(len(occurring))
            order = np.zeros(len(names) * len(parts), np.int64)
            order[occurring] = np.arange(len(occurring))
            combined = order[combined]
            pairs = (divmod(int(each), len(parts)) for each in occurring)
            names = [", ".join(filter(None, (names[a], parts[b]))) for a, b in pairs]
        return np.array([self._number(each) for each in names], np.int64)[combined]

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._check_count(len(self.names) + 1)
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def _check_count(self, slices: int) -> None:
        if slices > MOST_VALUES:
            columns = " and ".join(cut.column for cut in self.cuts)
            raise FinalError(
                f"{columns} has more than {MOST_VALUES} values in the split, too many for slices: "
                "take a column with fewer, or bucket(...) of a number"
            )


def check_slice(given: Column | Sequence[Column], schema: Schema) -> None:
    """Check that the data set has the columns of a slice, and that they can be cut so.

    Raises:
        FinalError: it has not, or they cannot.
    """
    for each in parts_of(given):
        column = each if isinstance(each, str) else each["column"]
        if column not in schema:
            raise FinalError(
                f"there is no column {column!r} to make slices of{nearest(column, schema)}; the "
                f"data set has {', '.join(sorted(schema))}"
            )
        feature = schema[column]
        if feature.shape:
            raise FinalError(f"the column {column!r} has {feature}, and slices need single values")
        if isinstance(each, str) and feature.is_float:
            raise FinalError(
                f"the column {column!r} has numbers of {feature.dtype}: make slices of ranges, "
                f'such as bucket("{column}", 4)'
            )
        if not isinstance(each, str) and feature.dtype == "string":
            raise FinalError(f"the column {column!r} has text, which bucket(...) cannot cut")


def slicing_of(given: Column | Sequence[Column], schema: Schema, statistics: Statistics) -> Slicing:
    """The slices that a rule describes.

    Raises:
        FinalError: see ``check_slice``; or the statistics have no quantiles of a column.
    """
    check_slice(given, schema)
    return Slicing(tuple(_cut(each, statistics) for each in parts_of(given)))


def _cut(given: Column, statistics: Statistics) -> _Cut:
    column = given if isinstance(given, str) else given["column"]
    known = statistics.get(column, {})
    unit = known.get("since_1970", "")
    if isinstance(given, str):
        return _Cut(column, words=tuple(known.get("names", ())), since_1970=unit)
    buckets = given["buckets"]
    if not isinstance(buckets, int):
        return _Cut(column, tuple(map(float, buckets)), since_1970=unit)
    quantiles = known.get("quantiles")
    if not quantiles:
        raise FinalError(
            f"the statistics of the data set have no quantiles of {column!r}: give the boundaries, "
            f'such as bucket("{column}", [18, 65])'
        )
    at = np.array(sorted((float(share), float(value)) for share, value in quantiles.items()))
    inner = np.interp(np.arange(1, buckets) / buckets, at[:, 0], at[:, 1])
    return _Cut(column, tuple(sorted(set(inner.tolist()))), since_1970=unit)
