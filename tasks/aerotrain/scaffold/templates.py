"""Fill the templates of the written files, which are in the folder ``templates``.

``$name`` stands for a value, as in ``string.Template``. Lines from ``%if fact`` to ``%end`` are
kept if the fact is true.
"""

from collections.abc import Mapping, Set
from importlib import resources
from string import Template

from aerotrain.scaffold.literals import WIDTH, width

_FOLDER = resources.files("aerotrain.scaffold") / "templates"


def filled(template: str, values: Mapping[str, str], facts: Set[str]) -> str:
    """The text of the file ``template``, with ``values``, and the parts of the ``facts`` only."""
    kept: list[str] = []
    parts: list[bool] = []
    for line in (_FOLDER / f"{template}.txt").read_text().splitlines():
        if line.startswith("%if "):
            parts.append(line.removeprefix("%if ") in facts)
        elif line == "%end":
            parts.pop()
        elif all(parts):
            kept.append(line)
    text = Template("\n".join(kept)).substitute(values)
    return "".join(f"{_marked(line)}\n" for line in text.splitlines())


def _marked(line: str) -> str:
    """A line with the reason of its length, where a text that cannot be divided is too long."""
    return line if width(line) <= WIDTH else f"{line}  # noqa: E501 -- one text"
