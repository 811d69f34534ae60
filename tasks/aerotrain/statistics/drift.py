"""New data beside the data set that was sealed before: what changed, and whether it may."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Schema
from aerotrain.statistics.dataset import feature_of

#: Columns of more different values than this have no categories that could be new.
_MOST_CATEGORIES = 200

#: Samples differ a little by themselves; below so many records they say nothing of drift.
_FEWEST_RECORDS = 100

#: What infinity is taken for, so that there are values between it and others.
_INFINITE = 1e300

Summary = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """One thing about a column that is not as it was."""

    column: str
    what: str
    before: str
    now: str


def changes(before: Summary, now: Summary, drift: float) -> list[Change]:
    """What changed from one data set to the next: columns, types, categories, and drift.

    Drift is the greatest difference, over all values, between the shares of records that are
    below it: the Kolmogorov-Smirnov distance, by the quantiles that both have.
    """
    schemas = [{name: feature_of(each[name]) for name in each} for each in (before, now)]
    found = schema_changes(*schemas)
    for name in before.keys() & now.keys() - {each.column for each in found}:
        found += _of_column(name, before[name], now[name], drift)
    return sorted(found, key=lambda change: change.column)


def schema_changes(before: Schema, now: Schema) -> list[Change]:
    """Columns that are missing, new, or of another type: what is known before a record is read."""
    found = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            found.append(Change(name, "column missing", str(before[name]), "-"))
        elif name not in before:
            found.append(Change(name, "column new", "-", str(now[name])))
        elif before[name] != now[name]:
            found.append(Change(name, "type", str(before[name]), str(now[name])))
    return found


def _of_column(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], drift: float
) -> Iterator[Change]:
    shares = [each["missing"] / max(1, each["records"]) for each in (before, now)]
    if abs(shares[1] - shares[0]) > drift:
        yield Change(name, "missing", *(f"{share:.1%}" for share in shares))
    known, found = before.get("vocabulary"), now.get("vocabulary")
    if known and found and len(known) <= _MOST_CATEGORIES:
        new = [value for value in found if value not in known]
        if new:
            yield Change(name, "new category", f"{len(known)} known", ", ".join(new[:5]))
    if min(before["records"], now["records"]) < _FEWEST_RECORDS:
        return
    distance = (
        _word_distance(known, found)
        if known and found and len(known) <= _MOST_CATEGORIES
        else _number_distance(before, now)
    )
    if distance > drift:
        medians = (f"median {each['quantiles']['0.5']:.4g}" for each in (before, now))
        yield Change(name, f"drift of {distance:.2f}", *medians)


def _word_distance(before: Mapping[str, int], now: Mapping[str, int]) -> float:
    """Half of what the shares of all words differ by."""
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
        # Of equal values the last alone: so many records are not above it.
        telling = np.append(one[1:] > one[:-1], True) & (shares > 0)
        distance = max(distance, float(np.abs(inside - shares)[telling].max(initial=0)))
    return distance


def check_changes(found: list[Change], drift: float) -> None:
    """Refuse data that changed.

    Raises:
        FinalError: it did; the message is a table of what changed.
    """
    if not found:
        return
    rows = [("column", "what", "before", "now")]
    rows += [(each.column, each.what, each.before, each.now) for each in found]
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    table = "\n".join("  ".join(["", *map(str.ljust, row, widths)]).rstrip() for row in rows)
    raise FinalError(
        f"the data are not like those that were sealed last (drift may be {drift:g}):\n{table}\n"
        "mend the source, or run once more with allow_drift=True to take them as they are"
    )
