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
from aerotrain.data.records.columns import Column, Columns
from aerotrain.data.statistics.examples import (
    EXAMPLES,
    Example,
    examples_of,
    number_of_examples,
)
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

#: Columns with longer strings, in bytes, have neither a vocabulary nor a number of distinct values.
_MAX_WORD_BYTES = 64


@dataclass
class ColumnStatistics:
    """The statistics of a feature. For strings, the numbers are lengths in bytes.

    A number is missing if it is NaN, and a text if it is empty, which is a word of the vocabulary
    only. ``missing`` counts those that were filled, too.

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
    examples: dict[int, Example] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.feature.shape and self.feature.dtype != "string":
            self.distinct = self.vocabulary = None

    def add(self, column: Column, missing: int, hashes: Hashes, labels: Column | None) -> None:
        """Add the values of some records, of which ``missing`` were filled."""
        self.missing += missing
        self._add_examples(column, hashes, labels)
        if column.is_text:
            values = pc.binary_length(column.values).to_numpy(zero_copy_only=False)
            if not self.feature.shape:
                values = np.where(values, values, np.nan)
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
        if not self.feature.shape:
            self.missing += int((~known).sum())
        self.moments.merge(Moments.of(flat[known]))
        self.sample.add(spread[known], flat[known])

    def _add_examples(self, column: Column, hashes: Hashes, labels: Column | None) -> None:
        """Keep the records with the smallest hashes as examples."""
        most = number_of_examples(self.feature)
        rows = np.argsort(hashes, kind="stable")[:most].astype(np.int64)
        if len(self.examples) == most:
            rows = rows[hashes[rows] < max(self.examples)]
        if len(rows):
            found = examples_of(column.take(rows), labels.take(rows) if labels else None)
            self._keep_examples(dict(zip(hashes[rows].tolist(), found, strict=True)))

    def _keep_examples(self, others: Mapping[int, Example]) -> None:
        both = {**others, **self.examples}
        most = number_of_examples(self.feature)
        self.examples = {key: both[key] for key in sorted(both)[:most]}

    def _count_texts(self, values: pa.LargeBinaryArray) -> None:
        if self.distinct is None:
            return
        counted = values.value_counts()
        texts, counts = counted.field(0), counted.field(1)
        if pc.max(pc.binary_length(texts)).as_py() > _MAX_WORD_BYTES:
            self.distinct = self.vocabulary = None
            return
        known = (text for text in texts.to_pylist() if text or self.feature.shape)
        self.distinct.add(hashes_of(list(known)))
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
        sketches = {
            "feature": Feature.from_dict(data["feature"]),
            "moments": Moments(**as_numbers(data["moments"])),
            "sample": Sample(hashes, np.array(sample["values"], np.float64)),
            "distinct": distinct and Distinct(np.array(distinct["hashes"], np.uint64)),
            "vocabulary": vocabulary and Vocabulary(vocabulary["counts"]),
            "examples": {int(key): each for key, each in data["examples"].items()},
        }
        return cls(**{**data, **sketches})

    def summary(self) -> dict[str, Any]:
        """The published statistics: numbers, the most frequent words, examples and pictures."""
        moments, examples = self.moments, list(self.examples.values())
        summary: dict[str, Any] = {
            "dtype": self.feature.dtype,
            "shape": list(self.feature.shape),
            "records": self.records,
            "missing": self.missing,
            "is_time": self.is_time,
            "since_1970": self.since_1970,
            "distinct": self.distinct and min(self.distinct.estimate, self.records),
            "examples": [each for each in examples if isinstance(each, str)][:EXAMPLES],
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
        pictures = [tuple(each) for each in examples if not isinstance(each, str) and each[1]]
        if pictures:
            summary["pictures"] = sorted(pictures, key=_by_label)
        return summary

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
            statistics.add(column, missing.get(name, 0), hashes, columns.get(label))

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


def _by_label(picture: tuple[Any, str]) -> tuple[bool, Any]:
    """Numbers before texts; a label has one type, unless partitions differ."""
    return isinstance(picture[0], str), picture[0] or 0
