"""The card of a candidate: what the gate has found, as one self-contained HTML page."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from aerotrain.contract.errors import counted
from aerotrain.evaluation.records import TRIVIAL
from aerotrain.evaluation.slices import ALL
from aerotrain.evaluation.verdicts import FAIL, PASS, TOO_FEW
from aerotrain.pages.axis import text_of
from aerotrain.pages.charts import DIAGONAL, GRID, SHARES, dot, interval, line, square
from aerotrain.pages.html import document, isolated, table, text

#: The least probability that is shown as a number.
_LEAST_PROBABILITY = 0.001

Verdict = Mapping[str, Any]


def card(found: Mapping[str, Any], title: str) -> str:
    """The page of what ``card.json`` holds."""
    few = [each for each in found["verdicts"] if (each["verdict"], each["slice"]) == (TOO_FEW, ALL)]
    unseen = "accepted, and not judged: too few records" if few else "accepted"
    head = unseen if found["passed"] else '<span class="warn">refused</span>'
    by_rule = groupby(found["verdicts"], key=lambda each: str(each["rule"]))
    parts = [
        f"<h1>{text(title)}: {head}</h1>",
        f"<p>{counted(found['records'], 'record')} of the split {text(found['split'])}"
        f"{_of_data(found['data'])}</p>",
        _reasons(found),
        _metrics(found),
        _importance(found["importance"]) if found["importance"] else "",
        *(_rule(name, list(verdicts)) for name, verdicts in by_rule),
        *(
            f'<h2>{_title(name)}</h2><div class="pictures">{"".join(charts(output))}</div>'
            for name, output in found["outputs"].items()
        ),
        _sources(found),
    ]
    return document(f"Evaluation of {title}", "".join(parts))


def _of_data(data: Mapping[str, int]) -> str:
    """How many records the data set has, and how many were rejected."""
    records, rejected = data["records"], data["rejected"]
    share = f' (<b class="warn">{rejected / (records + rejected):.1%}</b>)' if rejected else ""
    return f"; the data set has {records:,}, {counted(rejected, 'record')} rejected{share}"


def _reasons(found: Mapping[str, Any]) -> str:
    """The reasons of a refusal, and the warnings."""
    warned = (f"warning: {each}" for each in found["warnings"])
    return f"<ul>{''.join(f'<li>{isolated(e)}</li>' for e in [*found['failures'], *warned])}</ul>"


def _metrics(found: Mapping[str, Any]) -> str:
    """A table of the metrics over all records, of both models."""
    baseline, trivial = found["baseline"], found["trivial"]
    heads = ["metric", "value", "95 % interval", *(["baseline"] if baseline else [])]
    heads += ["trivial"] if trivial else []
    rows = []
    for name, value in found["metrics"].items():
        batches = found["by_batches"].get(name)
        bounds = found["intervals"].get(name, (math.nan, math.nan))
        between = _between(*bounds) if batches is None else f"of batches of {batches:,}"
        theirs = [_number(baseline["metrics"][name])] if baseline else []
        if trivial:
            theirs.append(_number(trivial[name]) if name in trivial else "–")
        rows.append([isolated(name, 60), _number(value), between, *theirs])
    said = "trivial: the best constant prediction, as of the most frequent class, or the mean"
    caption = f'<div class="caption">{said if trivial else ""}</div>'
    return f"<h2>Metrics</h2>{caption}{table(rows, heads, 'figures')}"


def _importance(found: Mapping[str, Any]) -> str:
    """How much worse the metric is without each column, with the range of all rounds."""
    columns = found["columns"]
    span = (min(0.0, *(e["least"] for e in columns)), max(0.0, *(e["most"] for e in columns)))
    rows = []
    for each in columns:
        drawn = interval(each["least"], each["loss"], each["most"], 0.0, span)
        rows.append([isolated(each["column"], 60), _number(each["loss"]), drawn])
    name, more = isolated(found["metric"], 60), ", ".join(isolated(e, 60) for e in found["others"])
    said = f"How much worse {name} of {found['records']:,} records is if one column is shuffled."
    said += f" Not measured for lack of time: {more}." if more else ""
    heads = ("column", "worse by", '<span class="caption">dotted: 0</span>')
    listed = table(rows, heads, "figures forest")
    return f'<h2>Importance of columns</h2><div class="caption">{said}</div>{listed}'


def _rule(name: str, verdicts: Sequence[Verdict]) -> str:
    """The verdicts of one rule, with the interval of each slice as a chart."""
    bound, loss = verdicts[0]["bound"], verdicts[0]["detectable"]
    other = verdicts[0]["other"]
    compared = any(each["difference"] for each in verdicts)
    shown = [_shown(each) for each in verdicts]
    finite = [each for triple in shown for each in (*triple, bound) if math.isfinite(each)]
    span = (min(finite, default=0.0), max(finite, default=1.0))
    rows = []
    for each, (value, low, high) in zip(verdicts, shown, strict=True):
        style = {FAIL: "fail", PASS: ""}.get(each["verdict"], "few")
        verdict = text(each["verdict"])
        rows.append(
            [
                isolated(each["slice"], 400),
                f'<b class="warn">{verdict}</b>' if style == "fail" else verdict,
                _number(each["value"]),
                *([_number(each["baseline"])] if compared else []),
                _between(low, high),
                *([_probability(each["probability"])] if compared else []),
                f'<div class="{style}">{interval(low, value, high, bound, span)}</div>',
                f"{each['records']:,}",
            ]
        )
    is_trivial = other == TRIVIAL
    of_two = [other, "difference, interval", "p" if is_trivial else "p, corrected"]
    # The bound of a loss of nothing is minus zero.
    drawn = f'<span class="caption">dotted: {_number(bound + 0.0)}</span>'
    heads = ["slice", "verdict", "value", *(of_two if compared else ["interval"]), drawn, "records"]
    what = "accept a gain" if is_trivial else "refuse a loss"
    seen = "" if loss is None else f"80 of 100 runs {what} of {_number(loss + abs(bound))}"
    caption = "; ".join(filter(None, (_counts(verdicts), seen)))
    return (
        f'<h2>{isolated(name, 200)}</h2><div class="caption">{caption}</div>'
        f"{table(rows, heads, 'figures forest')}"
    )


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
    """The number of a chart, with its interval: the difference, or the value."""
    if verdict["difference"]:
        low, high = verdict["difference"]
        return verdict["value"] - verdict["baseline"], low, high
    return verdict["value"], *verdict["interval"]


def _title(name: str) -> str:
    return "Predictions" if name == "predictions" else f"The output {isolated(name, 60)}"


def charts(output: Mapping[str, Any]) -> Iterator[str]:
    """The charts and tables of one output of a card, as markup."""
    if counts := output.get("confusion"):
        names = [text(str(each), 40) for each in output["classes"]]
        yield _matrix(counts, names)
        yield _by_class(counts, names)
    if (found := output.get("calibration")) and found["bins"]:
        most = max(each["records"] for each in found["bins"])
        dots = (
            dot(
                each["predicted"],
                each["observed"],
                1.5 + 3 * (each["records"] / most) ** 0.5,
                f"{each['records']:,} records: predicted {each['predicted']:.1%}, "
                f"observed {each['observed']:.1%}",
            )
            for each in found["bins"]
        )
        error = f"The expected calibration error is {found['expected_calibration_error']:.3f}."
        axes = ("predicted probability", SHARES), ("observed share", SHARES)
        yield square("Calibration", f"{GRID}{DIAGONAL}{''.join(dots)}", *axes, error)
    if found := output.get("thresholds"):
        drawn = line((each["threshold"], each["precision"]) for each in found)
        drawn += line(((each["threshold"], each["recall"]) for each in found), "first")
        legend = '<span class="before"></span> precision &nbsp; <span class="now"></span> recall'
        positive = text(str(output["classes"][1]), 40)
        axes = (f"threshold of {positive}", SHARES), ("share", SHARES)
        yield square("Precision and recall by threshold", GRID + drawn, *axes, legend)
    if output["kind"] == "number" and output["sample"]:
        yield _residuals(output)


def _matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Rows are labels, columns predictions; a cell is as dark as its share of its row."""
    rows = []
    for label, row in enumerate(counts):
        total = max(1, sum(row))
        cells = "".join(
            f'<td class="{"" if guess == label else "wrong"}" style="--share:{count / total:.3f}" '
            f'title="{names[label]} predicted as {names[guess]}">{count:,}'
            f"<small>{count / total:.0%}</small></td>"
            for guess, count in enumerate(row)
        )
        rows.append(f"<tr><th>{names[label]}</th>{cells}</tr>")
    heads = "".join(f"<th>{name}</th>" for name in names)
    return (
        '<div><h3>Labels (rows) and predictions (columns)</h3><div class="table matrix">'
        f"<table><tr><th></th>{heads}</tr>{''.join(rows)}</table></div></div>"
    )


def _by_class(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Precision, recall and F1 of each class."""
    rows = []
    for label, name in enumerate(names):
        right, records = counts[label][label], sum(counts[label])
        predicted = sum(row[label] for row in counts)
        shares = ((right, predicted), (right, records), (2 * right, predicted + records))
        rows.append([name, *(f"{a / b:.3f}" if b else "–" for a, b in shares), f"{records:,}"])
    listed = table(rows, ("class", "precision", "recall", "F1", "records"))
    return f"<div><h3>By class</h3>{listed}</div>"


def _residuals(output: Mapping[str, Any]) -> str:
    """A square of targets and predictions, and a table of their differences."""
    values = [each for pair in output["sample"] for each in pair]
    least, greatest = min(values), max(values)
    span = (greatest - least) or 1.0
    dots = (dot((a - least) / span, (b - least) / span, 1.2) for a, b in output["sample"])
    shown, records = len(output["sample"]), counted(output["records"], "record")
    labels = (text_of(least), text_of(greatest))
    chart = square(
        "Targets and predictions",
        f'{DIAGONAL}<g class="dots">{"".join(dots)}</g>',
        ("target", labels),
        ("prediction", labels),
        records if shown == output["records"] else f"A random sample of {shown:,} of {records}",
    )
    quantiles = output["residual_quantiles"].items()
    rows = ([f"{float(share):.0%}", text_of(value)] for share, value in quantiles)
    listed = table(rows, ["share of records", "prediction - target up to"])
    return f"{chart}<div><h3>Residuals</h3>{listed}</div>"


def _sources(found: Mapping[str, Any]) -> str:
    """What the candidate is made of."""
    baseline = found["baseline"]
    rows = {**found["candidate"], "baseline": baseline["url"] if baseline else "none"}
    cells = ([isolated(name, 60), isolated(str(value), 2000)] for name, value in rows.items())
    return f"<h2>Made of</h2>{table(cells, kind='text')}"


def _number(value: float) -> str:
    return text_of(value) if math.isfinite(value) else f'<b class="warn">{value:g}</b>'


def _between(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    return f"{text_of(low)} to {text_of(high)}"
