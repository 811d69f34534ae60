"""Dates and times among the texts of a column, some of which may be other words."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.data.sources.declared import TYPES, moments_of

#: The formats of dates other than ISO 8601 that are tried, in this order.
_DATE_FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")

#: What may follow a date in such a format, and the type of both.
_CLOCKS = {"": "date", " %H:%M": "timestamp", " %H:%M:%S": "timestamp"}

_ISO = {"date": r"^\d{4}-\d{2}-\d{2}$", "timestamp": r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"}

#: All types with their formats, ISO 8601 first.
_KINDS = (
    *_ISO,
    *(f"{kind} {form}{clock}" for form, (clock, kind) in product(_DATE_FORMATS, _CLOCKS.items())),
)

#: The share of dates from which the words between them mean missing values, and the most of these.
_MANY, _MOST_WORDS = 0.95, 20

#: The share of dates that is worth a note.
_SOME = 0.5


@dataclass(frozen=True, kw_only=True)
class Dates:
    """Texts that are dates or times, of which ``kind`` is the type in ``types`` of a source.

    ``words`` are the other texts, and how many records have each. ``also`` is another type that
    fits the same texts.
    """

    kind: str
    texts: pa.ChunkedArray
    words: Mapping[str, int]
    also: str | None = None

    @cached_property
    def known(self) -> pa.ChunkedArray:
        """The dates, without the other texts."""
        words = pa.array(list(self.words), pa.string())
        dates = pc.filter(self.texts, pc.invert(pc.is_in(self.texts, words)))
        return _moments(dates, self.kind)

    @property
    def others(self) -> int:
        """How many records have another text."""
        return sum(self.words.values())

    @property
    def are_nearly_all(self) -> bool:
        """Whether the other texts are so few that they mean missing values."""
        most = (1 - _MANY) * len(self.texts)
        return self.others <= most and len(self.words) <= _MOST_WORDS

    @property
    def title(self) -> str:
        """What the texts are, in words."""
        what, _, form = self.kind.partition(" ")
        title = f"{what}s as {form}" if form else f"{what}s"
        if self.words:
            title = (
                f"{len(self.texts) - self.others:,} of {len(self.texts):,} values are {title}, "
                f"{self.others:,} {'is' if self.others == 1 else 'are'} not, such as "
                f"{next(iter(self.words))!r:.40}"
            )
        return title + (f"; {self.also.partition(' ')[2]} fits them as well" if self.also else "")


def dates_among(texts: pa.ChunkedArray, counts: Mapping[str, int]) -> Dates | None:
    """The dates among texts without nulls, by the type that fits most; None if there are few.

    ``counts`` has how many records have each text.
    """
    different = pa.array(list(counts), pa.string())
    found = {
        kind: Dates(
            kind=kind, texts=texts, words={word: counts[word] for word in _others(different, kind)}
        )
        for kind in _KINDS
    }
    best = min(found.values(), key=lambda dates: dates.others)
    if best.others > (1 - _SOME) * len(texts):
        return None
    alike = (
        other.kind for other in found.values() if other.words == best.words and other is not best
    )
    return replace(best, also=next(alike, None))


def _others(texts: pa.Array, kind: str) -> list[str]:
    """Those of the texts that are no dates or times of that type."""
    what, _, form = kind.partition(" ")
    if form:
        fit = pc.is_valid(pc.strptime(texts, format=form, unit="us", error_is_null=True))
    else:
        fit = pc.match_substring_regex(texts, _ISO[what])
    candidates, others = texts.filter(fit), texts.filter(pc.invert(fit)).to_pylist()
    if not _are_all(candidates, kind):  # such as a 31st of June
        others += [text for text in candidates.to_pylist() if not _are_all(pa.array([text]), kind)]
    return others


def _are_all(texts: pa.Array, kind: str) -> bool:
    try:
        _moments(texts, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _moments(texts: Any, kind: str) -> Any:
    what, _, form = kind.partition(" ")
    return moments_of(texts, TYPES[what], form)
