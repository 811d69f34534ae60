"""The style of the page, and text in it: names and values of a data set are never markup."""

import re
from collections.abc import Iterable
from html import escape

#: Nothing is requested from anywhere, and no script runs.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; --text: #1c2733; --quiet: #5b6b7b; --line: #dde4ea;
        --ground: #fff; --now: #3b7ea1; --before: #c25e00; --warn: #b3261e; --soft: #f3f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e9ee; --quiet: #9aa9b6; --line: #313c46; --ground: #14191e; --now: #4f9cc4;
          --before: #ffb066; --warn: #ff8a80; --soft: #1d252c; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
       color: var(--text); background: var(--ground); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; line-height: 1.3; margin: 0; }
a { color: inherit; } p { color: var(--quiet); margin: .25rem 0 1.5rem; }
section { display: grid; grid-template-columns: minmax(0, 20rem) minmax(0, 1fr) minmax(0, 18rem);
          gap: 1.5rem; padding: 1.25rem 0; border-top: 1px solid var(--line); align-items: start; }
section > .wide { grid-column: 1 / -1; }
.name { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4;
        overflow: hidden; }
.kind, summary, caption, .caption { color: var(--quiet); } .caption { font-size: 12px; }
.warn { color: var(--warn); font-weight: 600; } .verdict { margin: .35rem 0 0; font-size: 13px; }
/* A table that is wider than its box scrolls in it; shadows at its ends show where it goes on. */
.table { overflow-x: auto; margin: 0 0 1.5rem; background:
  linear-gradient(to right, var(--ground) 40%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--ground) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) left / 1rem 100% no-repeat,
  linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat; }
td { vertical-align: top; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.table table { overflow-wrap: normal; }
th, td { text-align: right; padding: .1rem 0 .1rem 1.25rem; } th { color: var(--quiet); }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
.text td { overflow-wrap: anywhere; min-width: 5rem; }
.table .source { display: block; overflow-wrap: anywhere; }
.source tr { display: grid; grid-template-columns: minmax(0, min(16rem, 40%)) minmax(0, 1fr);
             gap: 1rem; } .source td { text-align: left; padding: .1rem 0; }
.facts { width: 100%; margin-top: .5rem; font-size: 14px; }
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
.sheet { display: grid; grid-template-columns: max-content 1fr; gap: .3rem .75rem;
         font-size: 13px; align-items: center; }
.sheets { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
          gap: 1.5rem; }
.sheet > bdi { max-width: 8rem; text-align: right; }
.sheet div { display: flex; flex-wrap: wrap; gap: .3rem; }
img { width: 48px; height: 48px; object-fit: contain; image-rendering: pixelated;
      background: var(--soft); filter: brightness(var(--light, 1)); }
@media (max-width: 62rem) { section { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 62rem) { section > * { grid-column: 1; min-width: 0; } }
"""

#: Control characters by their pictures; those of direction act only within their element.
_SHOWN = {number: 0x2400 + number for number in range(0x20) if chr(number) not in "\t\n\r"} | {
    0x7F: 0x2421
}


#: Longer values may be broken, after the ends of their parts; numbers are not.
_LINE = 24
_PART = re.compile(r"(?:[/_]|%20|\.(?!\d))(?=[^\s/.])")


def document(title: str, body: str, style: str = "") -> str:
    """A self-contained HTML document of ``body``, which is markup; ``title`` is text."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style>{body}</html>\n"
    )


def text(value: str, length: int | None = None) -> str:
    """A value as the content of an element or of a quoted attribute, cut to ``length``."""
    if length is not None and len(value) > length:
        value = value[:length] + "…"
    valid = value.encode("utf-8", "replace").decode()  # half of a pair of surrogates is no text
    return escape(valid.translate(_SHOWN)) or "(empty)"


def isolated(value: str, length: int | None = None) -> str:
    """A value whose direction of writing does not change that of its surroundings.

    Names and addresses, which may be longer than a line, break between their parts.
    """
    shown = text(value, length)
    if len(value) > _LINE:
        shown = _PART.sub(r"\g<0><wbr>", shown)
    return f'<bdi dir="auto">{shown}</bdi>'


def table(rows: Iterable[Iterable[str]], heads: Iterable[str] = (), kind: str = "") -> str:
    """A table of cells that are markup."""
    lines = [_row("th", heads), *(_row("td", row) for row in rows)]
    return f'<table class="{kind}">{"".join(lines)}</table>'


def _row(tag: str, cells: Iterable[str]) -> str:
    content = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr>{content}</tr>" if content else ""
