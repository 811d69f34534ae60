"""What the first records show of each column, and what a model uses it for."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.data.records.columns import is_text_type
from aerotrain.data.sources.declared import TYPES, moments_of
from aerotrain.data.sources.numbers import FORMS, plain_of

#: The most words of a category that are typical, and the least records of each.
_CATEGORY_WORDS, _CATEGORY_RECORDS = 50, 2

#: Words of a text on average from which it is read as sentences.
_SENTENCE = 3

#: The share of different values from which a column of texts identifies its records.
_IDENTIFYING = 0.9

#: The most bytes of a word that the statistics count.
_LONGEST_WORD = 64

#: Names of columns that identify a record.
_KEY_NAME = re.compile(r"(?i:(^|[_\s.-])(id|uuid|guid|key|index|nr|no))$|[a-z](Id|ID|Key)$")

#: The formats of dates other than ISO 8601 that are tried, in this order.
_DATE_FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")

#: What may follow a date in such a format, and the type of both.
_CLOCKS = {"": "date", " %H:%M": "timestamp", " %H:%M:%S": "timestamp"}

_ISO = {"date": r"^\d{4}-\d{2}-\d{2}$", "timestamp": r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"}

#: All types with their formats, ISO 8601 first.
_TIME_TYPES = (
    *_ISO,
    *(f"{kind} {form}{clock}" for form, (clock, kind) in product(_DATE_FORMATS, _CLOCKS.items())),
)

#: The share of dates or numbers from which the words between them mean missing values, the most of
#: these, and the fewest different texts of which numbers are found.
_MANY, _MOST_WORDS, _LEAST_NUMBERS = 0.95, 20, 3

#: The share of dates that is worth a note.
_SOME_DATES = 0.5


class Use(StrEnum):
    """What a column is used for."""

    NUMBER = "number"
    CATEGORY = "category"
    TEXT = "text"
    KEY = "identifier"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class SampledColumn:
    """The values of a column in the first records, null where they are missing."""

    name: str
    values: pa.ChunkedArray
    #: Of numbers that the source has as texts: their form, and the words for a missing one.
    form: str = ""
    words: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, values: pa.ChunkedArray) -> "SampledColumn":
        """The column with texts instead of bytes, nulls for NaN and no text, and numbers."""
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if is_text_type(values.type):
            try:
                texts = values.cast(pa.string())
            except pa.ArrowInvalid:  # bytes that are no text
                return cls(name, values)
            values = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            column = cls(name, values)
            return column.as_numbers() or column
        return cls(name, values)

    def as_numbers(self) -> "SampledColumn | None":
        """The numbers that nearly all of these texts are, in one form; None if they are not."""
        dates = dates_among(self.known, self.counts)
        if len(self.counts) < _LEAST_NUMBERS or (dates and dates.are_nearly_all):
            return None
        different = pa.array(list(self.counts), pa.string())
        if pc.all(pc.utf8_is_digit(different)).as_py():  # names, where the source could say numbers
            return None
        found = {form: plain_of(different, form) for form in FORMS}
        form = min(found, key=lambda each: found[each].null_count)
        others = pc.filter(different, pc.is_null(found[form])).to_pylist()
        words = {word: self.counts[word] for word in others}
        if not _mean_missing(words, len(self.known)):
            return None
        numbers = plain_of(self.values, form).cast(pa.float64())
        return SampledColumn(self.name, numbers, form, words)

    @cached_property
    def known(self) -> pa.ChunkedArray:
        return self.values.drop_null()

    @property
    def missing(self) -> int:
        return self.values.null_count

    @property
    def is_text(self) -> bool:
        return pa.types.is_string(self.values.type)

    @property
    def is_integer(self) -> bool:
        return pa.types.is_integer(self.values.type)

    @property
    def is_number(self) -> bool:
        types, kind = pa.types, self.values.type
        return self.is_integer or types.is_floating(kind) or types.is_decimal(kind)

    @property
    def is_bool(self) -> bool:
        return pa.types.is_boolean(self.values.type)

    @cached_property
    def counts(self) -> Mapping[Any, int]:
        """How many records have each value, the most frequent value first."""
        if not (self.is_text or self.is_number or self.is_bool):
            return {}
        counted = self.known.value_counts()
        pairs = zip(
            counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True
        )
        return dict(sorted(pairs, key=lambda each: (-each[1], str(each[0]))))

    @property
    def is_unique(self) -> bool:
        return not self.missing and len(self.counts) == len(self.values)


@dataclass(frozen=True, kw_only=True)
class ColumnDecision:
    """What a column is used for, why, and what ``prepare`` must know for it.

    ``type`` is for ``types`` of the source, ``nulls`` are words for its ``nulls``, and ``fill`` is
    for ``fill`` of ``prepare``.
    """

    use: Use
    why: str
    type: str | None = None
    nulls: Collection[str] = ()
    fill: Any = None
    is_time: bool = False


def decide(column: SampledColumn, *, is_json: bool) -> ColumnDecision:
    """What to use a column for; ``is_json`` is whether its source is JSON lines."""
    kind = column.values.type
    if not len(column.known):
        return ColumnDecision(use=Use.LEFT_OUT, why="has no value")
    if len(column.counts) == 1 and (not column.missing or not column.is_text):
        return ColumnDecision(use=Use.LEFT_OUT, why=f"is always {next(iter(column.counts))!r:.40}")
    if column.is_bool:
        return _of_bool(column, is_json=is_json)
    if column.is_number:
        return _of_number(column)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _of_times(str(kind), column.known, column.missing)
    if column.is_text:
        return _of_text(column)
    return ColumnDecision(
        use=Use.LEFT_OUT, why=f"is {kind}, which transform would have to use by hand"
    )


def _of_bool(column: SampledColumn, *, is_json: bool) -> ColumnDecision:
    if not column.missing:
        return ColumnDecision(use=Use.NUMBER, why="true or false")
    if is_json:  # whose values cannot be read as another type
        why = f"true or false; {column.missing:,} missing count as false"
        return ColumnDecision(use=Use.NUMBER, why=why, fill=False)
    return ColumnDecision(use=Use.CATEGORY, why="true, false or missing", type="string")


def _of_number(column: SampledColumn) -> ColumnDecision:
    least, greatest = (each.as_py() for each in pc.min_max(column.known).values())
    form = "," if column.is_integer else ",.6g"
    why = f"{len(column.counts):,} values from {least:{form}} to {greatest:{form}}"
    if column.form not in ("", next(iter(FORMS))):
        why += f", written as {column.form}"
    if column.is_integer and column.is_unique and _identifies(column):
        return ColumnDecision(use=Use.KEY, why=f"{why}, all different")
    kind = f"float32 {column.form}" if column.form else None
    if not column.missing:
        return ColumnDecision(use=Use.NUMBER, why=why, type=kind)
    why += f", {column.missing:,} missing"
    kind = "float32" if column.is_integer else kind
    return ColumnDecision(use=Use.NUMBER, why=why, type=kind, nulls=column.words)


def _identifies(column: SampledColumn) -> bool:
    """Whether integers that are all different are names of records, by their own name or order."""
    if _KEY_NAME.search(column.name):
        return True
    values = column.values.to_pylist()
    return values == list(range(values[0], values[0] + len(values)))


def _of_text(column: SampledColumn) -> ColumnDecision:
    dates = dates_among(column.known, column.counts)
    if dates and dates.are_nearly_all:
        times = _of_times(dates.title, dates.known, column.missing + dates.others)
        return replace(times, type=dates.kind, nulls=dates.words)
    words = _of_words(column)
    if dates:
        words = replace(words, why=f"{words.why}; {dates.title}: correct these to have dates")
    return words


def _of_words(column: SampledColumn) -> ColumnDecision:
    records, different = len(column.known), len(column.counts)
    words = pc.mean(pc.list_value_length(pc.utf8_split_whitespace(column.known))).as_py()
    are_short = pc.max(pc.binary_length(column.known)).as_py() <= _LONGEST_WORD
    why = f"{different:,} texts"
    if words >= _SENTENCE:
        why += f" of {words:.0f} words on average"
    if column.missing:
        why += f", {column.missing:,} missing"
    use = Use.TEXT
    if are_short and different <= min(_CATEGORY_WORDS, records // _CATEGORY_RECORDS):
        names = ", ".join(list(column.counts)[:4]) + (", …" if different > 4 else "")
        use, why = Use.CATEGORY, f"{why}: {names}"
    elif words >= _SENTENCE:
        return ColumnDecision(use=use, why=why)
    elif different > _IDENTIFYING * records:
        use, why = Use.KEY, f"{why}, {'all' if column.is_unique else 'nearly all'} different"
    elif are_short:
        use, why = Use.CATEGORY, f"{why}, of which the most frequent count"
    else:
        why += ", long ones"
    return ColumnDecision(use=use, why=why)


def _of_times(what: str, known: pa.ChunkedArray, missing: int) -> ColumnDecision:
    """The decision for times. Integers have no value for missing, so these count as the median."""
    least, greatest = (each.as_py() for each in pc.min_max(known).values())
    why = f"{what}, from {least} to {greatest}"
    if not missing:
        return ColumnDecision(use=Use.NUMBER, why=why, is_time=True)
    middle = known.sort()[len(known) // 2].as_py()
    why += f"; {missing:,} missing count as {middle}"
    return ColumnDecision(use=Use.NUMBER, why=why, fill=middle.isoformat(), is_time=True)


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
        return _mean_missing(self.words, len(self.texts))

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


def _mean_missing(words: Mapping[str, int], records: int) -> bool:
    """Whether these words among dates or numbers are so few that they mean missing values."""
    return sum(words.values()) <= (1 - _MANY) * records and len(words) <= _MOST_WORDS


def dates_among(texts: pa.ChunkedArray, counts: Mapping[str, int]) -> Dates | None:
    """The dates among texts without nulls, by the type that fits most; None if there are few.

    ``counts`` has how many records have each text.
    """
    different = pa.array(list(counts), pa.string())
    found = {
        kind: Dates(
            kind=kind, texts=texts, words={word: counts[word] for word in _others(different, kind)}
        )
        for kind in _TIME_TYPES
    }
    best = min(found.values(), key=lambda dates: dates.others)
    if best.others > (1 - _SOME_DATES) * len(texts):
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
