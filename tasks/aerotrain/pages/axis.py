"""The axis of a histogram: linear, logarithmic for long tails, or of dates; and its counts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BINS = 30

#: A tail is long if all values span so many times what the middle half does.
_LONG_TAIL = 20

#: The share of the values, ordered by magnitude, below which a logarithmic axis is linear.
_LINEAR_SHARE = 0.05

#: A logarithmic axis spans at most so many magnitudes on each side of zero.
_MAGNITUDES = 15

#: A cut axis has so many times the span of the middle half on both sides of it.
_CUT = 3

#: An axis that is linear next to zero is so in this share of the span of the middle half.
_LINEAR = 0.2

#: Bins have whole widths for integers in a range of up to so many.
_WHOLE = 600

#: How many labels an axis has at most, about; the width of a character, and the space between two
#: labels, as parts of the width of the axis on a phone.
_LABELS, _CHARACTER, _SPACE = 5, 0.018, 0.02

#: Microseconds of each unit in which dates are stored.
_MICROSECONDS = {"days": 86_400 * 10**6, "microseconds": 1}

#: Steps between labels: in months, and in days.
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12_000)
_DAYS = (1, 2, 5, 10, 20)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Floats = NDArray[np.float64]
Column = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis from ``least`` to ``greatest``; values beyond lie at its ends.

    With ``linear_to``, it is logarithmic in both directions beyond the values of that magnitude:
    it is that of ``arcsinh(value / linear_to)``, which has a place for zero. ``since_1970`` is the
    unit of dates, and ``is_cut`` says whether some values are beyond. With ``integers``, each bin
    has so many of them.
    """

    least: float
    greatest: float
    linear_to: float = 0.0
    since_1970: str = ""
    is_cut: bool = False
    integers: int = 0

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
        spread = float(max(high for _, high in middle) - min(low for low, _ in middle))
        if (greatest / 2 - least / 2) / _LONG_TAIL <= spread or least == greatest:
            if all(map(_is_whole, columns)) and 0 < greatest - least < _WHOLE:
                return cls._of_integers(least, greatest, unit)
            return cls(least=least, greatest=greatest, since_1970=unit)
        if unit:
            low = 2 * min(low for low, _ in middle) - _CUT * 2 * spread
            high = 2 * max(high for _, high in middle) + _CUT * 2 * spread
            return cls(
                least=max(least, float(low)),
                greatest=min(greatest, float(high)),
                since_1970=unit,
                is_cut=True,
            )
        sizes = np.abs(np.concatenate(known))
        sizes = np.sort(sizes[sizes > 0])
        if least < 0 < greatest:
            linear_to = 2 * spread * _LINEAR or sizes[0]
        else:
            linear_to = sizes[int(len(sizes) * _LINEAR_SHARE)]
        return cls(
            least=least,
            greatest=greatest,
            linear_to=max(float(linear_to), sizes[-1] / 10**_MAGNITUDES),
        )

    @classmethod
    def _of_integers(cls, least: float, greatest: float, unit: str) -> Self:
        count = greatest - least + 1
        each = math.ceil(count / BINS)
        end = least + math.ceil(count / each) * each
        return cls(least=least - 0.5, greatest=end - 0.5, since_1970=unit, integers=each)

    def places(self, values: Floats) -> Floats:
        """Where values lie, from 0 to 1."""
        if self.least == self.greatest:
            return np.full(len(values), 0.5)
        bounds = np.array([self.least, self.greatest])
        values = np.clip(values, *bounds)
        if self.linear_to:
            values, bounds = (np.arcsinh(each / self.linear_to) for each in (values, bounds))
        elif math.isinf(self.greatest - self.least):
            values, bounds = values / 2, bounds / 2
        return (values - bounds[0]) / (bounds[1] - bounds[0])

    @property
    def bins(self) -> int:
        return round((self.greatest - self.least) / self.integers) if self.integers else BINS

    def shares(self, column: Column) -> list[float]:
        """The shares of the values in each of the axis's bins, which have equal widths."""
        words = column.get("vocabulary")
        if words and column["dtype"] != "string":
            places = self.places(np.array([float(word) for word in words]))
            weights = np.array(list(words.values()), float)
        elif self._is_spanned_by(column):
            weights = np.array(column["histogram"], float)
            places = (np.arange(len(weights)) + 0.5) / len(weights)
            if self.integers:
                numbers = column["min"] + places * (column["max"] - column["min"])
                places = self.places(np.round(numbers))
        else:
            return self._between_quantiles(column)
        bins = np.minimum((places * self.bins).astype(int), self.bins - 1)
        return (np.bincount(bins, weights, self.bins) / max(1.0, weights.sum())).tolist()

    def _is_spanned_by(self, column: Column) -> bool:
        """Whether each bin of the column's own histogram lies in one bin of this axis."""
        bounds = (column.get("min"), column.get("max"))
        is_same = bounds == (self.least, self.greatest) and not (self.linear_to or self.is_cut)
        return bool(column.get("histogram")) and (is_same or self.integers == 1)

    def _between_quantiles(self, column: Column) -> list[float]:
        """Values between two quantiles count as evenly spread on the axis."""
        shares, values = _finite(column)
        if not len(values):
            return [0.0] * self.bins
        edges = np.arange(self.bins + 1) / self.bins
        up_to = np.interp(edges, self.places(values), shares)
        up_to[0] = shares[0]
        return np.diff(up_to).tolist()

    def labels(self) -> list[tuple[float, str]]:
        """Some round values: the place of each, and its text; else both ends."""
        if self.least == self.greatest:
            return [(0.5, self.text(self.least))]
        values = list(dict.fromkeys(map(float, self._round_values())))
        texts = self._short(values)
        if len(values) < 2 or len(set(texts)) < len(texts):
            inset = 0.5 if self.integers else 0.0
            values = [self.least + inset, self.greatest - inset]
            texts = [self.text(value) for value in values]
        labels: list[tuple[float, str]] = []
        for place, text in zip(self.places(np.array(values)).tolist(), texts, strict=True):
            widths = ((len(text) + len(other)) / 2 * _CHARACTER + _SPACE for _, other in labels)
            gaps = (abs(place - other) for other, _ in labels)
            if all(gap > width for gap, width in zip(gaps, widths, strict=True)):
                labels.append((place, text))
        return sorted(labels)

    def _short(self, values: Sequence[float]) -> list[str]:
        """The texts of values; of dates without what all have, as the first of January."""
        texts = [self.text(value) for value in values]
        for end in ("-01", "-01") if self.since_1970 else ():
            if all(text.endswith(end) for text in texts):
                texts = [text.removesuffix(end) for text in texts]
        return texts

    def text(self, value: float) -> str:
        return text_of(value, self.since_1970)

    def _round_values(self) -> Iterator[float]:
        if self.since_1970:
            yield from _round_dates(self.least, self.greatest, self.since_1970)
            return
        if self.linear_to:
            each = _powers(self.linear_to, max(abs(self.least), abs(self.greatest)))
        else:
            each = _multiples(self.least, self.greatest)
        for value in each:
            if self.least <= value <= self.greatest and not (self.integers and value % 1):
                yield value


def _is_whole(column: Column) -> bool:
    """Whether the numbers are integers, as the lengths of strings are."""
    return "int" in column["dtype"] or column["dtype"] == "string"


def _finite(column: Column) -> tuple[Floats, Floats]:
    """The finite quantiles: their shares, and their values."""
    shares = np.array([float(name) for name in column["quantiles"]])
    values = np.array(list(column["quantiles"].values()), float)
    known = np.isfinite(values)
    return shares[known], values[known]


def _powers(least: float, greatest: float) -> Iterator[float]:
    """Powers of ten in both directions, and zero."""
    first, last = math.floor(math.log10(least)), math.floor(math.log10(greatest))
    yield 0.0
    for exponent in range(last, first - 1, -max(1, round((last - first) / _LABELS))):
        yield from (10.0**exponent, -(10.0**exponent))


def _multiples(least: float, greatest: float) -> Iterator[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    step = (greatest / _LABELS - least / _LABELS) or math.inf
    if not 1e-300 < step < 1e300 or max(abs(least), abs(greatest)) / step > 1e12:
        return
    power = 10.0 ** math.floor(math.log10(step))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= step * 0.999)
    first = math.ceil(least / step)
    yield from (number * step for number in range(first, math.floor(greatest / step) + 1))


def _round_dates(least: float, greatest: float, unit: str) -> Iterator[float]:
    """The first days of some years, months or days."""
    start, end = (_date_of(value, unit) for value in (least, greatest))
    if start is None or end is None:
        return
    days = (end - start).days
    step = next((each for each in _MONTHS if days / 30 <= each * _LABELS), _MONTHS[-1])
    if step > 1 or days > 2 * 30:
        months = range(start.year * 12 + start.month - 1, end.year * 12 + end.month)
        firsts = (datetime(m // 12, m % 12 + 1, 1, tzinfo=UTC) for m in months if m % step == 0)
    else:
        step = next((each for each in _DAYS if days <= each * _LABELS), _DAYS[-1])
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
        firsts = (midnight + timedelta(days=number) for number in range(0, days + 2, step))
    for first in firsts:
        if start <= first <= end:
            yield (first - _EPOCH) // timedelta(microseconds=_MICROSECONDS[unit])


def _date_of(value: float, unit: str) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=value * _MICROSECONDS[unit])
    except (OverflowError, ValueError):  # not from the year 1 to 9999, or no number
        return None


def text_of(value: float, since_1970: str = "") -> str:
    """A number for people, or a date in ISO 8601."""
    date = _date_of(value, since_1970) if since_1970 else None
    if date is not None and since_1970 == "days":
        return f"{date:%Y-%m-%d}"
    if date is not None:
        day, _, time = date.isoformat(" ", "seconds").removesuffix("+00:00").partition(" ")
        return day if time == "00:00:00" else f"{day} {time}"
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
    return f"{text_of(value * _MICROSECONDS[since_1970] / _MICROSECONDS['days'])} days"
