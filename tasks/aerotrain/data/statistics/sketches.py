"""Sketches of a column's values: bounded in size, mergeable in any order, deterministic.

Sketch libraries draw random numbers, but a manifest must be reproducible byte for byte. So the
randomness here is a hash of each record, by its key, or else by its file and offset: the values
with the smallest hashes are a fair sample of all values, in any order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from aerotrain.data.hashing import Hashes, mixed

#: Values of a sample; the standard error of its quantiles is up to 0.8 % of the records.
SAMPLE = 4096

#: Hashes that count distinct values; the count is exact up to this, then to 1.6 %.
DISTINCT = 4096

#: Distinct values that are counted individually.
VOCABULARY = 10_000

#: Integers up to this magnitude have a float64 of their own.
_EXACT = 2.0**53


@dataclass
class Moments:
    """Count, mean, squared deviations and extremes, merged as in
    https://en.wikipedia.org/wiki/Algorithms_for_calculating_variance#Parallel_algorithm."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: float = np.inf
    greatest: float = -np.inf

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self:
        """The moments of values without NaN, of any magnitude."""
        if not len(values):
            return cls()
        least, greatest = float(values.min()), float(values.max())
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            mean = (values / len(values)).sum()  # the plain sum may overflow
            if np.isfinite(mean):
                # A second pass corrects the rounding error of large, nearly equal values.
                mean = np.clip(mean + ((values - mean) / len(values)).sum(), least, greatest)
            squares = float(((values - mean) ** 2).sum())
        return cls(len(values), float(mean), squares, least, greatest)

    def merge(self, other: "Moments") -> None:
        count = self.count + other.count
        if not other.count:
            return
        if self.count:
            # The difference of equal infinities would be NaN.
            difference = 0.0 if self.mean == other.mean else other.mean - self.mean
            weight = self.count * other.count / count
            self.squares += other.squares + difference * difference * weight
            self.mean += difference * other.count / count
        else:
            self.squares, self.mean = other.squares, other.mean
        self.count = count
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


@dataclass
class Sample:
    """The values of the records with the smallest hashes."""

    hashes: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def merge(self, other: "Sample") -> None:
        hashes = np.concatenate([self.hashes, other.hashes])
        values = np.concatenate([self.values, other.values])
        chosen = np.lexsort((values, hashes))[:SAMPLE]
        self.hashes, self.values = hashes[chosen], values[chosen]

    def add(self, hashes: Hashes, values: NDArray[np.float64]) -> None:
        if len(self.hashes) == SAMPLE:
            low = hashes <= self.hashes[-1]
            hashes, values = hashes[low], values[low]
        self.merge(Sample(hashes, values))


@dataclass
class Distinct:
    """A count of distinct values by their smallest hashes (k minimum values)."""

    hashes: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))

    def add(self, hashes: Hashes) -> None:
        if len(self.hashes) == DISTINCT:
            hashes = hashes[hashes < self.hashes[-1]]
        self.hashes = np.union1d(self.hashes, hashes)[:DISTINCT]

    @property
    def estimate(self) -> int:
        if len(self.hashes) < DISTINCT:
            return len(self.hashes)
        return round((DISTINCT - 1) / (float(self.hashes[-1]) / 2.0**64))


@dataclass
class Vocabulary:
    """How often each value occurs; if there are too many values, the frequent ones.

    If values had to be dropped, the counts of others may be too small:
    https://en.wikipedia.org/wiki/Misra%E2%80%93Gries_summary.
    """

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Mapping[str, int]) -> None:
        for value, count in counts.items():
            self.counts[value] = self.counts.get(value, 0) + count
        if len(self.counts) > VOCABULARY:
            least = sorted(self.counts.values(), reverse=True)[VOCABULARY]
            self.counts = {
                value: count - least for value, count in self.counts.items() if count > least
            }

    @property
    def ranked(self) -> list[tuple[str, int]]:
        """The values with their counts, most frequent first."""
        return sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))


def hashes_of_numbers(values: NDArray[Any]) -> Hashes:
    """A hash for each number; equal numbers have equal hashes."""
    floats = values.astype(np.float64) + 0.0  # -0.0 is 0.0
    hashes = mixed(floats.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    if values.dtype == np.int64:
        # Larger integers share a float64; their low bits distinguish them.
        large = np.abs(floats) > _EXACT
        hashes[large] ^= mixed(values[large].astype(np.uint64) & np.uint64(0x7FF))
    return hashes
