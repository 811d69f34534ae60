"""The statistics of a data set as one self-contained HTML page, compared with the previous one."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aerotrain.contract.errors import counted
from aerotrain.data.dataset import Split
from aerotrain.data.partitions import Rejections
from aerotrain.data.statistics.drift import (
    DISTINCT_SHARE,
    ColumnChange,
    DataComparison,
    Summary,
)
from aerotrain.data.statistics.sketches import DISTINCT
from aerotrain.pages.axis import Axis, duration_of, text_of
from aerotrain.pages.charts import bars, histogram
from aerotrain.pages.html import document, image, isolated, table, text

#: Categories that are shown, and the length of each. A histogram of fewer bars says nothing.
_MOST_BARS, _WORD_LENGTH, _LEAST_BARS = 12, 60, 2

#: Pictures without values from here on are dark.
_DARK = 128

#: The most values of an integer label that are classes.
_CLASSES = 100

Column = Mapping[str, Any]


def page(
    url: str,
    summary: Summary,
    splits: Mapping[str, Split],
    inferred: Sequence[tuple[str, str]] = (),
    comparison: DataComparison | None = None,
    label: str = "label",
    rejections: Rejections | None = None,
    differences: Mapping[str, Sequence[ColumnChange]] = MappingProxyType({}),
) -> str:
    """The HTML document of the data set at ``url``, without external resources.

    ``inferred`` is shown of the source. ``label`` is the column of the classes of the ``splits``,
    whose ``differences`` are those of the others from the train split.
    """
    records = _records(summary)
    facts = [[isolated(name, 80), isolated(value)] for name, value in inferred]
    source = f"<details open><summary>Source</summary>{table(facts, kind='text')}</details>"
    both = summary.keys() | (comparison.before.keys() if comparison else set())
    names = sorted(both, key=lambda name: (name != label, name))
    sections = (
        _section(number, name, summary, comparison, label) for number, name in enumerate(names)
    )
    parts = [
        f"<h1>{counted(records, 'record')}, {counted(len(summary), 'column')}</h1>",
        f"<p>{isolated(url)}</p>",
        _rejected(rejections, records) if rejections and rejections.count else "",
        _splits(splits, _names_of(summary.get(label, {}))) if splits else "",
        _between_splits(differences, names) if differences else "",
        source if facts else "",
        _compared(comparison, names) if comparison else "",
        *sections,
    ]
    return document(f"Statistics of {url}", "".join(parts))


def _records(summary: Summary) -> int:
    return max((each["records"] for each in summary.values()), default=0)


def _rejected(rejections: Rejections, records: int) -> str:
    """How many records were rejected, where they are, and a table of the first."""
    count = rejections.count
    rows = [
        [isolated(each.file), each.place, isolated(each.reason, 200)] for each in rejections.first
    ]
    return (
        f'<p><b class="warn">{counted(count, "record")} rejected '
        f"({count / (records + count):.1%})</b>, listed in {isolated(rejections.url)}</p>"
        f"{table(rows, ('file', 'place', 'reason'), 'text')}"
    )


def _splits(splits: Mapping[str, Split], names: Mapping[str, str]) -> str:
    """A table of the splits: their records, and the share of each class."""
    # One column for each split, as there may be more classes than fit into a narrow window.
    by_name = [splits[name] for name in sorted(splits)]
    classes = sorted({label for split in by_name for label in split.classes})
    total = max(1, sum(split.records for split in by_name))
    rows = [
        ["records", *(f"{split.records:,}" for split in by_name)],
        ["share", *(f"{split.records / total:.1%}" for split in by_name)],
    ]
    for label in classes if len(classes) <= _MOST_BARS else ():
        shares = (split.classes.get(label, 0) / max(1, split.records) for split in by_name)
        name = isolated(names.get(str(label), f"class {label}"), _WORD_LENGTH)
        rows.append([name, *(f"{each:.1%}" for each in shares)])
    return table(rows, ["split", *map(text, sorted(splits))])


def _linked(change: ColumnChange, names: Sequence[str]) -> list[str]:
    """The cells of a change, the first a link to its column."""
    link = f'<a href="#column-{names.index(change.column)}">{isolated(change.column, 60)}</a>'
    return [link, *(isolated(each, 200) for each in (change.what, change.before, change.now))]


def _between_splits(differences: Mapping[str, Sequence[ColumnChange]], names: Sequence[str]) -> str:
    """A table of the columns of which the records of a split are unlike those of the training."""
    rows = [
        [*_linked(each, names), text(split)]
        for split, found in differences.items()
        for each in found
    ]
    if not rows:
        return f"<p>No column of {text(' or '.join(differences))} differs from that of train.</p>"
    found = f'<b class="warn">{counted(len(rows), "difference")} between splits</b>'
    heads = ("column", "what", "train", "other", "split")
    return f"<p>{found}, by random records of each</p>{table(rows, heads, 'text')}"


def _compared(comparison: DataComparison, names: Sequence[str]) -> str:
    """The data set before, and a table of the changes, with links to their columns."""
    found = comparison.changes
    rows = [_linked(each, names) for each in found]
    heads = ("column", "what", "before", "now")
    count = f'<b class="warn">{counted(len(found), "change")}</b>' if found else "no change"
    records = _records(comparison.before)
    return (
        f"<p>Compared with {isolated(comparison.url)}, of {records:,} records: {count}</p>"
        f"{table(rows, heads, 'text') if rows else ''}"
    )


def _section(
    number: int, name: str, now: Summary, comparison: DataComparison | None, label: str
) -> str:
    """One column, of the data set and of the one before."""
    sides = [now, comparison.before] if comparison else [now]
    columns = [each[name] for each in sides if name in each]
    column = columns[0]
    same = [each for each in columns if _type_of(each) == _type_of(column)]
    is_class = bool(column.get("names")) or (name == label and _has_classes(column))
    titles = ("this data set", "the one before") if comparison else ("",)
    sheets = "".join(
        _sheet(side[name], title, _names_of(side.get(label, {})))
        for side, title in zip(sides, titles, strict=True)
        if side.get(name, {}).get("pictures")
    )
    if sheets:
        last = f'<ul></ul><div class="wide">{sheets}</div>'
    else:
        last = f"<ul>{''.join(f'<li>{isolated(each)}</li>' for each in _examples(column))}</ul>"
    return (
        f'<section id="column-{number}"><div><h2 class="name">{isolated(name)}</h2>'
        f'<div class="kind">{_kind(column, is_class=is_class)}</div>{_verdict(name, comparison)}'
        f"{_facts(same, is_class=is_class)}</div>"
        f"<div>{_plot(same)}</div>{last}</section>"
    )


def _type_of(column: Column) -> tuple[str, ...]:
    return (column["dtype"], *map(str, column["shape"]))


def _examples(column: Column) -> list[str]:
    if column["since_1970"] and not column["shape"]:
        return [text_of(int(each), column["since_1970"]) for each in column["examples"]]
    names = _names_of(column)
    return [names.get(each, each) for each in column["examples"]]


def _has_classes(label: Column) -> bool:
    """Whether a label has numbers of classes, rather than a quantity."""
    return "int" in label["dtype"] and 0 < len(label.get("vocabulary") or ()) <= _CLASSES


def _kind(column: Column, *, is_class: bool) -> str:
    if is_class:
        return f"{column['dtype']}, the number of a class or word"
    dtype, *shape = _type_of(column)
    unit = f", {column['since_1970']} since 1970" if column["since_1970"] else ""
    return f"{dtype} {' × '.join(shape)}".strip() + unit


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
    if name in comparison.kinds and not lines:
        lines = [f'<div class="verdict">{_HOW_COMPARED[comparison.kinds[name]]}</div>']
    return "".join(lines)


_HOW_COMPARED = {
    "number": "no drift, compared as numbers",
    "category": "no drift, compared as categories",
    "key": "a key: only missing values are compared",
    "time": "a time: only missing values are compared",
    "off": "not compared: drift_rules turns it off",
}


def _facts(columns: Sequence[Column], *, is_class: bool) -> str:
    """A table of the numbers of a column, and of those before; a number of a class has no mean."""
    found = [dict(_rows_of_facts(each, is_class=is_class)) for each in columns]
    labels = dict.fromkeys(label for each in found for label in each)
    rows = ([label, *(each.get(label, "-") for each in found)] for label in labels)
    return table(rows, ("", "now", "before") if len(found) > 1 else (), "facts")


def _rows_of_facts(column: Column, *, is_class: bool) -> Iterator[tuple[str, str]]:
    missing = f"{column['missing']:,} ({column['missing'] / max(1, column['records']):.1%})"
    yield "missing", f'<span class="warn">{missing}</span>' if column["missing"] else "none"
    if column["distinct"] is not None:
        yield "distinct", _number_of_distinct(column["distinct"])
    if "min" not in column or is_class:
        return
    of, unit = "length " if column["dtype"] == "string" else "", column["since_1970"]
    yield of + "min", text_of(column["min"], unit)
    yield of + "median", text_of(column["quantiles"]["0.5"], unit)
    yield of + "max", text_of(column["max"], unit)
    yield of + "mean", text_of(column["mean"], unit)
    yield of + "std", duration_of(column["std"], unit)


def _plot(columns: Sequence[Column]) -> str:
    """The chart of a column in the new data set, and, if it is there, in the one before."""
    if all(each.get("vocabulary") for each in columns) and _is_of_categories(columns[0]):
        return _bars(columns)
    axis = Axis.of(columns)
    if axis is None:
        return ""
    shares = [axis.shares(each) if each.get("quantiles") else [] for each in columns]
    if len({place for each in shares for place, share in enumerate(each) if share}) < _LEAST_BARS:
        return ""
    said = {
        "length in bytes": columns[0]["dtype"] == "string",
        "the first and the last bar have all values beyond": axis.is_cut,
    }
    caption = "; ".join(words for words, is_so in said.items() if is_so)
    return histogram(axis, shares[0], shares[1] if len(shares) > 1 else [], caption)


def _is_of_categories(column: Column) -> bool:
    """Whether frequencies say something; if almost every text is distinct, its length says more."""
    few = len(column["vocabulary"]) <= _MOST_BARS
    return few or (
        column["dtype"] == "string"
        and (column["distinct"] or 0) < DISTINCT_SHARE * column["records"]
    )


def _bars(columns: Sequence[Column]) -> str:
    """One bar for each of the most frequent values, and one for all others."""
    column, counts = columns[0], [each["vocabulary"] for each in columns]
    # An array has several values, and the rarest words may have no count.
    words = [sum(each.values()) for each in counts]
    totals = [
        max(1, number, 0 if each["shape"] else each["records"])
        for number, each in zip(words, columns, strict=True)
    ]

    def share(word: str) -> float:
        return max(each.get(word, 0) / n for each, n in zip(counts, totals, strict=True))

    shown = sorted({*counts[0], *counts[-1]}, key=lambda word: (-share(word), word))[:_MOST_BARS]
    is_number = column["dtype"] != "string"
    shown.sort(key=lambda word: (float(word) if is_number else -counts[0].get(word, 0), word))
    names = _names_of(column)
    rows = []
    for word in shown:
        name = text_of(int(word), column["since_1970"]) if is_number else word
        name = isolated(names.get(word, name), _WORD_LENGTH)
        rows.append((name, [each.get(word, 0) for each in counts]))
    number = max(len(counts[0]), column["distinct"] or 0) - len(counts[0].keys() & shown)
    return bars(rows, totals, f"{_number_of_distinct(number)} others" if number > 0 else "others")


def _names_of(column: Column) -> dict[str, str]:
    """The words whose numbers the column holds, by the numbers, and one for what is missing."""
    names = {f"{number}": name for number, name in enumerate(column.get("names", ()))}
    return {"" if column.get("dtype") == "string" else "nan": "(missing)", **names}


def _number_of_distinct(number: int) -> str:
    """A count of distinct values, which is an estimate if it is large: see ``sketches``."""
    return f"{number:,}" if number < DISTINCT else f"about {float(f'{number:.3g}'):,.0f}"


def _sheet(column: Column, title: str, names: Mapping[str, str]) -> str:
    """The pictures of a column, with the names of their classes; brighter if all are dark."""
    most, style = column.get("max", 0), ""
    if column["dtype"] != "string" and 0 < most < _DARK:
        title = f"{title} shown brighter, as the greatest value is {text_of(most)}".strip()
        style = f' style="--light:{255 / most:.4g}"'
    figures = "".join(
        f"<figure>{image(png)}{'' if label is None else _caption(label, names)}</figure>"
        for label, png in column["pictures"]
    )
    return f'<div class="caption">{title}</div><div class="sheet"{style}>{figures}</div>'


def _caption(label: int | str, names: Mapping[str, str]) -> str:
    return f"<figcaption>{isolated(names.get(str(label), str(label)), _WORD_LENGTH)}</figcaption>"
