"""Schema changes and drift between a data set and the one that was finalized before."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.statistics.sketches import SAMPLE
from aerotrain.data.statistics.two_samples import (
    LEAST_SHARE,
    category_drift,
    new_categories,
    number_drift,
)

#: Integers with more distinct values are compared as numbers, fewer as categories.
_MAX_CATEGORIES = 200

#: A column of which so many values are distinct identifies its records.
DISTINCT_SHARE = 0.9

#: How far the quantiles of an evenly growing column may be from a straight line.
_UNEVEN = 0.1

_ISO_TIME = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d:.*)?)?")

#: The years in which a number counts as a time, and the ways to write one.
_YEARS = (2000, 2100)
_SECONDS = tuple(datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in _YEARS)
_TIMES = (
    *(tuple(unit * second for second in _SECONDS) for unit in (1, 10**3, 10**6, 10**9)),
    tuple(year * 10_000 + 101 for year in _YEARS),  # 20260131
)

Column = Mapping[str, Any]
Summary = Mapping[str, Column]


@dataclass(frozen=True)
class ColumnChange:
    """One change of a column."""

    column: str
    what: str
    before: str
    now: str


@dataclass(frozen=True, kw_only=True)
class DataComparison:
    """The data set before, at ``url``: its statistics, and how those of now differ.

    ``kinds`` are how the columns of both were compared: as ``_kind`` says, or "off".
    """

    url: str
    before: Summary
    changes: Sequence[ColumnChange]
    kinds: Mapping[str, str]


def compared(url: str, before: Summary, now: Summary, rules: PlanArguments) -> DataComparison:
    """The changes from the data set at ``url`` to the next one: columns, types, and drift.

    ``two_samples.py`` describes the tests, and ``_kind`` which one a column gets.
    """
    schemas = [{name: Feature.from_dict(each[name]) for name in each} for each in (before, now)]
    changes, kinds = schema_changes(*schemas), {}
    for name in sorted(before.keys() & now.keys() - {each.column for each in changes}):
        columns = (before[name], now[name])
        is_off = rules.drift_rules.get(name) == "off"
        kinds[name] = "off" if is_off else _kind(name, columns, rules)
        if not is_off:
            changes += _column_changes(name, columns, kinds[name], rules)
    changes.sort(key=lambda change: change.column)
    return DataComparison(url=url, before=before, changes=changes, kinds=kinds)


def schema_changes(before: Schema, now: Schema) -> list[ColumnChange]:
    """Columns that are missing, new, or of another type; this needs no records."""
    found = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            found.append(ColumnChange(name, "column missing", str(before[name]), "-"))
        elif name not in before:
            found.append(ColumnChange(name, "column new", "-", str(now[name])))
        elif before[name] != now[name]:
            found.append(ColumnChange(name, "type", str(before[name]), str(now[name])))
    return found


def _column_changes(
    name: str, columns: tuple[Column, Column], kind: str, rules: PlanArguments
) -> Iterator[ColumnChange]:
    """The changes of one column, given before and now, which is not turned off."""
    limit = rules.drift_rules.get(name, {}).get("limit", rules.drift)
    records = [each["records"] for each in columns]
    missing = [{"missing": each["missing"]} for each in columns]
    if min(records) and category_drift(missing, records, limit):
        shares = (each["missing"] / each["records"] for each in columns)
        yield ColumnChange(name, "missing", *(f"{share:.1%}" for share in shares))
    if kind == "category":
        yield from _category_changes(name, columns, limit, is_label=name == rules.label)
    elif kind == "number" and all(each.get("quantiles") for each in columns):
        sizes = [max(1, min(SAMPLE, each["records"] - each["missing"])) for each in columns]
        distance = number_drift([each["quantiles"] for each in columns], sizes, limit)
        if distance:
            medians = (f"median {each['quantiles']['0.5']:.4g}" for each in columns)
            yield ColumnChange(name, f"drift of {distance:.2f}", *medians)


def _category_changes(
    name: str, columns: tuple[Column, Column], limit: float, *, is_label: bool
) -> Iterator[ColumnChange]:
    counts = [each["vocabulary"] for each in columns]
    # The rarest words of a long tail have no count.
    totals = [
        sum(each["vocabulary"].values()) if each["shape"] else each["records"] for each in columns
    ]
    few = len(counts[0]) <= _MAX_CATEGORIES
    new = new_categories(counts, totals, 0 if is_label and few else LEAST_SHARE)
    if new:
        yield ColumnChange(name, "new category", f"{len(counts[0])} known", ", ".join(new[:5]))
    lost = new_categories(counts[::-1], totals[::-1], 0) if is_label and few else []
    if lost:
        yield ColumnChange(name, "category missing", ", ".join(lost[:5]), "-")
    distance = category_drift(counts, totals, limit)
    if distance:
        both = list(zip(counts, totals, strict=True))

        def moved(word: str) -> tuple[float, str]:
            before, now = (count.get(word, 0) / total for count, total in both)
            return abs(now - before), word

        most = max(counts[0].keys() | counts[1].keys(), key=moved)
        shown = (f"{most!r} {count.get(most, 0) / total:.1%}" for count, total in both)
        yield ColumnChange(name, f"drift of {distance:.2f}", *shown)


def _kind(name: str, columns: tuple[Column, Column], rules: PlanArguments) -> str:
    """How the values of a column are compared: as numbers, as categories, or not at all.

    Keys and times grow from day to day while nothing is wrong, so only their missing values are
    compared. They are recognized by the rules of the data set, by their types, and by values that
    grow evenly. The label is always compared.
    """
    before, now = columns
    has_words = all(each.get("vocabulary") for each in columns)
    is_few = max(each["distinct"] or 0 for each in columns) <= _MAX_CATEGORIES
    kind: str | None = rules.drift_rules.get(name, {}).get("kind")
    if kind is None and name != rules.label:
        if name in rules.key or _is_counter(before, now):
            kind = "key"
        elif all(map(_is_time, columns)) or (
            rules.split_by["way"] == "time" and rules.split_by["column"] == name
        ):
            kind = "time"
    if kind in ("key", "time", "number"):
        return kind
    as_words = kind == "category" or before["dtype"] == "string" or is_few
    return "category" if has_words and as_words else "number"


def _is_time(column: Column) -> bool:
    """Whether all values are times: by the type of the source, or as they are written."""
    if column.get("is_time") or column["shape"]:
        return bool(column.get("is_time"))
    if column["dtype"] == "string":
        return bool(column["examples"]) and all(map(_ISO_TIME.fullmatch, column["examples"]))
    return "min" in column and any(
        least <= column["min"] and column["max"] < greatest for least, greatest in _TIMES
    )


def _is_counter(before: Column, now: Column) -> bool:
    """Whether an integer column counts its records, or stretches of them.

    That is a constant that has grown, or values that are evenly spread over their range and
    that either are distinct or begin where those before ended.
    """
    columns = (before, now)
    if "int" not in before["dtype"] or before["shape"] or "min" not in before.keys() & now.keys():
        return False
    has_grown = now["min"] > before["max"]
    if all(each["min"] == each["max"] for each in columns):
        return has_grown
    is_distinct = all(each["distinct"] >= DISTINCT_SHARE * each["records"] for each in columns)
    return (has_grown or is_distinct) and all(map(_is_even, columns))


def _is_even(column: Column) -> bool:
    shares = np.array([float(name) for name in column["quantiles"]])
    values = np.array(list(column["quantiles"].values()))
    line = column["min"] + shares * (column["max"] - column["min"])
    return bool((np.abs(values - line) <= _UNEVEN * (column["max"] - column["min"])).all())


def check_changes(found: Sequence[ColumnChange], drift: float, page: str = "") -> None:
    """Check that nothing changed; ``page`` is the URL of the page that shows both, if there is one.

    Raises:
        FinalError: something did; the message is a table of the changes.
    """
    if not found:
        return
    rows = [("column", "what", "before", "now")]
    rows += [(each.column, each.what, each.before, each.now) for each in found]
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    table = "\n".join("  ".join(["", *map(str.ljust, row, widths)]).rstrip() for row in rows)
    raise FinalError(
        f"the data differ from the last data set (the limit of drift is {drift:g}):\n{table}\n"
        f"{f'both are side by side on {page}{chr(10)}' if page else ''}"
        "correct the source, in which 'rename' keeps the name of a column, or accept the data by "
        "the option allow_drift; drift_rules sets the limit and the kind of a column, or turns it "
        "off"
    )
