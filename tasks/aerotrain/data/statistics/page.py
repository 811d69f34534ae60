"""The statistics of a data set as one self-contained HTML page, compared with the previous one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aerotrain.contract.errors import counted
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Split
from aerotrain.data.partitions import Rejections
from aerotrain.data.statistics.drift import ColumnChange, changes, kinds
from aerotrain.data.statistics.pictures import Sheet
from aerotrain.data.statistics.sketches import DISTINCT
from aerotrain.pages.axis import Axis, duration_of, text_of
from aerotrain.pages.charts import bars, histogram
from aerotrain.pages.html import document, image, isolated, table, text

#: Categories that are shown, and the length of each. A histogram of fewer bars says nothing.
_MOST_BARS, _WORD_LENGTH, _LEAST_BARS = 12, 60, 2

_CLASS_LENGTH = 40

#: A column of which so many values are distinct identifies its records.
_DISTINCT = 0.9

#: Pictures without values from here on are dark.
_DARK = 128

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
    classes = _names_of(now.summary.get(label, {}))
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
    verb, object_ = ("was", "it") if count == 1 else ("were", "them")
    return (
        f'<p><b class="warn">{counted(count, "record")} {verb} rejected '
        f"({count / (records + count):.1%})</b>; {isolated(rejections.url)} has {object_}</p>"
        f"{table(rows, ('file', 'place', 'reason'), 'text')}"
    )


def _splits(splits: Mapping[str, Split], names: Mapping[str, str]) -> str:
    """A table of the splits: their records, and the share of each class."""
    if not splits:
        return ""
    classes = sorted({label for split in splits.values() for label in split.classes})
    shown = classes if len(classes) <= _MOST_BARS else []
    total = max(1, sum(split.records for split in splits.values()))
    # One column for each split, as there may be more classes than fit into a narrow window.
    by_name = sorted(splits.items())
    rows = [
        ["records", *(f"{split.records:,}" for _, split in by_name)],
        ["share", *(f"{split.records / total:.1%}" for _, split in by_name)],
    ]
    for label in shown:
        shares = (split.classes.get(label, 0) / max(1, split.records) for _, split in by_name)
        rows.append([_class_name(label, names, "class "), *(f"{each:.1%}" for each in shares)])
    heads = ["split", *(text(name) for name, _ in by_name)]
    return table(rows, heads)


def _inferred(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = table(([isolated(name, 80), isolated(value)] for name, value in rows), kind="source")
    return f"<details open><summary>Source</summary>{cells}</details>"


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
    count = f'<b class="warn">{counted(len(found), "change")}</b>' if found else "no change"
    return (
        f"<p>Compared with {isolated(before.url)}, of {_records(before):,} records: {count}</p>"
        f"{table(rows, heads, 'text') if rows else ''}"
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
        _contact_sheet(
            side.pictures[name],
            side.summary[name],
            title if comparison else "",
            budget,
            _names_of(side.summary.get(label, {})),
        )
        for side, title in zip(sides, ("this data set", "the one before"), strict=False)
        if name in side.pictures
    )
    wide = f'<div class="wide sheets">{sheets}</div>' if sheets else ""
    is_same = len({(each["dtype"], tuple(each["shape"])) for each in columns}) == 1
    facts = _facts(columns if is_same else columns[:1])
    shown = [] if sheets else _examples(column)
    examples = "".join(f"<li>{isolated(each)}</li>" for each in shown)
    return (
        f'<section id="column-{number}"><div><h2 class="name">{isolated(name)}</h2>'
        f'<div class="kind">{_kind(column)}</div>{_verdict(name, comparison)}{facts}</div>'
        f"<div>{_plot(columns if is_same else columns[:1])}</div><ul>{examples}</ul>"
        f"{wide}</section>"
    )


def _examples(column: Column) -> list[str]:
    examples, unit = column["examples"], column.get("since_1970")
    if unit and not column["shape"]:
        return [text_of(int(each), unit) for each in examples]
    if names := _names_of(column):
        return [names.get(each, each) for each in examples]
    missing = "nan" if "float" in column["dtype"] else _missing_word(column)
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


def _facts(columns: Sequence[Column]) -> str:
    """A table of the numbers of a column, and of those before."""
    found = [dict(_rows_of_facts(each)) for each in columns]
    labels = dict.fromkeys(label for each in found for label in each)
    rows = ([label, *(each.get(label, "-") for each in found)] for label in labels)
    return table(rows, ("", "now", "before") if len(found) > 1 else (), "facts")


def _rows_of_facts(column: Column) -> Iterator[tuple[str, str]]:
    share = column["missing"] / max(1, column["records"])
    missing = f"{column['missing']:,} ({share:.1%})"
    yield "missing", f'<span class="warn">{missing}</span>' if column["missing"] else "none"
    if column["distinct"] is not None:
        yield "distinct", _number_of_distinct(column["distinct"])
    if "min" not in column or column.get("names"):
        return
    of, unit = "length " if column["dtype"] == "string" else "", column.get("since_1970", "")
    yield of + "min", text_of(column["min"], unit)
    if column.get("quantiles"):
        yield of + "median", text_of(column["quantiles"]["0.5"], unit)
    yield of + "max", text_of(column["max"], unit)
    yield of + "mean", text_of(column["mean"], unit)
    yield of + "std", duration_of(column["std"], unit)


def _plot(columns: Sequence[Column]) -> str:
    """The chart of a column in the new data set, and, if it is there, in the one before."""
    has_words = all(each.get("vocabulary") for each in columns)
    return _bars(columns) if has_words and _is_of_categories(columns[0]) else _histogram(columns)


def _is_of_categories(column: Column) -> bool:
    """Whether frequencies say something; if almost every text is distinct, its length says more."""
    few = len(column["vocabulary"]) <= _MOST_BARS
    return few or (
        column["dtype"] == "string" and (column["distinct"] or 0) < _DISTINCT * column["records"]
    )


def _bars(columns: Sequence[Column]) -> str:
    """One bar for each of the most frequent values, and one for all others."""
    column, counts, totals = columns[0], [each["vocabulary"] for each in columns], []
    for each in columns:  # an array has several values, and the rarest words may have no count
        words = sum(each["vocabulary"].values())
        totals.append(max(1, words if each["shape"] else max(words, each["records"])))

    def share(word: str) -> float:
        return max(each.get(word, 0) / n for each, n in zip(counts, totals, strict=True))

    shown = sorted({*counts[0], *counts[-1]}, key=lambda word: (-share(word), word))[:_MOST_BARS]
    is_number = column["dtype"] != "string"
    shown.sort(key=lambda word: (float(word) if is_number else -counts[0].get(word, 0), word))
    names, missing = _names_of(column), _missing_word(column)
    rows = []
    for word in shown:
        name = text_of(int(word), column.get("since_1970", "")) if is_number else word
        name = "(missing)" if word == missing else names.get(word, name)
        rows.append((isolated(name, _WORD_LENGTH), [each.get(word, 0) for each in counts]))
    number = max(len(counts[0]), column["distinct"] or 0) - len(counts[0].keys() & shown)
    return bars(rows, totals, f"{_number_of_distinct(number)} others" if number > 0 else "others")


def _missing_word(column: Column) -> str | None:
    """The word that stands for missing values in a column of texts, if it is none itself."""
    is_missing = column["missing"] and column["missing"] == column.get("vocabulary", {}).get("")
    return "" if column["dtype"] == "string" and is_missing else None


def _names_of(column: Column) -> dict[str, str]:
    """The words whose numbers the column holds, by the numbers."""
    return {f"{number}": name for number, name in enumerate(column.get("names", ()))}


def _class_name(label: int | str, names: Mapping[str, str], before: str = "") -> str:
    """The name of a class, or its number after ``before``."""
    return isolated(names.get(str(label), f"{before}{label}"), _CLASS_LENGTH)


def _number_of_distinct(number: int) -> str:
    """A count of distinct values, which is an estimate if it is large: see ``sketches``."""
    return f"{number:,}" if number < DISTINCT else f"about {float(f'{number:.3g}'):,.0f}"


def _histogram(columns: Sequence[Column]) -> str:
    axis = Axis.of(columns)
    if axis is None:
        return ""
    shares = [axis.shares(each) if each.get("quantiles") else [] for each in columns]
    if len({place for each in shares for place, share in enumerate(each) if share}) < _LEAST_BARS:
        return ""
    said = {
        "length in bytes": columns[0]["dtype"] == "string",
        "logarithmic axis": axis.linear_to,
        "the first and the last bar have all values beyond": axis.is_cut,
    }
    caption = "; ".join(words for words, is_so in said.items() if is_so)
    return histogram(axis, shares[0], shares[1] if len(shares) > 1 else [], caption)


def _contact_sheet(
    sheet: Sheet, column: Column, title: str, most_bytes: int, names: Mapping[str, str]
) -> str:
    """The pictures of each class in a row, up to ``most_bytes`` in all, evenly over the classes.

    ``names`` are those of the classes that have numbers. If all values of ``column`` are dark, the
    pictures are shown brighter.
    """
    chosen: dict[Any, list[str]] = {label: [] for label, _ in sheet}
    left = most_bytes
    for rank in range(max((len(each) for _, each in sheet), default=0)):
        for label, pictures in sheet:
            if rank < len(pictures) and len(pictures[rank]) <= left:
                left -= len(pictures[rank])
                chosen[label].append(pictures[rank])
    rows = "".join(
        f"{'<span></span>' if label is None else _class_name(label, names)}"
        f"<div>{''.join(map(image, pictures))}</div>"
        for label, pictures in chosen.items()
        if pictures
    )
    most = column.get("max", 0)
    style = ""
    if column["dtype"] != "string" and 0 < most < _DARK:
        title = f"{title} shown brighter, as the greatest value is {text_of(most)}".strip()
        style = f' style="--light:{255 / most:.4g}"'
    return f'<div><div class="caption">{title}</div><div class="sheet"{style}>{rows}</div></div>'
