"""The charts of the pages, as static SVG and HTML: bars, a histogram, an interval, and squares.

A plotting library was tried for them: a histogram takes 20 to 38 ms and 12 kB by matplotlib or
vl-convert, and 0.4 ms and 2.6 kB here.
"""

import math
from collections.abc import Iterable, Sequence

from aerotrain.pages.axis import Axis
from aerotrain.pages.html import text

#: The height of a histogram, and the side of a square with the space around it for dots at its
#: ends, in their own units.
_HEIGHT, _SIDE, _MARGIN = 100, 100.0, 6.0

#: The width and the height of an interval, and the radius of its dot.
_WIDTH, _LINE, _DOT = 100.0, 10.0, 2.2

#: The labels of an axis of shares.
SHARES = ("0", "0.5", "1")

#: Markup by which two data sets are told apart.
LEGEND = (
    '<div class="caption"><span class="now"></span> this data set &nbsp; '
    '<span class="before"></span> the one before</div>'
)

Points = Iterable[tuple[float, float]]

#: The name of an axis, which is markup, and the labels along it, from the least.
NamedAxis = tuple[str, Sequence[str]]


def bars(rows: Iterable[tuple[str, Sequence[int]]], totals: Sequence[int], others: str = "") -> str:
    """A bar for each category, of one data set or of two.

    ``rows`` have a name, which is markup, and its count in each data set, of ``totals``. The
    categories that are not shown are called ``others``.
    """
    shown = [(name, counts) for name, counts in rows]
    shares = [[n / total for n, total in zip(c, totals, strict=True)] for _, c in shown]
    most = max(max(each) for each in shares)
    lines = []
    for (name, counts), parts in zip(shown, shares, strict=True):
        drawn = "".join(f'<i style="width:{part / most:.1%}"></i>' for part in parts)
        kind = "two" if len(parts) > 1 else "one"
        lines.append(f'{name}<div class="{kind}">{drawn}</div>{_counted(counts, parts)}')
    left = [max(0, total - sum(c[n] for _, c in shown)) for n, total in enumerate(totals)]
    if any(left):
        parts = [n / total for n, total in zip(left, totals, strict=True)]
        lines.append(f'<bdi class="others">{others}</bdi><div></div>{_counted(left, parts)}')
    return f'<div class="bars">{"".join(lines)}</div>{LEGEND * (len(totals) > 1)}'


def _counted(counts: Sequence[int], shares: Sequence[float]) -> str:
    if len(counts) == 1:
        return f"<span>{counts[0]:,} ({shares[0]:.1%})</span>"
    return f"<span>{shares[0]:.1%} <small>was {shares[1]:.1%}</small></span>"


def histogram(axis: Axis, now: Sequence[float], before: Sequence[float], caption: str) -> str:
    """The shares of the values in each bin as bars, and those of the data set before as a line."""
    scale = (_HEIGHT - 4) / (max((*now, *before), default=0) or 1)
    drawn = "".join(
        f'<rect x="{number + 0.04:.2f}" y="{_HEIGHT - share * scale:.1f}" width=".92" '
        f'height="{share * scale:.1f}"><title>{share:.2%}</title></rect>'
        for number, share in enumerate(now)
        if share
    )
    if before:
        steps = (f"V{_HEIGHT - share * scale:.1f}H{n + 1}" for n, share in enumerate(before))
        drawn += f'<path d="M0 {_HEIGHT}{"".join(steps)}V{_HEIGHT}"/>'
    labels = "".join(
        # Labels near an end are written to its inside.
        f'<span class="{"first" if place < 0.08 else "last" if place > 0.92 else "mid"}" '
        f'style="left:{place:.1%}">{text(label)}</span>'
        for place, label in axis.labels()
    )
    return (
        f'<svg viewBox="0 0 {axis.bins} {_HEIGHT}" preserveAspectRatio="none" role="img">'
        f"<title>histogram</title>{drawn}</svg>"
        f'<div class="axis">{labels}</div><div class="caption">{caption}</div>'
        f"{LEGEND * bool(before)}"
    )


def interval(low: float, value: float, high: float, bound: float, span: tuple[float, float]) -> str:
    """A value with its interval and the bound of a rule, on an axis of ``span``; "" if NaN."""
    if not math.isfinite(value):
        return ""
    scale = (_WIDTH - 2 * _DOT) / ((span[1] - span[0]) or 1.0)
    low, value, high, bound = (_DOT + (x - span[0]) * scale for x in (low, value, high, bound))
    middle = _LINE / 2
    drawn = f'<line class="bound" x1="{bound:.2f}" x2="{bound:.2f}" y1="0" y2="{_LINE:g}"/>'
    if math.isfinite(low) and math.isfinite(high):
        drawn += f'<line x1="{low:.2f}" x2="{high:.2f}" y1="{middle:g}" y2="{middle:g}"/>'
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {_LINE:g}" aria-hidden="true">{drawn}'
        f'<circle cx="{value:.2f}" cy="{middle:g}" r="{_DOT:g}"/></svg>'
    )


def square(title: str, content: str, across: NamedAxis, upwards: NamedAxis, caption: str) -> str:
    """A square chart with the labels of both axes, and a caption, which is markup.

    ``content`` has places from 0 to 1 in both directions: see ``line`` and ``dot``.
    """
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


def line(points: Points, kind: str = "") -> str:
    """A line of a square; ``kind`` is the class of its style."""
    places = " ".join(f"{_SIDE * x:.1f},{_SIDE * (1 - y):.1f}" for x, y in points)
    return f'<path class="{kind}" d="M{places}"/>'


def dot(x: float, y: float, radius: float, title: str = "") -> str:
    """A dot of a square, with a text that is shown where the pointer is on it."""
    shown = f"<title>{title}</title>" if title else ""
    place = f'cx="{_SIDE * x:.1f}" cy="{_SIDE * (1 - y):.1f}" r="{radius:.1f}"'
    return f"<circle {place}>{shown}</circle>"


#: Where both axes of a square are equal, and the middles of both.
DIAGONAL = line([(0, 0), (1, 1)], "ideal")
GRID = line([(0, 0.5), (1, 0.5)], "grid") + line([(0.5, 0), (0.5, 1)], "grid")
