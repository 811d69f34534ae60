"""Plots of a column, of one data set or of two: bars of its categories, or a histogram."""

from collections.abc import Mapping, Sequence
from typing import Any

from aerotrain.data.statistics.axis import Axis, text_of
from aerotrain.data.statistics.markup import isolated, text
from aerotrain.data.statistics.pictures import Sheet
from aerotrain.data.statistics.sketches import DISTINCT

#: Categories that are shown, and the length of each.
MOST_BARS, _WORD_LENGTH = 12, 60

#: A histogram of fewer bars says nothing.
_LEAST_BARS = 2

_CLASS_LENGTH = 40

#: A column of which so many values are distinct identifies its records.
_DISTINCT = 0.9

_HEIGHT = 100

#: Pictures without values from here on are dark.
_DARK = 128

Column = Mapping[str, Any]


def plot(columns: Sequence[Column]) -> str:
    """The plot of a column in the new data set, and, if it is there, in the one before."""
    has_words = all(each.get("vocabulary") for each in columns)
    return _bars(columns) if has_words and _is_of_categories(columns[0]) else _histogram(columns)


def _is_of_categories(column: Column) -> bool:
    """Whether frequencies say something; if almost every text is distinct, its length says more."""
    few = len(column["vocabulary"]) <= MOST_BARS
    return few or (
        column["dtype"] == "string" and (column["distinct"] or 0) < _DISTINCT * column["records"]
    )


def _bars(columns: Sequence[Column]) -> str:
    """One bar for each of the most frequent values, and one for all others."""
    shares = [_shares(each) for each in columns]
    words = sorted(
        {word for each in shares for word in each},
        key=lambda word: (-max(each.get(word, 0) for each in shares), word),
    )[:MOST_BARS]
    is_number = columns[0]["dtype"] != "string"
    words.sort(key=lambda word: (float(word) if is_number else -shares[0].get(word, 0), word))
    names = names_of(columns[0])
    most = max(each.get(word, 0) for each in shares for word in words)
    rows = []
    for word in words:
        name = text_of(int(word), columns[0].get("since_1970", "")) if is_number else word
        name = "(missing)" if word == missing_word(columns[0]) else names.get(word, name)
        counts = [each["vocabulary"].get(word, 0) for each in columns]
        rows.append(
            isolated(name, _WORD_LENGTH)
            + _bar([each.get(word, 0) / most for each in shares])
            + _counted(counts, [each.get(word, 0) for each in shares])
        )
    rows.append(_others(columns, words))
    return f'<div class="bars">{"".join(rows)}</div>{_legend(columns)}'


def missing_word(column: Column) -> str | None:
    """The word that stands for missing values in a column of texts, if it is none itself."""
    is_missing = column["missing"] and column["missing"] == column.get("vocabulary", {}).get("")
    return "" if column["dtype"] == "string" and is_missing else None


def names_of(column: Column) -> dict[str, str]:
    """The words whose numbers the column holds, by the numbers."""
    return {f"{number}": name for number, name in enumerate(column.get("names", ()))}


def class_name(label: int | str, names: Mapping[str, str], before: str = "") -> str:
    """The name of a class, or its number after ``before``."""
    return isolated(names.get(str(label), f"{before}{label}"), _CLASS_LENGTH)


def _shares(column: Column) -> dict[str, float]:
    words = column["vocabulary"]
    total = _total(column)
    return {word: count / total for word, count in words.items()}


def _total(column: Column) -> int:
    """The number of values: an array has several, and the rarest words may have no count."""
    counted = sum(column["vocabulary"].values())
    return max(1, counted if column["shape"] else max(counted, column["records"]))


def _others(columns: Sequence[Column], words: Sequence[str]) -> str:
    """The row of the categories that are not shown."""
    totals = [_total(each) for each in columns]
    counts = [
        max(0, total - sum(each["vocabulary"].get(word, 0) for word in words))
        for each, total in zip(columns, totals, strict=True)
    ]
    if not any(counts):
        return ""
    shown = sum(word in columns[0]["vocabulary"] for word in words)
    number = max(len(columns[0]["vocabulary"]), columns[0]["distinct"] or 0) - shown
    name = f"{number_of_distinct(number)} others" if number > 0 else "others"
    shares = [count / total for count, total in zip(counts, totals, strict=True)]
    return f'<bdi class="others">{name}</bdi><div></div>{_counted(counts, shares)}'


def number_of_distinct(number: int) -> str:
    """A count of distinct values, which is an estimate if it is large: see ``sketches``."""
    return f"{number:,}" if number < DISTINCT else f"about {float(f'{number:.3g}'):,.0f}"


def _bar(widths: Sequence[float]) -> str:
    bars = "".join(f'<i style="width:{width:.1%}"></i>' for width in widths)
    return f'<div class="{"two" if len(widths) > 1 else "one"}">{bars}</div>'


def _counted(counts: Sequence[int], shares: Sequence[float]) -> str:
    if len(counts) == 1:
        return f"<span>{counts[0]:,} ({shares[0]:.1%})</span>"
    return f"<span>{shares[0]:.1%} <small>was {shares[1]:.1%}</small></span>"


def _histogram(columns: Sequence[Column]) -> str:
    """The shares of the values as bars, and those of the data set before as a line."""
    axis = Axis.of(columns)
    if axis is None:
        return ""
    shares = [axis.shares(each) if each.get("quantiles") else [] for each in columns]
    if len({place for each in shares for place, share in enumerate(each) if share}) < _LEAST_BARS:
        return ""
    most = max((max(each) for each in shares if each), default=0) or 1
    heights = [[share / most * (_HEIGHT - 4) for share in each] for each in shares]
    bars = "".join(
        f'<rect x="{number + 0.04:.2f}" y="{_HEIGHT - height:.1f}" width=".92" '
        f'height="{height:.1f}"><title>{shares[0][number]:.2%}</title></rect>'
        for number, height in enumerate(heights[0])
        if height
    )
    line = _outline(heights[1]) if len(heights) > 1 and heights[1] else ""
    return (
        f'<svg viewBox="0 0 {axis.bins} {_HEIGHT}" preserveAspectRatio="none" role="img">'
        f"<title>histogram</title>{bars}{line}</svg>"
        f"{_labels(axis)}{_caption(columns[0], axis)}{_legend(columns)}"
    )


def _outline(heights: Sequence[float]) -> str:
    steps = "".join(
        f"V{_HEIGHT - height:.1f}H{number + 1}" for number, height in enumerate(heights)
    )
    return f'<path d="M0 {_HEIGHT}{steps}V{_HEIGHT}"/>'


def _labels(axis: Axis) -> str:
    spans = "".join(
        f'<span class="{_end(place)}" style="left:{place:.1%}">{text(label)}</span>'
        for place, label in axis.labels()
    )
    return f'<div class="axis">{spans}</div>'


def _end(place: float) -> str:
    """Labels near an end are written to its inside."""
    if place < 0.08:
        return "first"
    return "last" if place > 0.92 else "mid"


def _caption(column: Column, axis: Axis) -> str:
    words = ["length in bytes"] if column["dtype"] == "string" else []
    if axis.linear_to:
        words.append("logarithmic axis")
    if axis.is_cut:
        words.append("the first and the last bar have all values beyond")
    return f'<div class="caption">{"; ".join(words)}</div>' if words else ""


def _legend(columns: Sequence[Column]) -> str:
    if len(columns) == 1:
        return ""
    return (
        '<div class="caption"><span class="now"></span> this data set &nbsp; '
        '<span class="before"></span> the one before</div>'
    )


def contact_sheet(
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
    titles = {label: class_name(label, names) for label in chosen if label is not None}
    rows = "".join(
        f"{titles.get(label, '<span></span>')}<div>{''.join(map(_picture, pictures))}</div>"
        for label, pictures in chosen.items()
        if pictures
    )
    most = column.get("max", 0)
    filtered = ""
    if column["dtype"] != "string" and 0 < most < _DARK:
        title = f"{title} shown brighter, as the greatest value is {text_of(most)}".strip()
        filtered = f' style="--light:{255 / most:.4g}"'
    return f'<div><div class="caption">{title}</div><div class="sheet"{filtered}>{rows}</div></div>'


def _picture(content: str) -> str:
    kind = "png" if content.startswith("iVBOR") else "jpeg"
    return f'<img alt="" src="data:image/{kind};base64,{content}">'
