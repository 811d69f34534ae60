"""The statistics of columns: gathered from batches, merged over partitions, kept as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, as_numbers, json_text
from aerotrain.data.hashing import Hashes, hashes_of, mixed
from aerotrain.data.records.columns import Column, Columns, concatenated
from aerotrain.data.statistics.pictures import Pictures, Sheet
from aerotrain.data.statistics.sketches import (
    VOCABULARY,
    Distinct,
    Moments,
    Sample,
    Vocabulary,
    hashes_of_numbers,
    histogram,
)

QUANTILES = tuple(number / 100 for number in range(101))

_BINS = 30

#: Records, or bytes of them, whose statistics are added at once.
_RECORDS_AT_ONCE = 1024
_BYTES_AT_ONCE = 2**20

#: Values of one record's array that are sampled.
_VALUES_PER_RECORD = 16

#: Number of example records, and how many characters of each are kept: of texts, and of others.
_EXAMPLES, _TEXT_LENGTH, _EXAMPLE_LENGTH = 5, 400, 60

#: A string with a zero byte in this many bytes is no text.
_TEXT_BEGIN = 64

#: Columns with longer strings, in bytes, have no vocabulary.
_MAX_WORD_BYTES = 64


@dataclass
class ColumnStatistics:
    """The statistics of a feature. For strings, the numbers are lengths in bytes.

    ``is_time`` says whether the source has times, which became integers, and ``since_1970`` the
    unit of those that are dates: "days", "microseconds", or "" for others, such as durations.
    """

    feature: Feature
    records: int = 0
    missing: int = 0
    moments: Moments = field(default_factory=Moments)
    sample: Sample = field(default_factory=Sample)
    distinct: Distinct = field(default_factory=Distinct)
    vocabulary: Vocabulary | None = field(default_factory=Vocabulary)
    examples: dict[int, str] = field(default_factory=dict)
    is_counted: bool = True
    is_time: bool = False
    since_1970: str = ""
    pictures: Pictures = field(default_factory=Pictures)

    def __post_init__(self) -> None:
        if self.feature.shape and self.feature.dtype != "string":
            self.is_counted, self.vocabulary = False, None

    def add(self, column: Column, missing: int, hashes: Hashes) -> None:
        """Add the values of some records, of which ``missing`` were filled."""
        self.missing += missing
        self._add_examples(column, hashes)
        if column.is_text:
            values = pc.binary_length(column.values).to_numpy(zero_copy_only=False)
            self._add_texts(column.values)
        else:
            values = column.values.reshape(len(hashes), -1)
            stride = max(1, values.shape[1] // _VALUES_PER_RECORD)
            if not column.feature.shape:
                self._add_numbers(column.values)
            values = values[:, self.records % stride :: stride]
        # Every string of an array is a value of its record.
        self._add_sample(np.asarray(values, np.float64).reshape(len(hashes), -1), hashes)
        self.records += len(hashes)

    def _add_sample(self, values: NDArray[np.float64], hashes: Hashes) -> None:
        each = values.size // max(1, len(hashes))
        spread = mixed((hashes[:, None] + np.arange(each).astype(np.uint64)).ravel())
        flat = values.ravel()
        known = ~np.isnan(flat)
        if not self.feature.shape and self.feature.is_float:
            self.missing += int((~known).sum())
        self.moments.merge(Moments.of(flat[known]))
        self.sample.add(spread[known], flat[known])

    def _add_examples(self, column: Column, hashes: Hashes) -> None:
        """Keep the records with the smallest hashes as examples."""
        rows = np.argsort(hashes, kind="stable")[:_EXAMPLES].astype(np.int64)
        taken = column.take(rows).values
        if column.is_text:
            texts = [_example(each) for each in taken.to_pylist()]
        else:
            texts = [str(each.tolist() if each.shape else each) for each in taken]
        size, length = len(texts) // len(rows), _TEXT_LENGTH if column.is_text else _EXAMPLE_LENGTH
        joined = (" ".join(texts[each * size : (each + 1) * size]) for each in range(len(rows)))
        keys = hashes[rows].tolist()
        self._keep_examples({key: text[:length] for key, text in zip(keys, joined, strict=True)})

    def _keep_examples(self, others: Mapping[int, str]) -> None:
        both = {**others, **self.examples}
        self.examples = {key: both[key] for key in sorted(both)[:_EXAMPLES]}

    def _add_texts(self, values: pa.LargeBinaryArray) -> None:
        if not self.is_counted:
            return
        counted = values.value_counts()
        texts, counts = counted.field(0), counted.field(1)
        short = pc.less_equal(pc.binary_length(texts), _MAX_WORD_BYTES)
        if not pc.all(short).as_py():
            self.is_counted, self.vocabulary = False, None
            return
        self.distinct.add(hashes_of(texts.to_pylist()))
        if self.vocabulary is not None:
            words = [text.decode("utf-8", "replace") for text in texts.to_pylist()]
            self.vocabulary.add(dict(zip(words, counts.to_pylist(), strict=True)))

    def _add_numbers(self, values: NDArray[np.float64]) -> None:
        different, counts = np.unique(values[~np.isnan(values)], return_counts=True)
        self.distinct.add(hashes_of_numbers(different))
        if self.feature.is_float:
            self.vocabulary = None
        elif self.vocabulary is not None and self.distinct.estimate <= VOCABULARY:
            words = [str(int(value)) for value in different]
            self.vocabulary.add(dict(zip(words, counts.tolist(), strict=True)))
        else:
            self.vocabulary = None  # identifiers rather than categories

    def merge(self, other: Self) -> None:
        """Add the statistics of other records."""
        self.records += other.records
        self.missing += other.missing
        self.moments.merge(other.moments)
        self.sample.merge(other.sample)
        self.distinct.add(other.distinct.hashes)
        self._keep_examples(other.examples)
        self.pictures.merge(other.pictures)
        self.is_counted = self.is_counted and other.is_counted
        self.is_time = self.is_time or other.is_time
        self.since_1970 = self.since_1970 or other.since_1970
        numbers = self.feature.dtype != "string"
        many = numbers and self.distinct.estimate > VOCABULARY
        if self.vocabulary is None or other.vocabulary is None or many:
            self.vocabulary = None
        else:
            self.vocabulary.add(other.vocabulary.counts)
            self.vocabulary.lost += other.vocabulary.lost

    def to_dict(self) -> dict[str, Any]:
        """The complete state as JSON, to be merged later."""
        vocabulary = self.vocabulary
        return {
            "dtype": self.feature.dtype,
            "shape": list(self.feature.shape),
            "records": self.records,
            "missing": self.missing,
            "is_counted": self.is_counted,
            "is_time": self.is_time,
            "since_1970": self.since_1970,
            "pictures": self.pictures.to_list(),
            "examples": [[key, self.examples[key]] for key in sorted(self.examples)],
            "moments": vars(self.moments) if self.moments.count else None,
            "sample": [self.sample.hashes.tolist(), self.sample.values.tolist()],
            "distinct": self.distinct.hashes.tolist(),
            "vocabulary": None if vocabulary is None else dict(vocabulary.ranked),
            "lost": None if vocabulary is None else vocabulary.lost,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        hashes, values = data["sample"]
        words = data["vocabulary"]
        return cls(
            feature=Feature.from_dict(data),
            records=data["records"],
            missing=data["missing"],
            moments=Moments(**as_numbers(data["moments"])) if data["moments"] else Moments(),
            sample=Sample(np.array(hashes, np.uint64), np.array(values, np.float64)),
            distinct=Distinct(np.array(data["distinct"], np.uint64)),
            vocabulary=None if words is None else Vocabulary(dict(words), data["lost"]),
            examples=dict(data["examples"]),
            is_counted=data["is_counted"],
            is_time=data["is_time"],
            since_1970=data["since_1970"],
            pictures=Pictures.from_list(data["pictures"]),
        )

    def summary(self) -> dict[str, Any]:
        """The published statistics: numbers, and the most frequent words."""
        moments = self.moments
        summary: dict[str, Any] = {
            "dtype": self.feature.dtype,
            "shape": list(self.feature.shape),
            "records": self.records,
            "missing": self.missing,
            "is_time": self.is_time,
            "since_1970": self.since_1970,
            "distinct": self._distinct() if self.is_counted else None,
            "examples": [self.examples[key] for key in sorted(self.examples)],
        }
        if moments.count:
            summary |= {
                "min": moments.least,
                "max": moments.greatest,
                "mean": moments.mean,
                "std": moments.deviation,
                "quantiles": self.quantiles(),
                "histogram": self.histogram(),
            }
        if self.vocabulary is not None:
            summary["vocabulary"] = dict(self.vocabulary.ranked)
        return summary

    def _distinct(self) -> int:
        """The number of distinct values. Missing texts, which are stored as empty, are none."""
        found = min(self.distinct.estimate, self.records)
        words = self.vocabulary.counts if self.vocabulary else {}
        is_missing = self.feature.dtype == "string" and self.missing == words.get("")
        return found - 1 if is_missing else found

    def histogram(self) -> list[int]:
        """The counts of the sample's values in bins of equal width, from least to greatest."""
        moments = self.moments
        return histogram(self.sample.values, moments.least, moments.greatest, _BINS)

    def quantiles(self) -> dict[str, float]:
        """Quantiles by name, such as ``"0.5"``; the minimum and maximum are exact."""
        if not len(self.sample.values):
            return {}
        values = self.sample.values
        with np.errstate(over="ignore", invalid="ignore"):
            between = np.quantile(values, QUANTILES)
        if not np.isfinite(between).all():  # no interpolation is possible next to infinity
            lower = np.quantile(values, QUANTILES, method="lower")
            between = np.where(np.isfinite(between), between, lower)
        found = between.tolist()
        found[0], found[-1] = self.moments.least, self.moments.greatest
        return {str(name): value for name, value in zip(QUANTILES, found, strict=True)}


class Statistics:
    """The statistics of all columns of a data set, by name.

    Small batches are added together: those of 2 records cost as much as those of 1,000.
    """

    def __init__(self, columns: Mapping[str, ColumnStatistics] | None = None) -> None:
        self._columns = dict(columns or {})
        self._waiting: list[tuple[Columns, Mapping[str, int], Hashes, str]] = []
        self._size = 0

    @property
    def columns(self) -> dict[str, ColumnStatistics]:
        self._add_waiting()
        return self._columns

    def add(
        self,
        columns: Columns,
        missing: Mapping[str, int],
        hashes: Hashes,
        *,
        times: Mapping[str, str] = MappingProxyType({}),
        label: str = "label",
    ) -> None:
        """Add records, each with its hash.

        ``missing`` counts the filled values, by column. ``times`` are the columns of integers that
        the source has as times, with their units since 1970. ``label`` is the column of classes.
        """
        for name, column in columns.items():
            statistics = self._columns.setdefault(name, ColumnStatistics(column.feature))
            statistics.is_time = statistics.is_time or name in times
            statistics.since_1970 = statistics.since_1970 or times.get(name, "")
            self._size += column.values.nbytes
        self._waiting.append((columns, missing, hashes, label))
        records = sum(len(each[2]) for each in self._waiting)
        if records >= _RECORDS_AT_ONCE or self._size >= _BYTES_AT_ONCE:
            self._add_waiting()

    def _add_waiting(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if not waiting:
            return
        hashes = np.concatenate([each[2] for each in waiting])
        columns = {n: concatenated([each[0][n] for each in waiting]) for n in waiting[0][0]}
        for name, column in columns.items():
            missing = sum(each[1].get(name, 0) for each in waiting)
            self._columns[name].add(column, missing, hashes)
            self._columns[name].pictures.add(column, columns.get(waiting[0][3]), hashes)

    def merge(self, other: Self) -> None:
        for name, column in other.columns.items():
            if name in self.columns:
                self.columns[name].merge(column)
            else:
                self.columns[name] = column

    def to_json(self) -> str:
        document = {name: self.columns[name].to_dict() for name in sorted(self.columns)}
        return json_text(document) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        return cls({name: ColumnStatistics.from_dict(each) for name, each in data.items()})

    def summary(self) -> dict[str, dict[str, Any]]:
        return {name: self.columns[name].summary() for name in sorted(self.columns)}

    def pictures(self) -> dict[str, Sheet]:
        """The pictures of the columns that have some."""
        sheets = {name: self.columns[name].pictures.sheet for name in sorted(self.columns)}
        return {name: sheet for name, sheet in sheets.items() if sheet}


def _example(value: bytes) -> str:
    """The begin of a text, or the size of what is none."""
    if b"\0" in value[:_TEXT_BEGIN]:
        return f"{len(value):,} bytes"
    return value[: 4 * _TEXT_LENGTH].decode("utf-8", "replace")
