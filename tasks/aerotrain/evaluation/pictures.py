"""The pictures of a card: confusion matrix, calibration, thresholds, and residuals of an output."""

from collections.abc import Mapping, Sequence
from typing import Any

from aerotrain.contract.errors import counted
from aerotrain.data.statistics.axis import text_of
from aerotrain.data.statistics.markup import isolated, table, text

STYLE = """
.pictures { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: start; }
.pictures > div { max-width: 100%; } .pictures h3 { font-size: .95rem; margin: .5rem 0 .25rem; }
.pictures svg.square { width: 15rem; height: 15rem; border: 1px solid var(--line); }
.pictures circle { fill: var(--now); } .pictures .dots circle { opacity: .35; }
.pictures .ideal { stroke: var(--quiet); stroke-width: 1; stroke-dasharray: 3 2;
                   vector-effect: non-scaling-stroke; }
.pictures .first { stroke: var(--now); }
.pictures .grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.plot .axes { display: grid; grid-template-columns: auto auto 15rem; font-size: 11px;
              color: var(--quiet); line-height: 1; width: max-content; gap: .2rem; }
.plot .up, .plot .across { display: flex; justify-content: space-between; }
.plot .up { flex-direction: column-reverse; align-items: flex-end; padding: .5rem 0; }
.plot .across { grid-column: 3; padding: 0 .6rem; }
.plot .across-name { text-align: center; grid-column: 3; }
.plot .up-name { writing-mode: vertical-rl; rotate: 180deg; text-align: center; }
.plot > .caption { max-width: 17rem; }
.matrix td { text-align: right; padding: .1rem .4rem; min-width: 2rem; border-radius: 2px;
  background: color-mix(in srgb, var(--now) calc(var(--share, 0) * 70%), transparent); }
.matrix td.wrong { background:
  color-mix(in srgb, var(--before) calc(var(--share, 0) * 90%), transparent); }
.matrix th { max-width: 7rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
             font-weight: 400; padding: .1rem .4rem; }
.matrix th:first-child { text-align: right; }
"""

#: The side of a square picture, and the space around it for dots at its ends, in its own units.
_SIDE, _MARGIN = 100.0, 6.0

#: The labels of an axis of shares.
_SHARES = ("0", "0.5", "1")

#: The most frequent confusions that are listed.
_LISTED = 30


def pictures(output: Mapping[str, Any]) -> str:
    """The pictures of one output of a card, as markup."""
    parts = [_matrix(output), _confusions(output), _calibration(output), _thresholds(output)]
    parts += [_residuals(output)]
    return f'<div class="pictures">{"".join(parts)}</div>'


def _matrix(output: Mapping[str, Any]) -> str:
    """Rows are labels, columns predictions; a cell is as dark as its share of its row."""
    counts = output.get("confusion")
    if not counts:
        return ""
    names = [text(str(each), 40) for each in output["classes"]]
    rows = []
    for label, row in enumerate(counts):
        total = max(1, sum(row))
        cells = "".join(
            f'<td class="{"" if guess == label else "wrong"}" style="--share:{count / total:.3f}" '
            f'title="{names[label]} predicted as {names[guess]}">{count:,}</td>'
            for guess, count in enumerate(row)
        )
        rows.append(f"<tr><th>{names[label]}</th>{cells}</tr>")
    heads = "".join(f"<th>{name}</th>" for name in names)
    return (
        '<div><h3>Labels (rows) and predictions (columns)</h3><div class="table">'
        f'<table class="matrix"><tr><th></th>{heads}</tr>{"".join(rows)}</table></div></div>'
    )


def _confusions(output: Mapping[str, Any]) -> str:
    found = output.get("confusions")
    if not found:
        return ""
    rows = (
        [isolated(e["label"], 60), isolated(e["predicted"], 60), f"{e['records']:,} of {e['of']:,}"]
        for e in found[:_LISTED]
    )
    heads = ["label", "predicted", "records"]
    title = f"The {min(_LISTED, len(found))} most frequent confusions"
    listed = table(rows, heads, kind="text")
    return f'<div><h3>{title}</h3><div class="table">{listed}</div></div>'


def _calibration(output: Mapping[str, Any]) -> str:
    found = output.get("calibration")
    if not found or not found["bins"]:
        return ""
    most = max(each["records"] for each in found["bins"])
    dots = "".join(
        f'<circle cx="{_SIDE * each["predicted"]:.1f}" cy="{_SIDE * (1 - each["observed"]):.1f}" '
        f'r="{1.5 + 3 * (each["records"] / most) ** 0.5:.1f}"><title>{each["records"]:,} records: '
        f"predicted {each['predicted']:.1%}, observed {each['observed']:.1%}</title></circle>"
        for each in found["bins"]
    )
    error = found["expected_calibration_error"]
    return _square(
        "Calibration",
        _GRID + _DIAGONAL + dots,
        ("predicted probability", _SHARES),
        ("observed share", _SHARES),
        f"The expected calibration error is {error:.3f}.",
    )


def _thresholds(output: Mapping[str, Any]) -> str:
    found = output.get("thresholds")
    if not found:
        return ""
    precision = _line([(each["threshold"], each["precision"]) for each in found], "")
    recall = _line([(each["threshold"], each["recall"]) for each in found], ' class="first"')
    positive = text(str(output["classes"][1]), 40)
    return _square(
        "Precision and recall by threshold",
        _GRID + precision + recall,
        (f"threshold of {positive}", _SHARES),
        ("share", _SHARES),
        '<span class="before"></span> precision &nbsp; <span class="now"></span> recall',
    )


def _residuals(output: Mapping[str, Any]) -> str:
    if output["kind"] != "number" or not output["sample"]:
        return ""
    values = [each for pair in output["sample"] for each in pair]
    least, greatest = min(values), max(values)
    span = (greatest - least) or 1.0

    def place(value: float) -> float:
        return _SIDE * (value - least) / span

    dots = "".join(
        f'<circle cx="{place(a):.1f}" cy="{_SIDE - place(b):.1f}" r="1.2"/>'
        for a, b in output["sample"]
    )
    shares = output["residual_quantiles"]
    rows = ([f"{float(share):.0%}", text_of(value)] for share, value in shares.items())
    quantiles = table(rows, ["share of records", "prediction - target up to"])
    labels = (text_of(least), text_of(greatest))
    plot = _square(
        "Targets and predictions",
        f'{_DIAGONAL}<g class="dots">{dots}</g>',
        ("target", labels),
        ("prediction", labels),
        _sampled(len(output["sample"]), output["records"]),
    )
    return f'{plot}<div><h3>Residuals</h3><div class="table">{quantiles}</div></div>'


def _sampled(shown: int, records: int) -> str:
    whole = counted(records, "record")
    return whole if shown == records else f"A random sample of {shown:,} of {whole}"


_DIAGONAL = f'<line class="ideal" x1="0" y1="{_SIDE:g}" x2="{_SIDE:g}" y2="0"/>'

#: Lines at the middle of both axes.
_GRID = (
    f'<line class="grid" x1="0" y1="{_SIDE / 2:g}" x2="{_SIDE:g}" y2="{_SIDE / 2:g}"/>'
    f'<line class="grid" x1="{_SIDE / 2:g}" y1="0" x2="{_SIDE / 2:g}" y2="{_SIDE:g}"/>'
)

#: The name of an axis, which is markup, and the labels along it, from the least.
_Axis = tuple[str, Sequence[str]]


def _line(points: Sequence[tuple[float, float]], kind: str) -> str:
    places = " ".join(f"{_SIDE * x:.1f},{_SIDE * (1 - y):.1f}" for x, y in points)
    return f'<path{kind} d="M{places}"/>'


def _square(title: str, content: str, across: _Axis, upwards: _Axis, caption: str) -> str:
    """A square picture with the labels of both axes, and a caption, which is markup."""
    along, up = ("".join(f"<span>{each}</span>" for each in axis[1]) for axis in (across, upwards))
    whole = _SIDE + 2 * _MARGIN
    box = f"{-_MARGIN:g} {-_MARGIN:g} {whole:g} {whole:g}"
    return (
        f'<div class="plot"><h3>{title}</h3><div class="axes">'
        f'<div class="up-name">{upwards[0]}</div><div class="up">{up}</div>'
        f'<svg class="square" viewBox="{box}" role="img"><title>{title}</title>{content}</svg>'
        f'<div class="across">{along}</div><div class="across-name">{across[0]}</div></div>'
        f'<div class="caption">{caption}</div></div>'
    )
