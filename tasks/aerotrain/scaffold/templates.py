"""Fill the templates of the written files, which are in the folder ``templates``.

``$name`` stands for a value, as in ``string.Template``. Lines from ``%if name`` to ``%end`` are
kept if there is such a value, and it is neither false nor empty. Values are Python literals as
``ruff format`` lays them out.
"""

from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

#: The longest line, and the spaces of a level.
_WIDTH, _STEP = 100, 4

_FOLDER = resources.files("aerotrain.scaffold") / "templates"


class Code(str):
    """Code that stands in a literal as it is, such as the name of a variable."""

    __slots__ = ()


def filled(template: str, values: Mapping[str, Any]) -> str:
    """The text of the file ``template`` with ``values``."""
    kept: list[str] = []
    parts: list[bool] = []
    for line in (_FOLDER / f"{template}.txt").read_text().splitlines():
        if line.startswith("%if "):
            parts.append(bool(values.get(line.removeprefix("%if "))))
        elif line == "%end":
            parts.pop()
        elif all(parts):
            kept.append(line)
    text = Template("\n".join(kept)).substitute(values)
    return "".join(f"{_marked(line)}\n" for line in text.splitlines())


def _marked(line: str) -> str:
    """A line with the reason of its length, where a text that cannot be divided is too long."""
    return line if len(line) <= _WIDTH else f"{line}  # noqa: E501 -- one text"


def call(function: str, first: Any, named: Mapping[str, Any], *, indent: int) -> str:
    """A call with a positional argument and others by name, each on a line of its own."""
    inner = indent + _STEP
    lines = [literal(first, indent=inner)]
    lines += [
        f"{n}={literal(value, indent=inner, before=len(n) + 1)}" for n, value in named.items()
    ]
    arguments = "".join(f"{' ' * inner}{line},\n" for line in lines)
    return f"{function}(\n{arguments}{' ' * indent})"


def literal(value: Any, *, indent: int = 0, before: int = 0) -> str:
    """The literal of ``value`` in one line if it fits, else with an item on each line.

    ``indent`` is that of the line in which it begins, ``before`` the width of the line's other
    text.
    """
    flat = _in_one_line(value)
    is_container = isinstance(value, list | tuple | Mapping) and bool(value)
    if not is_container or indent + before + len(flat) < _WIDTH:
        return flat
    inner = indent + _STEP
    items = [("", item) for item in value]
    if isinstance(value, Mapping):
        items = [(f"{_in_one_line(key)}: ", item) for key, item in value.items()]
    lines = "".join(
        f"{' ' * inner}{key}{literal(item, indent=inner, before=len(key))},\n"
        for key, item in items
    )
    return f"{flat[0]}\n{lines}{' ' * indent}{flat[-1]}"


def _in_one_line(value: Any) -> str:
    if isinstance(value, Code):
        return value
    if isinstance(value, str):  # in double quotes, unless that needs escapes
        text = repr(value)
        return text if '"' in text else f'"{text[1:-1]}"'
    if isinstance(value, Mapping):
        pairs = (f"{_in_one_line(key)}: {_in_one_line(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        items = ", ".join(map(_in_one_line, value))
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)
