"""Python literals, laid out as ``ruff format`` does it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import east_asian_width

#: The longest line.
WIDTH = 100

_STEP = 4


@dataclass(frozen=True)
class Expression:
    """Code that stands in a literal as it is, such as the name of a variable."""

    code: str


def literal(value: Any, *, indent: int = 0, before: int = 0, after: int = 0) -> str:
    """The literal of ``value`` in one line if it fits, else with an item on each line.

    ``indent`` is that of the line in which it begins, ``before`` and ``after`` are the widths of
    the line's other text.
    """
    flat = _in_one_line(value)
    if not _is_container(value) or indent + before + width(flat) + after <= WIDTH:
        return flat
    inner = indent + _STEP
    begin, end = flat[0], flat[-1]
    items = "".join(f"{' ' * inner}{item},\n" for item in _items(value, inner))
    return f"{begin}\n{items}{' ' * indent}{end}"


def call(function: str, arguments: Iterable[tuple[str, Any]], *, indent: int, before: int) -> str:
    """A call with those arguments; one without a name is positional."""
    named = [(f"{name}=" if name else "", value) for name, value in arguments]
    flat = ", ".join(f"{name}{_in_one_line(value)}" for name, value in named)
    if indent + before + width(function) + width(flat) + 2 <= WIDTH:
        return f"{function}({flat})"
    inner = indent + _STEP
    lines = (
        f"{' ' * inner}{name}{literal(value, indent=inner, before=len(name), after=1)},\n"
        for name, value in named
    )
    return f"{function}(\n{''.join(lines)}{' ' * indent})"


def width(text: str) -> int:
    """The columns that the text takes on a screen."""
    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping) and bool(value)


def _items(value: Any, indent: int) -> Iterable[str]:
    if not isinstance(value, Mapping):
        return (literal(each, indent=indent, after=1) for each in value)
    keys = {key: f"{_in_one_line(key)}: " for key in value}
    return (
        keys[key] + literal(each, indent=indent, before=width(keys[key]), after=1)
        for key, each in value.items()
    )


def _in_one_line(value: Any) -> str:
    if isinstance(value, Expression):
        return value.code
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = (f"{_in_one_line(key)}: {_in_one_line(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        items = ", ".join(map(_in_one_line, value))
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)


def _text(value: str) -> str:
    """The literal of a text, in the quotes that need fewer escapes, and double ones otherwise."""
    quote = "'" if value.count('"') > value.count("'") else '"'
    escaped = (
        f"\\{each}" if each in (quote, "\\") else each if each.isprintable() else repr(each)[1:-1]
        for each in value
    )
    return f"{quote}{''.join(escaped)}{quote}"
