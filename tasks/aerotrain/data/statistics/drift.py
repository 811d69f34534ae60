"""Schema changes and drift between a data set and the one that was finalized before."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature, Schema

#: A column with more distinct values is not categorical.
_MAX_CATEGORIES = 200

#: With fewer records, sampling noise hides drift.
_MIN_RECORDS = 100

#: Replaces infinity, so that values can be interpolated.
_INFINITE = 1e300

Summary = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """One change of a column."""

    column: str
    what: str
    before: str
    now: str


def changes(before: Summary, now: Summary, drift: float) -> list[Change]:
    """The changes from one data set to the next: columns, types, categories, and drift.

    The drift of numbers is the Kolmogorov-Smirnov distance, estimated from quantiles; that of
    categories is the total variation distance. Both are from 0 to 1.
    """
    schemas = [{name: Feature.from_dict(each[name]) for name in each} for each in (before, now)]
    found = schema_changes(*schemas)
    for name in before.keys() & now.keys() - {each.column for each in found}:
        found += _column_changes(name, before[name], now[name], drift)
    return sorted(found, key=lambda change: change.column)


def schema_changes(before: Schema, now: Schema) -> list[Change]:
    """Columns that are missing, new, or of another type; this needs no records."""
    found = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            found.append(Change(name, "column missing", str(before[name]), "-"))
        elif name not in before:
            found.append(Change(name, "column new", "-", str(now[name])))
        elif before[name] != now[name]:
            found.append(Change(name, "type", str(before[name]), str(now[name])))
    return found


def _column_changes(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], drift: float
) -> Iterator[Change]:
    shares = [each["missing"] / max(1, each["records"]) for each in (before, now)]
    if abs(shares[1] - shares[0]) > drift:
        yield Change(name, "missing", *(f"{share:.1%}" for share in shares))
    known, found = before.get("vocabulary"), now.get("vocabulary")
    if known and found and len(known) <= _MAX_CATEGORIES:
        new = [value for value in found if value not in known]
        if new:
            yield Change(name, "new category", f"{len(known)} known", ", ".join(new[:5]))
    if min(before["records"], now["records"]) < _MIN_RECORDS:
        return
    distance = (
        _category_distance(known, found)
        if known and found and len(known) <= _MAX_CATEGORIES
        else _number_distance(before, now)
    )
    if distance > drift:
        medians = (f"median {each['quantiles']['0.5']:.4g}" for each in (before, now))
        yield Change(name, f"drift of {distance:.2f}", *medians)


def _category_distance(before: Mapping[str, int], now: Mapping[str, int]) -> float:
    """The total variation distance: half the sum of the differences of the words' shares."""
    totals = [max(1, sum(each.values())) for each in (before, now)]
    words = before.keys() | now.keys()
    return (
        sum(abs(before.get(word, 0) / totals[0] - now.get(word, 0) / totals[1]) for word in words)
        / 2
    )


def _number_distance(before: Mapping[str, Any], now: Mapping[str, Any]) -> float:
    if "quantiles" not in before or "quantiles" not in now:
        return 0.0
    shares = np.array([float(name) for name in before["quantiles"]])
    values = [
        np.clip(list(each["quantiles"].values()), -_INFINITE, _INFINITE) for each in (before, now)
    ]
    distance = 0.0
    for one, other in (values, values[::-1]):
        inside = np.interp(one, other, shares, left=0.0, right=1.0)
        # Of equal quantiles only the last counts: the CDF includes the value itself.
        is_last_of_equals = np.append(one[1:] > one[:-1], True) & (shares > 0)
        distance = max(distance, float(np.abs(inside - shares)[is_last_of_equals].max(initial=0)))
    return distance


def check_changes(found: list[Change], drift: float) -> None:
    """Check that nothing changed.

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
        "correct the source, or run again with allow_drift=True to accept the data"
    )
