"""The card of a candidate: what the gate has found, as one self-contained HTML page."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from aerotrain.contract.errors import counted
from aerotrain.data.statistics.axis import text_of
from aerotrain.data.statistics.markup import document, isolated, table, text
from aerotrain.evaluation.pictures import STYLE, pictures
from aerotrain.evaluation.slices import ALL
from aerotrain.evaluation.verdicts import FAIL, PASS, TOO_FEW

_STYLE = """
.forest svg { width: 18rem; height: 1.3rem; border: 0; overflow: visible; }
.forest line { stroke: var(--now); stroke-width: 2; vector-effect: non-scaling-stroke; }
.forest .fail line { stroke: var(--warn); } .forest .fail circle { fill: var(--warn); }
.forest line.bound { stroke: var(--quiet); stroke-width: 1; stroke-dasharray: 3 2; }
.forest circle { fill: var(--now); } .forest .few { opacity: .4; }
.figures td, .figures th { white-space: nowrap; } .forest td { vertical-align: middle; }
.figures td:first-child { white-space: normal; min-width: 9rem; max-width: min(24rem, 45vw);
                          overflow-wrap: anywhere; }
.figures :is(td, th):first-child, .matrix th:first-child {
  position: sticky; left: 0; background: var(--ground); }
h2 { margin-top: 1.5rem; }
.worst td, .worst th { text-align: left; }
.worst td bdi { display: inline-block; width: max-content; max-width: 16rem;
                overflow-wrap: anywhere; }
details { margin: .3rem 0 0; font-size: 13px; }
"""

#: The most reasons and warnings that are shown at once.
_REASONS = 12

#: The most characters of the name of a slice.
_NAME = 120

#: The width and the height of a plot, in its own units, and the radius of the dot of a value.
_WIDTH, _HEIGHT, _DOT = 100.0, 10.0, 2.2

#: The least probability that is shown as a number.
_LEAST_PROBABILITY = 0.001

Verdict = Mapping[str, Any]


def card(found: Mapping[str, Any], title: str) -> str:
    """The page of what ``card.json`` holds."""
    few = [each for each in found["verdicts"] if (each["verdict"], each["slice"]) == (TOO_FEW, ALL)]
    unseen = "accepted, and not judged: too few records" if few else "accepted"
    head = unseen if found["passed"] else '<span class="warn">refused</span>'
    records = counted(found["records"], "record")
    by_rule = groupby(found["verdicts"], key=lambda each: str(each["rule"]))
    rules = "".join(_rule(name, list(verdicts)) for name, verdicts in by_rule)
    body = (
        f"<h1>{text(title)}: {head}</h1>"
        f"<p>{records} of the split {text(found['split'])}</p>{_reasons(found)}"
        f"{_metrics(found)}{rules}{_outputs(found)}{_worst(found)}{_sources(found)}"
    )
    return document(f"Evaluation of {title}", body, _STYLE + STYLE)


def _reasons(found: Mapping[str, Any]) -> str:
    """The reasons of a refusal, and the warnings; where they are many, most are folded away."""
    warned = (f"warning: {each}" for each in found["warnings"])
    items = [f"<li>{isolated(each)}</li>" for each in [*found["failures"], *warned]]
    first, more = items[:_REASONS], items[_REASONS:]
    listed = f"<ul>{''.join(first)}</ul>"
    if not more:
        return listed
    summary = f"<summary>{len(more):,} more of {len(items):,}</summary>"
    return f"{listed}<details>{summary}<ul>{''.join(more)}</ul></details>"


def _metrics(found: Mapping[str, Any]) -> str:
    """A table of the metrics over all records, of both models."""
    baseline = found["baseline"]
    heads = ["metric", "value", "95 % interval", *(["baseline"] if baseline else [])]
    rows = []
    for name, value in found["metrics"].items():
        low, high = found["intervals"].get(name, (math.nan, math.nan))
        batches = found["by_batches"].get(name)
        interval = _interval(low, high) if batches is None else f"of batches of {batches:,}"
        row = [isolated(name, 60), _number(value), interval]
        rows.append([*row, *([_number(baseline["metrics"][name])] if baseline else [])])
    return f'<h2>Metrics</h2><div class="table figures">{table(rows, heads)}</div>'


def _rule(name: str, verdicts: Sequence[Verdict]) -> str:
    """The verdicts of one rule, with the interval of each slice as a picture."""
    compared = any(each["difference"] for each in verdicts)
    shown = [_shown(each) for each in verdicts]
    bound = verdicts[0]["bound"]
    finite = [each for triple in shown for each in (*triple, bound) if math.isfinite(each)]
    least, greatest = (min(finite), max(finite)) if finite else (0.0, 1.0)
    span = (greatest - least) or 1.0

    def place(value: float) -> float:
        return _DOT + (value - least) / span * (_WIDTH - 2 * _DOT)

    rows = []
    for each, (value, low, high) in zip(verdicts, shown, strict=True):
        verdict = text(each["verdict"])
        style = {FAIL: "fail", PASS: ""}.get(each["verdict"], "few")
        plot = _plot(place(low), place(value), place(high), place(bound))
        rows.append(
            [
                isolated(_both_ends(each["slice"])),
                f'<b class="warn">{verdict}</b>' if style == "fail" else verdict,
                _number(each["value"]),
                *([_number(each["baseline"])] if compared else []),
                _interval(low, high),
                *([_probability(each["probability"])] if compared else []),
                f'<div class="{style}">{plot}</div>',
                f"{each['records']:,}",
            ]
        )
    compared_heads = (
        ["baseline", "difference, interval", "p, corrected"] if compared else ["interval"]
    )
    # The bound of a loss of nothing is minus zero.
    drawn = f'<span class="caption">dotted: {_number(bound + 0.0)}</span>'
    heads = ["slice", "verdict", "value", *compared_heads, drawn, "records"]
    loss = verdicts[0]["detectable"]
    seen = "" if loss is None else f"80 of 100 runs refuse a loss of {_number(loss + abs(bound))}"
    caption = "; ".join(filter(None, (_counts(verdicts), seen)))
    return (
        f'<h2>{isolated(name, 200)}</h2><div class="caption">{caption}</div>'
        f'<div class="table figures forest">{table(rows, heads)}</div>'
    )


def _both_ends(name: str) -> str:
    """A long name without its middle: crossed slices often differ in their last column."""
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-_NAME // 2 :]}"


def _counts(verdicts: Sequence[Verdict]) -> str:
    """How many slices have each verdict, as a list of them may be long."""
    found = Counter(each["verdict"] for each in verdicts if each["slice"] != ALL)
    shown = ", ".join(f"{count:,} {text(verdict)}" for verdict, count in found.most_common())
    return f"{counted(found.total(), 'slice')}: {shown}" if found else ""


def _probability(value: float | None) -> str:
    """That of such a loss by chance, by which a comparison is judged: intervals of single slices
    are not corrected for the number of slices."""
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= _LEAST_PROBABILITY else f"&lt;{_LEAST_PROBABILITY}"


def _shown(verdict: Verdict) -> tuple[float, float, float]:
    """The number of a plot, with its interval: the difference, or the value."""
    if verdict["difference"]:
        low, high = verdict["difference"]
        return verdict["value"] - verdict["baseline"], low, high
    return verdict["value"], *verdict["interval"]


def _plot(low: float, value: float, high: float, bound: float) -> str:
    if not math.isfinite(value):
        return ""
    middle = _HEIGHT / 2
    lines = [(bound, bound, 0.0, _HEIGHT, ' class="bound"')]
    if math.isfinite(low) and math.isfinite(high):
        lines.append((low, high, middle, middle, ""))
    drawn = "".join(
        f'<line{kind} x1="{a:.2f}" x2="{b:.2f}" y1="{top:g}" y2="{bottom:g}"/>'
        for a, b, top, bottom, kind in lines
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" aria-hidden="true">{drawn}'
        f'<circle cx="{value:.2f}" cy="{middle:g}" r="{_DOT:g}"/></svg>'
    )


def _outputs(found: Mapping[str, Any]) -> str:
    return "".join(
        f"<h2>{_title(name)}</h2>{pictures(each)}" for name, each in found["outputs"].items()
    )


def _title(name: str) -> str:
    return "Predictions" if name == "predictions" else f"The output {isolated(name, 60)}"


def _worst(found: Mapping[str, Any]) -> str:
    """A table of the worst records of each output, with their features."""
    tables = []
    for name, records in found["worst"].items():
        columns = list(records[0]["features"]) if records else []
        rows = (
            [isolated(each["target"], 60), isolated(each["predicted"], 60)]
            + [_feature(each["features"][column]) for column in columns]
            for each in records
        )
        heads = ["target", "prediction", *(isolated(column, 60) for column in columns)]
        tables.append(
            f"<h2>{_title(name)}: the {counted(len(records), 'record')} of the greatest error</h2>"
            f'<div class="table worst">{table(rows, heads)}</div>'
        )
    return "".join(tables)


def _feature(value: str | Mapping[str, str]) -> str:
    if isinstance(value, str):
        return isolated(value, 200)
    return f'<img alt="" src="{text(value["picture"])}">'


def _sources(found: Mapping[str, Any]) -> str:
    """What the candidate is made of."""
    baseline = found["baseline"]
    rows = {**found["candidate"], "baseline": baseline["url"] if baseline else "none"}
    cells = ([isolated(name, 60), isolated(str(value), 2000)] for name, value in rows.items())
    return f'<h2>Made of</h2><div class="table">{table(cells, kind="source")}</div>'


def _number(value: float) -> str:
    return text_of(value) if math.isfinite(value) else f'<b class="warn">{value:g}</b>'


def _interval(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    return f"{text_of(low)} to {text_of(high)}"
