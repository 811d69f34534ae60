"""The options of a CSV source by its first lines: delimiter, decimal mark, nulls, encoding."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aerotrain.data.sources.csv import NULL_NUMBERS

#: The most lines that are looked at.
_LINES = 2000

_DELIMITERS = ",;\t|"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")

#: Words for a missing number, in lower case; ``prepare`` knows NULL_NUMBERS itself.
_NULLS = {"-", "--", ".", "?", "n/a", "none", "null", "nan", "unknown", "missing", "#n/a", "na"}


def csv_options(beginning: bytes) -> Mapping[str, Any]:
    """The options of the source whose file begins with these bytes."""
    options: dict[str, Any] = {}
    try:
        text = beginning.decode("utf-8-sig", errors="strict")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":  # the last character may be cut
            options["encoding"] = "cp1252"
        text = beginning.decode(options.get("encoding", "utf-8-sig"), errors="replace")
    lines = [line for line in text.splitlines()[:_LINES] if line.strip()]
    if not lines:
        return options
    delimiter = max(_DELIMITERS, key=lambda each: _columns(lines, each))
    rows = list(csv.reader(lines, delimiter=delimiter))
    if delimiter != ",":
        options["delimiter"] = delimiter
    header, *records = rows
    columns = [_values(records, number) for number in range(len(header))]
    if delimiter != "," and any(map(_has_decimal_comma, columns)):
        options["decimal"] = ","
    if nulls := sorted({word for values in columns for word in _nulls_of(values)}):
        options["nulls"] = nulls
    if skip := [name for name in header if not name]:
        options["skip"] = skip[:1]
    return options


def _columns(lines: Sequence[str], delimiter: str) -> int:
    """The number of columns if all of the first lines have as many, else 0."""
    counts = {len(row) for row in csv.reader(lines[:20], delimiter=delimiter)}
    return counts.pop() if len(counts) == 1 else 0


def _values(records: Sequence[Sequence[str]], number: int) -> list[str]:
    return [row[number].strip() for row in records if len(row) > number]


def _has_decimal_comma(values: Sequence[str]) -> bool:
    known = [each for each in values if each]
    with_comma = sum(bool(_DECIMAL_COMMA.fullmatch(each)) for each in known)
    others = sum(bool(_NUMBER.fullmatch(each)) for each in known)
    return with_comma > 0 and with_comma + others > len(known) // 2


def _nulls_of(values: Sequence[str]) -> Iterator[str]:
    """The words that mean a missing value, if all other values are numbers."""
    words = {each for each in values if not _NUMBER.fullmatch(each.replace(",", "."))}
    has_numbers = len(words) < len(set(values))
    if has_numbers and all(each.lower() in _NULLS | {""} for each in words):
        yield from words.difference(NULL_NUMBERS)
