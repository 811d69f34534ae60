"""The statistics as one self-contained HTML page with plots."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from aerotrain.data.dataset import Split
from aerotrain.data.statistics.sketches import DISTINCT

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; color: #1c2733;
       padding: 0 1rem; background: #fff; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0; }
p { color: #5b6b7b; margin: .25rem 0 1.5rem; overflow-wrap: anywhere; }
section { display: grid; grid-template-columns: 17rem 1fr 17rem; gap: 1.5rem; padding: 1.25rem 0;
          border-top: 1px solid #dde4ea; align-items: start; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .75rem; margin: .5rem 0 0; }
dt { color: #5b6b7b; } dd { margin: 0; font-variant-numeric: tabular-nums; text-align: right; }
.kind { color: #5b6b7b; } .warn { color: #b3261e; font-weight: 600; }
table { display: block; overflow-x: auto; border-collapse: collapse; margin: 0 0 1.5rem;
        font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .1rem 0 .1rem 1.25rem; } th { color: #5b6b7b; }
.text td { text-align: left; } summary { color: #5b6b7b; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
ul { margin: 0; padding-left: 1.1rem; overflow-wrap: anywhere; color: #37474f; font-size: 13px; }
svg { width: 100%; height: auto; } text { font: 11px system-ui, sans-serif; fill: #37474f; }
@media (max-width: 60rem) { section { grid-template-columns: 1fr; } }
"""

_WIDTH, _ROW, _MOST_BARS = 480, 20, 12
_FILL = "#3b7ea1"


def page(
    url: str,
    summary: Mapping[str, Mapping[str, Any]],
    splits: Mapping[str, Split],
    inferred: Sequence[tuple[str, str]] = (),
) -> str:
    """The HTML document, without external resources. ``inferred`` is shown of the source."""
    records = max((each["records"] for each in summary.values()), default=0)
    sections = "".join(_section(name, summary[name]) for name in sorted(summary))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Statistics of {escape(url)}</title><style>{_STYLE}</style>"
        f"<h1>{records:,} records, {len(summary)} columns</h1><p>{escape(url)}</p>"
        f"{_splits(splits)}{_inferred(inferred)}{sections}</html>\n"
    )


def _splits(splits: Mapping[str, Split]) -> str:
    """A table of the splits: their records, and the share of each class."""
    classes = sorted({label for split in splits.values() for label in split.classes})
    shown = classes if len(classes) <= _MOST_BARS else []
    total = max(1, sum(split.records for split in splits.values()))
    rows = [_row("th", ["split", "records", "share", *(f"class {label}" for label in shown)])]
    for name, split in sorted(splits.items()):
        shares = (split.classes.get(label, 0) / max(1, split.records) for label in shown)
        counted = [f"{split.records:,}", f"{split.records / total:.1%}"]
        rows.append(_row("td", [escape(name), *counted, *(f"{share:.1%}" for share in shares)]))
    return f"<table>{''.join(rows)}</table>"


def _inferred(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = "".join(_row("td", map(escape, row)) for row in rows)
    return f'<details open><summary>Source</summary><table class="text">{cells}</table></details>'


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _section(name: str, column: Mapping[str, Any]) -> str:
    shape = " × ".join(map(str, column["shape"]))
    kind = f"{column['dtype']} {shape}".strip()
    examples = "".join(f"<li>{escape(each) or '(empty)'}</li>" for each in column["examples"])
    facts = "".join(f"<dt>{label}</dt><dd>{value}</dd>" for label, value in _facts(column))
    return (
        f'<section><div><h2>{escape(name)}</h2><div class="kind">{kind}</div><dl>{facts}</dl></div>'
        f"<div>{_plot(column)}</div><ul>{examples}</ul></section>"
    )


def _facts(column: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    share = column["missing"] / max(1, column["records"])
    missing = f"{column['missing']:,} ({share:.1%})"
    yield "missing", f'<span class="warn">{missing}</span>' if column["missing"] else "none"
    if column["distinct"] is not None:
        yield "distinct", _count(column["distinct"])
    of = "length " if column["dtype"] == "string" else ""
    for label in ("mean", "std", "min", "max"):
        if label in column:
            yield of + label, _number(column[label])


def _count(distinct: int) -> str:
    if distinct < DISTINCT:
        return f"{distinct:,}"
    return f"about {float(f'{distinct:.3g}'):,.0f}"  # an estimate: see sketches


def _plot(column: Mapping[str, Any]) -> str:
    words = column.get("vocabulary")
    if words and (len(words) <= _MOST_BARS or column["dtype"] == "string"):
        return _bars(list(words.items())[:_MOST_BARS], column["records"])
    return _histogram(column) if column.get("histogram") else ""


def _bars(words: Sequence[tuple[str, int]], records: int) -> str:
    """One bar for each of the most frequent values."""
    most = max(count for _, count in words)
    rows = []
    for number, (word, count) in enumerate(words):
        top = number * _ROW
        width = 250 * count / most
        rows.append(
            f'<text x="130" y="{top + 14}" text-anchor="end">{_word(word)}</text>'
            f'<rect x="138" y="{top + 3}" width="{width:.1f}" height="14" fill="{_FILL}"/>'
            f'<text x="{144 + width:.1f}" y="{top + 14}">{count:,} ({count / records:.1%})</text>'
        )
    return _svg(len(words) * _ROW + 4, "".join(rows), "values by frequency")


def _word(word: str) -> str:
    return escape(word[:20]) or "(empty)"


def _histogram(column: Mapping[str, Any]) -> str:
    """The histogram of the values between minimum and maximum."""
    counts, height = column["histogram"], 120
    most, width = max(counts) or 1, _WIDTH / len(counts)
    bars = "".join(
        f'<rect x="{number * width + 0.5:.1f}" y="{height - height * count / most:.1f}" '
        f'width="{width - 1:.1f}" height="{height * count / most:.1f}" fill="{_FILL}"/>'
        for number, count in enumerate(counts)
    )
    axis = (
        f'<line x1="0" x2="{_WIDTH}" y1="{height}" y2="{height}" stroke="#90a4ae"/>'
        f'<text x="0" y="{height + 15}">{_number(column["min"])}</text>'
        f'<text x="{_WIDTH}" y="{height + 15}" text-anchor="end">{_number(column["max"])}</text>'
    )
    return _svg(height + 20, bars + axis, "histogram")


def _svg(height: int, content: str, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img"><title>{title}</title>{content}</svg>'


def _number(value: float) -> str:
    is_shown_whole = float(value).is_integer() or abs(value) >= 1000
    return f"{value:,.0f}" if is_shown_whole and abs(value) < 1e15 else f"{value:,.4g}"
