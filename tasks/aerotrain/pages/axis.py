"""The axis of a histogram, of numbers or of dates; and how numbers and dates are written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BINS = 30

#: A tail is long if all values span so many times what the middle half does. The axis then ends at
#: so many times the span of the middle half on both sides of it.
_LONG_TAIL, _CUT = 20, 3

#: Bins have whole widths for integers in a range of up to so many.
_WHOLE = 600

#: An axis has at most one label more.
_STEPS = 4

#: NumPy's units of time, by the units in which dates are stored, and these as parts of a day.
_TIMES: Mapping[str, Any] = {"days": "D", "microseconds": "us"}
_OF_A_DAY = {"days": 1, "microseconds": 86_400 * 10**6}

Floats = NDArray[np.float64]
Column = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A linear axis from ``least`` to ``greatest``, with ``bins`` of equal width.

    Values beyond are in its first and its last bin; ``is_cut`` says whether there are any.
    ``since_1970`` is the unit of dates.
    """

    least: float
    greatest: float
    bins: int = BINS
    since_1970: str = ""
    is_cut: bool = False

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Self | None:
        """An axis for the numbers of one or two data sets; None if no number is finite."""
        quantiles = [_finite(each) for each in columns if each.get("quantiles")]
        known = [values for _, values in quantiles if len(values)]
        if not known:
            return None
        least = float(min(values[0] for values in known))
        greatest = float(max(values[-1] for values in known))
        unit = columns[0].get("since_1970", "")
        middle = [np.quantile(values / 2, [0.25, 0.75]) for values in known]  # halved: no overflow
        low = float(min(each[0] for each in middle))
        high = float(max(each[1] for each in middle))
        spread = high - low
        if 0 < spread < (greatest / 2 - least / 2) / _LONG_TAIL:
            least = max(least, 2 * (low - _CUT * spread))
            greatest = min(greatest, 2 * (high + _CUT * spread))
            return cls(least=least, greatest=greatest, since_1970=unit, is_cut=True)
        if all(map(_is_whole, columns)) and 0 < greatest - least < _WHOLE:
            integers = math.ceil((greatest - least + 1) / BINS)  # of each bin
            bins = math.ceil((greatest - least + 1) / integers)
            end = least + bins * integers
            return cls(least=least - 0.5, greatest=end - 0.5, bins=bins, since_1970=unit)
        return cls(least=least, greatest=greatest, since_1970=unit)

    def places(self, values: Floats) -> Floats:
        """Where values lie, from 0 to 1."""
        if self.least == self.greatest:
            return np.full(len(values), 0.5)
        by = 2 if math.isinf(self.greatest - self.least) else 1
        least, greatest = self.least / by, self.greatest / by
        return (np.clip(values, self.least, self.greatest) / by - least) / (greatest - least)

    def shares(self, column: Column) -> list[float]:
        """The shares of the column's values in each bin, as far as its quantiles tell them."""
        words = column.get("vocabulary")
        if words and column["dtype"] != "string":
            places = self.places(np.array([float(word) for word in words]))
            weights = np.array(list(words.values()), float)
            bins = np.minimum((places * self.bins).astype(int), self.bins - 1)
            return (np.bincount(bins, weights, self.bins) / weights.sum()).tolist()
        shares, values = _finite(column)
        if not len(values):
            return [0.0] * self.bins
        edges = np.arange(self.bins + 1) / self.bins
        up_to = np.interp(edges, self.places(values), shares)
        up_to[0] = shares[0]
        return np.diff(up_to).tolist()

    def labels(self) -> list[tuple[float, str]]:
        """Some round values, or else both ends: the place of each, and its text."""
        values, texts = _round_dates(self) if self.since_1970 else _round_numbers(self)
        if len(values) < 2:
            values = np.unique([self.least, self.greatest])
            texts = [text_of(value, self.since_1970) for value in values.tolist()]
        return list(zip(self.places(values).tolist(), texts, strict=True))


def _is_whole(column: Column) -> bool:
    """Whether the numbers are integers, as the lengths of strings are."""
    return "int" in column["dtype"] or column["dtype"] == "string"


def _finite(column: Column) -> tuple[Floats, Floats]:
    """The finite quantiles: their shares, and their values."""
    shares = np.array([float(name) for name in column["quantiles"]])
    values = np.array(list(column["quantiles"].values()), float)
    known = np.isfinite(values)
    return shares[known], values[known]


def _round_numbers(axis: Axis) -> tuple[Floats, list[str]]:
    """Multiples of 1, 2 or 5 times a power of ten; of integers only these."""
    each = axis.greatest / _STEPS - axis.least / _STEPS
    largest = max(abs(axis.least), abs(axis.greatest))
    if not max(1e-300, largest / 1e12) < each < 1e300:
        return np.zeros(0), []
    power = 10.0 ** math.floor(math.log10(each))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= each * 0.999)
    if axis.bins != BINS:  # the bins of a few integers
        step = max(1.0, step)
    first, last = math.ceil(axis.least / step), math.floor(axis.greatest / step)
    values: Floats = np.multiply(np.arange(first, last + 1), step, dtype=np.float64)
    return values, [text_of(value) for value in values.tolist()]


def _round_dates(axis: Axis) -> tuple[Floats, list[str]]:
    """The first days of some years, or else of months, or days."""
    ends = [_date_of(value, axis.since_1970) for value in (axis.least, axis.greatest)]
    for unit in "YMD" if None not in ends else "":
        first, last = (end.astype(f"M8[{unit}]") for end in ends if end is not None)
        step = math.ceil((last - first).astype(int) / _STEPS)
        if step:
            dates = np.arange(first + (first < ends[0]), last + 1, step)
            if len(dates) > _STEPS / 2:
                values = dates.astype(f"M8[{_TIMES[axis.since_1970]}]").astype(np.float64)
                return values, [str(date) for date in dates]
    return np.zeros(0), []


def _date_of(value: float, unit: str) -> np.datetime64 | None:
    try:
        return np.datetime64(round(value), _TIMES[unit])
    except (OverflowError, ValueError):  # no number, or too large a one
        return None


def text_of(value: float, since_1970: str = "") -> str:
    """A number for people, or a date in ISO 8601."""
    date = _date_of(value, since_1970) if since_1970 else None
    if date is not None:
        day, _, time = str(date if since_1970 == "days" else date.astype("M8[s]")).partition("T")
        return day if time in ("", "00:00:00") else f"{day} {time}"
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.4g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}"  # a year has no comma
    return f"{value:.4g}"


def duration_of(value: float, since_1970: str) -> str:
    """A difference of two numbers, of dates in days."""
    if not since_1970:
        return text_of(value)
    return f"{text_of(value / _OF_A_DAY[since_1970])} days"
