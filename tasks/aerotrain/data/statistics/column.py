"""The statistics of columns: gathered from batches, merged over partitions, kept as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, as_numbers, json_text
from aerotrain.data.hashing import Hashes, hashes_of, mixed
from aerotrain.data.records import Column, Columns
from aerotrain.data.statistics.pictures import Pictures
from aerotrain.data.statistics.sketches import (
    VOCABULARY,
    Distinct,
    Moments,
    Sample,
    Vocabulary,
    hashes_of_numbers,
)

QUANTILES = tuple(number / 100 for number in range(101))

#: Values of one record's array that are sampled.
_VALUES_PER_RECORD = 16

#: Number of example records, and how many characters of each are kept: of texts, and of others.
_EXAMPLES, _TEXT_LENGTH, _EXAMPLE_LENGTH = 5, 400, 60

#: A string with a zero byte in this many bytes is no text.
_TEXT_BEGIN = 64

#: Columns with longer strings, in bytes, have neither a vocabulary nor a number of distinct values.
_MAX_WORD_BYTES = 64


@dataclass
class ColumnStatistics:
    """The statistics of a feature. For strings, the numbers are lengths in bytes.

    ``is_time`` says whether the source has times, which became integers, and ``since_1970`` the
    unit of those that are dates: "days", "microseconds", or "" for others, such as durations.
    ``distinct`` and ``vocabulary`` are None if the values are not counted.
    """

    feature: Feature
    records: int = 0
    missing: int = 0
    is_time: bool = False
    since_1970: str = ""
    moments: Moments = field(default_factory=Moments)
    sample: Sample = field(default_factory=Sample)
    distinct: Distinct | None = field(default_factory=Distinct)
    vocabulary: Vocabulary | None = field(default_factory=Vocabulary)
    examples: dict[int, str] = field(default_factory=dict)
    pictures: Pictures = field(default_factory=Pictures)

    def __post_init__(self) -> None:
        if self.feature.shape and self.feature.dtype != "string":
            self.distinct = self.vocabulary = None

    def add(self, column: Column, missing: int, hashes: Hashes) -> None:
        """Add the values of some records, of which ``missing`` were filled."""
        self.missing += missing
        self._keep_examples(_examples(column, hashes))
        if column.is_text:
            values = pc.binary_length(column.values).to_numpy(zero_copy_only=False)
            self._count_texts(column.values)
        else:
            values = column.values.reshape(len(hashes), -1)
            self._count_numbers(column.values)
            stride = max(1, values.shape[1] // _VALUES_PER_RECORD)
            values = values[:, self.records % stride :: stride]
        # Every string of an array is a value of its record.
        self._add_sample(np.asarray(values, np.float64).reshape(len(hashes), -1), hashes)
        self.records += len(hashes)

    def _add_sample(self, values: NDArray[np.float64], hashes: Hashes) -> None:
        places = np.arange(values.shape[1]).astype(np.uint64)
        spread = mixed((hashes[:, None] + places).ravel())
        flat = values.ravel()
        known = ~np.isnan(flat)
        if not self.feature.shape and self.feature.is_float:
            self.missing += int((~known).sum())
        self.moments.merge(Moments.of(flat[known]))
        self.sample.add(spread[known], flat[known])

    def _keep_examples(self, others: Mapping[int, str]) -> None:
        both = {**others, **self.examples}
        self.examples = {key: both[key] for key in sorted(both)[:_EXAMPLES]}

    def _count_texts(self, values: pa.LargeBinaryArray) -> None:
        if self.distinct is None:
            return
        counted = values.value_counts()
        texts, counts = counted.field(0), counted.field(1)
        if pc.max(pc.binary_length(texts)).as_py() > _MAX_WORD_BYTES:
            self.distinct = self.vocabulary = None
            return
        self.distinct.add(hashes_of(texts.to_pylist()))
        if self.vocabulary is not None:
            words = [text.decode("utf-8", "replace") for text in texts.to_pylist()]
            self.vocabulary.add(dict(zip(words, counts.to_pylist(), strict=True)))

    def _count_numbers(self, values: NDArray[Any]) -> None:
        if self.distinct is None:
            return
        different, counts = np.unique(values[~np.isnan(values)], return_counts=True)
        self.distinct.add(hashes_of_numbers(different))
        if self.feature.is_float or self.distinct.estimate > VOCABULARY:
            self.vocabulary = None  # identifiers rather than categories
        elif self.vocabulary is not None:
            words = [str(int(value)) for value in different]
            self.vocabulary.add(dict(zip(words, counts.tolist(), strict=True)))

    def merge(self, other: Self) -> None:
        """Add the statistics of other records."""
        self.records += other.records
        self.missing += other.missing
        self.is_time = self.is_time or other.is_time
        self.since_1970 = self.since_1970 or other.since_1970
        self.moments.merge(other.moments)
        self.sample.merge(other.sample)
        self._keep_examples(other.examples)
        self.pictures.keep(other.pictures.by_hash)
        if self.distinct is None or other.distinct is None:
            self.distinct = self.vocabulary = None
            return
        self.distinct.add(other.distinct.hashes)
        is_of_numbers = self.feature.dtype != "string"
        many = is_of_numbers and self.distinct.estimate > VOCABULARY
        if self.vocabulary is None or other.vocabulary is None or many:
            self.vocabulary = None
        else:
            self.vocabulary.add(other.vocabulary.counts)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what ``Statistics.to_json`` wrote of a column."""
        sample, distinct, vocabulary = data["sample"], data["distinct"], data["vocabulary"]
        hashes = np.array(sample["hashes"], np.uint64)
        pictures = data["pictures"]["by_hash"].items()
        sketches = {
            "feature": Feature.from_dict(data["feature"]),
            "moments": Moments(**as_numbers(data["moments"])),
            "sample": Sample(hashes, np.array(sample["values"], np.float64)),
            "distinct": distinct and Distinct(np.array(distinct["hashes"], np.uint64)),
            "vocabulary": vocabulary and Vocabulary(vocabulary["counts"]),
            "examples": {int(key): text for key, text in data["examples"].items()},
            "pictures": Pictures({int(key): (label, png) for key, (label, png) in pictures}),
        }
        return cls(**{**data, **sketches})

    def summary(self) -> dict[str, Any]:
        """The published statistics: numbers, the most frequent words, examples and pictures."""
        moments = self.moments
        summary: dict[str, Any] = {
            "dtype": self.feature.dtype,
            "shape": list(self.feature.shape),
            "records": self.records,
            "missing": self.missing,
            "is_time": self.is_time,
            "since_1970": self.since_1970,
            "distinct": self._distinct_values(),
            "examples": [self.examples[key] for key in sorted(self.examples)],
        }
        if moments.count:
            summary |= {
                "min": moments.least,
                "max": moments.greatest,
                "mean": moments.mean,
                "std": moments.deviation,
                "quantiles": self.quantiles(),
            }
        if self.vocabulary is not None:
            summary["vocabulary"] = dict(self.vocabulary.ranked)
        if pictures := self.pictures.shown:
            summary["pictures"] = [list(each) for each in pictures]
        return summary

    def _distinct_values(self) -> int | None:
        """The number of distinct values. Missing texts, which are stored as empty, are none."""
        if self.distinct is None:
            return None
        found = min(self.distinct.estimate, self.records)
        words = self.vocabulary.counts if self.vocabulary else {}
        is_missing = self.feature.dtype == "string" and self.missing == words.get("")
        return found - 1 if is_missing else found

    def quantiles(self) -> dict[str, float]:
        """Quantiles by name, such as ``"0.5"``; the minimum and maximum are exact."""
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
    """The statistics of all columns of a data set, by name."""

    def __init__(self, columns: Mapping[str, ColumnStatistics] | None = None) -> None:
        self.columns = dict(columns or {})

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
            statistics = self.columns.setdefault(name, ColumnStatistics(column.feature))
            statistics.is_time = statistics.is_time or name in times
            statistics.since_1970 = statistics.since_1970 or times.get(name, "")
            statistics.add(column, missing.get(name, 0), hashes)
            statistics.pictures.add(column, columns.get(label), hashes)

    def merge(self, other: Self) -> None:
        for name, column in other.columns.items():
            if name in self.columns:
                self.columns[name].merge(column)
            else:
                self.columns[name] = column

    def to_json(self) -> str:
        """The complete state, to be merged later."""
        return json_text({name: asdict(each) for name, each in sorted(self.columns.items())}) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        return cls({name: ColumnStatistics.from_dict(each) for name, each in data.items()})

    def summary(self) -> dict[str, dict[str, Any]]:
        return {name: self.columns[name].summary() for name in sorted(self.columns)}


def _examples(column: Column, hashes: Hashes) -> dict[int, str]:
    """The values of the records with the smallest hashes, by these."""
    rows = np.argsort(hashes, kind="stable")[:_EXAMPLES].astype(np.int64)
    taken = column.take(rows).values
    if column.is_text:
        texts = [_example(each) for each in taken.to_pylist()]
    else:
        texts = [str(each.tolist() if each.shape else each) for each in taken]
    size, length = len(texts) // len(rows), _TEXT_LENGTH if column.is_text else _EXAMPLE_LENGTH
    joined = (" ".join(texts[each * size : (each + 1) * size]) for each in range(len(rows)))
    return {key: text[:length] for key, text in zip(hashes[rows].tolist(), joined, strict=True)}


def _example(value: bytes) -> str:
    """The begin of a text, or the size of what is none."""
    if b"\0" in value[:_TEXT_BEGIN]:
        return f"{len(value):,} bytes"
    return value[: 4 * _TEXT_LENGTH].decode("utf-8", "replace")
