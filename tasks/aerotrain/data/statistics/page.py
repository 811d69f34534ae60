"""The statistics of a data set as one self-contained HTML page, compared with the previous one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aerotrain.contract.errors import counted
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Split
from aerotrain.data.partitions import Rejections
from aerotrain.data.statistics.axis import duration_of, text_of
from aerotrain.data.statistics.drift import ColumnChange, changes, kinds
from aerotrain.data.statistics.markup import document, isolated, table, text
from aerotrain.data.statistics.pictures import Sheet
from aerotrain.data.statistics.plots import (
    MOST_BARS,
    class_name,
    contact_sheet,
    missing_word,
    names_of,
    number_of_distinct,
    plot,
)

#: All pictures of a page, encoded.
_PICTURES_BYTES = 300_000

Column = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a page shows of a data set: the summary of each column, and pictures of some."""

    url: str
    summary: Mapping[str, Column]
    pictures: Mapping[str, Sheet] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataComparison:
    """The data set before, the changes since, and how each column of both was compared."""

    before: Described
    changes: Sequence[ColumnChange]
    kinds: Mapping[str, str]

    @classmethod
    def of(cls, before: Described, now: Described, rules: PlanArguments) -> Self:
        return cls(
            before=before,
            changes=changes(before.summary, now.summary, rules),
            kinds=kinds(before.summary, now.summary, rules),
        )


def page(
    now: Described,
    splits: Mapping[str, Split],
    inferred: Sequence[tuple[str, str]] = (),
    comparison: DataComparison | None = None,
    label: str = "label",
    rejections: Rejections | None = None,
) -> str:
    """The HTML document, without external resources.

    ``inferred`` is shown of the source. ``label`` is the column of the classes of the ``splits``.
    """
    records = _records(now)
    before = comparison.before if comparison else None
    names = sorted(now.summary.keys() | (before.summary.keys() if before else set()))
    sheets = sum(len(each.pictures) for each in (now, before) if each)
    budget = _PICTURES_BYTES // max(1, sheets)
    sections = "".join(
        _section(number, name, now, comparison, budget, label) for number, name in enumerate(names)
    )
    classes = names_of(now.summary.get(label, {}))
    body = (
        f"<h1>{counted(records, 'record')}, {counted(len(now.summary), 'column')}</h1>"
        f"<p>{isolated(now.url)}</p>"
        f"{_rejected(rejections or Rejections(), records)}{_splits(splits, classes)}"
        f"{_inferred(inferred)}"
        f"{_compared(comparison, names) if comparison else ''}{sections}"
    )
    return document(f"Statistics of {now.url}", body)


def _records(described: Described) -> int:
    return max((each["records"] for each in described.summary.values()), default=0)


def _rejected(rejections: Rejections, records: int) -> str:
    """How many records were rejected, where they are, and a table of the first."""
    count = rejections.count
    if not count:
        return ""
    rows = [
        [isolated(each.file), each.place, isolated(each.reason, 200)] for each in rejections.first
    ]
    return (
        f'<p><b class="warn">{counted(count, "record")} {"was" if count == 1 else "were"} rejected '
        f"({count / (records + count):.1%})</b>; {isolated(rejections.url)} has "
        f"{'it' if count == 1 else 'them'}</p>"
        f'<div class="table">{table(rows, ("file", "place", "reason"), "text")}</div>'
    )


def _splits(splits: Mapping[str, Split], names: Mapping[str, str]) -> str:
    """A table of the splits: their records, and the share of each class."""
    if not splits:
        return ""
    classes = sorted({label for split in splits.values() for label in split.classes})
    shown = classes if len(classes) <= MOST_BARS else []
    total = max(1, sum(split.records for split in splits.values()))
    # One column for each split, as there may be more classes than fit into a narrow window.
    by_name = sorted(splits.items())
    rows = [
        ["records", *(f"{split.records:,}" for _, split in by_name)],
        ["share", *(f"{split.records / total:.1%}" for _, split in by_name)],
    ]
    for label in shown:
        shares = (split.classes.get(label, 0) / max(1, split.records) for _, split in by_name)
        rows.append([class_name(label, names, "class "), *(f"{each:.1%}" for each in shares)])
    heads = ["split", *(text(name) for name, _ in by_name)]
    return f'<div class="table">{table(rows, heads)}</div>'


def _inferred(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = table(([isolated(name, 80), isolated(value)] for name, value in rows), kind="source")
    return f'<details open><summary>Source</summary><div class="table">{cells}</div></details>'


def _compared(comparison: DataComparison, names: Sequence[str]) -> str:
    """The data set before, and a table of the changes, with links to their columns."""
    before, found = comparison.before, comparison.changes
    rows = [
        [
            f'<a href="#column-{names.index(each.column)}">{isolated(each.column, 60)}</a>',
            *(isolated(cell, 200) for cell in (each.what, each.before, each.now)),
        ]
        for each in found
    ]
    heads = ("column", "what", "before", "now")
    count = f'<b class="warn">{len(found)} changes</b>' if len(found) > 1 else "no change"
    if len(found) == 1:
        count = '<b class="warn">1 change</b>'
    changes = f'<div class="table">{table(rows, heads, "text")}</div>' if rows else ""
    return (
        f"<p>Compared with {isolated(before.url)}, of {_records(before):,} records: {count}</p>"
        f"{changes}"
    )


def _section(
    number: int,
    name: str,
    now: Described,
    comparison: DataComparison | None,
    budget: int,
    label: str,
) -> str:
    sides = [now, comparison.before] if comparison else [now]
    columns = [each.summary[name] for each in sides if name in each.summary]
    column = columns[0]
    sheets = "".join(
        contact_sheet(
            side.pictures[name],
            side.summary[name],
            title if comparison else "",
            budget,
            names_of(side.summary.get(label, {})),
        )
        for side, title in zip(sides, ("this data set", "the one before"), strict=False)
        if name in side.pictures
    )
    wide = f'<div class="wide sheets">{sheets}</div>' if sheets else ""
    is_same = len({(each["dtype"], tuple(each["shape"])) for each in columns}) == 1
    facts = _facts_of_two(columns) if is_same and len(columns) > 1 else _facts(column)
    shown = [] if sheets else _examples(column)
    examples = "".join(f"<li>{isolated(each)}</li>" for each in shown)
    return (
        f'<section id="column-{number}"><div><h2 class="name">{isolated(name)}</h2>'
        f'<div class="kind">{_kind(column)}</div>{_verdict(name, comparison)}{facts}</div>'
        f"<div>{plot(columns if is_same else columns[:1])}</div><ul>{examples}</ul>"
        f"{wide}</section>"
    )


def _examples(column: Column) -> list[str]:
    examples, unit = column["examples"], column.get("since_1970")
    if unit and not column["shape"]:
        return [text_of(int(each), unit) for each in examples]
    if names := names_of(column):
        return [names.get(each, each) for each in examples]
    missing = "nan" if "float" in column["dtype"] else missing_word(column)
    return ["(missing)" if each == missing else each for each in examples]


def _kind(column: Column) -> str:
    shape = " × ".join(map(str, column["shape"]))
    unit = column.get("since_1970")
    if column.get("names"):
        return f"{column['dtype']}, the number of a class or word"
    return f"{column['dtype']} {shape}".strip() + (f", {unit} since 1970" if unit else "")


def _verdict(name: str, comparison: DataComparison | None) -> str:
    """What has changed of the column, or how it was compared."""
    if comparison is None:
        return ""
    lines = [
        f'<div class="verdict warn">{text(each.what)}: {isolated(each.before, 200)} → '
        f"{isolated(each.now, 200)}</div>"
        for each in comparison.changes
        if each.column == name
    ]
    kind = comparison.kinds.get(name)
    if kind is not None and not lines:
        how = _HOW_COMPARED[kind]
        lines = [f'<div class="verdict">{how}</div>']
    return "".join(lines)


_HOW_COMPARED = {
    "number": "no drift, compared as numbers",
    "category": "no drift, compared as categories",
    "key": "a key: only missing values are compared",
    "time": "a time: only missing values are compared",
    "off": "not compared: drift_rules turns it off",
}


def _facts(column: Column) -> str:
    return table(_rows_of_facts(column), kind="facts")


def _facts_of_two(columns: Sequence[Column]) -> str:
    now, before = (dict(_rows_of_facts(each)) for each in columns)
    labels = [*now, *(label for label in before if label not in now)]
    rows = [[label, now.get(label, "-"), before.get(label, "-")] for label in labels]
    return table(rows, ("", "now", "before"), "facts")


def _rows_of_facts(column: Column) -> Iterator[tuple[str, str]]:
    share = column["missing"] / max(1, column["records"])
    missing = f"{column['missing']:,} ({share:.1%})"
    yield "missing", f'<span class="warn">{missing}</span>' if column["missing"] else "none"
    if column["distinct"] is not None:
        yield "distinct", number_of_distinct(column["distinct"])
    if "min" not in column or column.get("names"):
        return
    of, unit = "length " if column["dtype"] == "string" else "", column.get("since_1970", "")
    yield of + "min", text_of(column["min"], unit)
    if column.get("quantiles"):
        yield of + "median", text_of(column["quantiles"]["0.5"], unit)
    yield of + "max", text_of(column["max"], unit)
    yield of + "mean", text_of(column["mean"], unit)
    yield of + "std", duration_of(column["std"], unit)
