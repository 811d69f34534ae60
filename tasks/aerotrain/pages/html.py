"""A page, and text, tables and pictures in it: names and values of data are never markup."""

from base64 import b64encode
from collections.abc import Iterable
from html import escape
from io import BytesIO
from typing import Any

from PIL import Image

#: Nothing is requested from anywhere, and no script runs.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; --text: #1c2733; --quiet: #5b6b7b; --line: #dde4ea;
        --ground: #fff; --now: #3b7ea1; --before: #c25e00; --warn: #b3261e; --soft: #f3f6f8;
        --shadow: color-mix(in srgb, var(--text) 40%, transparent); }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e9ee; --quiet: #9aa9b6; --line: #313c46; --ground: #14191e; --now: #4f9cc4;
          --before: #ffb066; --warn: #ff8a80; --soft: #1d252c; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
       color: var(--text); background: var(--ground); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.05rem; line-height: 1.3; margin: 1.5rem 0 0; }
a { color: inherit; } p { color: var(--quiet); margin: .25rem 0 1.5rem; }
section { display: grid; grid-template-columns: minmax(0, 20rem) minmax(0, 1fr) minmax(0, 18rem);
          gap: 1.5rem; padding: 1.25rem 0; border-top: 1px solid var(--line); align-items: start; }
section h2 { margin: 0; } section > .wide { grid-column: 1 / -1; }
.name { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4;
        overflow: hidden; }
.kind, summary, caption, .caption { color: var(--quiet); } .caption { font-size: 12px; }
.warn { color: var(--warn); font-weight: 600; } .verdict { margin: .35rem 0 0; font-size: 13px; }
/* A table that is wider than its box scrolls in it; shadows at its ends show where it goes on. */
.table { overflow-x: auto; margin: 0 0 1.5rem; background:
  linear-gradient(to right, var(--ground) 40%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--ground) 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shadow), transparent) left / .7rem 100% no-repeat,
  linear-gradient(to left, var(--shadow), transparent) right / .7rem 100% no-repeat; }
td { vertical-align: top; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.table table { overflow-wrap: normal; }
th, td { text-align: right; padding: .1rem 0 .1rem 1.25rem; } th { color: var(--quiet); }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
.text td { overflow-wrap: anywhere; min-width: 5rem; }
.facts { margin: .5rem 0 0; font-size: 14px; } .facts table { width: 100%; }
.facts th { font-weight: 400; } .facts td:first-child { color: var(--quiet); white-space: nowrap; }
.facts td, .facts th { padding-left: .75rem; } .facts td:first-child { padding-left: 0; }
ul:empty { display: none; }
ul { margin: 0; padding-left: 1.1rem; font-size: 13px; } li { margin-bottom: .3rem; }
li bdi { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 6;
         overflow: hidden; }
.bars { display: grid; grid-template-columns: fit-content(40%) 1fr auto; gap: .15rem .6rem;
        font-size: 12px; align-items: center; font-variant-numeric: tabular-nums; }
.bars > bdi { text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bars > .others { color: var(--quiet); font-style: italic; }
.bars i { display: block; height: 13px; min-width: 1px; background: var(--now);
          border-radius: 0 2px 2px 0; }
.bars .two i { height: 8px; } .bars .two i + i { background: var(--before); margin-top: 1px; }
svg { display: block; width: 100%; height: 130px; border-bottom: 1px solid var(--quiet); }
rect { fill: var(--now); } path { fill: none; stroke: var(--before); stroke-width: 2;
       vector-effect: non-scaling-stroke; }
.axis { position: relative; height: 1.4rem; font-size: 11px; color: var(--quiet); }
.axis span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.axis .first { transform: none; } .axis .last { transform: translateX(-100%); }
.now, .before { display: inline-block; width: .8em; height: .8em; background: var(--now); }
.before { background: var(--before); }
.sheet { display: flex; flex-wrap: wrap; gap: .3rem; }
figure { margin: 0; width: 48px; } figcaption { font-size: 11px; text-align: center;
         white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
img { width: 48px; height: 48px; object-fit: contain; image-rendering: pixelated;
      background: var(--soft); filter: brightness(var(--light, 1)); }
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
details { margin: .3rem 0 0; font-size: 13px; }
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
.matrix small { display: block; font-size: 10px; opacity: .8; }
.matrix td.wrong { background:
  color-mix(in srgb, var(--before) calc(var(--share, 0) * 90%), transparent); }
.matrix th { max-width: 7rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
             font-weight: 400; padding: .1rem .4rem; }
.matrix th:first-child { text-align: right; }
@media (max-width: 62rem) { section { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 62rem) { section > * { grid-column: 1; min-width: 0; } }
"""

#: Longer edges of pictures are reduced to this, in pixels.
_EDGE = 48

#: What files of pictures begin with: PNG and JPEG. Others, as SVG, may hold links or scripts.
ENCODED = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")

#: Control characters by their pictures; those of direction act only within their element.
_SHOWN = {number: 0x2400 + number for number in range(0x20) if chr(number) not in "\t\n\r"} | {
    0x7F: 0x2421
}


def document(title: str, body: str) -> str:
    """A self-contained HTML document of ``body``, which is markup; ``title`` is text."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style>{body}</html>\n"
    )


def text(value: str, length: int | None = None) -> str:
    """A value as the content of an element or of a quoted attribute, cut to ``length``."""
    if length is not None and len(value) > length:
        value = value[:length] + "…"
    valid = value.encode("utf-8", "replace").decode()  # half of a pair of surrogates is no text
    return escape(valid.translate(_SHOWN)) or "(empty)"


def isolated(value: str, length: int | None = None) -> str:
    """A value whose direction of writing does not change that of its surroundings."""
    return f'<bdi dir="auto">{text(value, length)}</bdi>'


def table(rows: Iterable[Iterable[str]], heads: Iterable[str] = (), kind: str = "") -> str:
    """A table of cells that are markup, in a box in which it scrolls."""
    lines = [_row("th", heads), *(_row("td", row) for row in rows)]
    return f'<div class="table {kind}"><table>{"".join(lines)}</table></div>'


def _row(tag: str, cells: Iterable[str]) -> str:
    content = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr>{content}</tr>" if content else ""


def thumbnail(picture: Any) -> str | None:
    """A PNG file in base64, with edges of at most 48 pixels; None if it is no picture.

    ``picture`` is a file as bytes, or an array ``(height, width)`` or ``(height, width, 1, 3 or
    4)`` of uint8.
    """
    if isinstance(picture, bytes) and not picture.startswith(ENCODED):
        return None
    try:
        if isinstance(picture, bytes):
            opened: Image.Image = Image.open(BytesIO(picture))
            opened.draft("RGB", (2 * _EDGE, 2 * _EDGE))  # a JPEG is decoded to about this size
            opened = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
        else:
            opened = Image.fromarray(picture[..., 0] if picture.shape[2:] == (1,) else picture)
        opened.thumbnail((_EDGE, _EDGE), Image.Resampling.BOX)
        content = BytesIO()
        opened.save(content, "PNG")
    except Exception:  # noqa: BLE001 -- the readers of Pillow raise anything
        return None
    return b64encode(content.getvalue()).decode()


def image(png: str) -> str:
    """The element of a PNG file in base64."""
    return f'<img alt="" src="data:image/png;base64,{png}">'
