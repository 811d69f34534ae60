"""The flags of the command line, derived from the fields of arguments and their options."""

import json
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from aerotrain.contract.options import Option
from aerotrain.contract.validation import LIMITS, default_of, field_type


def add_fields(parser: ArgumentParser, owner: type, leave_out: Collection[str] = ()) -> None:
    """Add a flag for each field of the dataclass ``owner``."""
    for each in fields(owner):
        if each.name not in leave_out:
            parser.add_argument(f"--{each.name.replace('_', '-')}", **_flag(each))


def _flag(field: Field[Any]) -> dict[str, Any]:
    """The argparse arguments of a field; the word ``auto`` means null, of an option.

    The docstring of its dataclass describes a field that is no option.
    """
    kind, option, default = field_type(field), field.metadata.get(LIMITS), default_of(field)
    flag: dict[str, Any] = {"required": True} if default is MISSING else {"default": default}
    can_be_auto = isinstance(option, Option) and kind.optional
    if isinstance(option, Option):
        words = option.full_help.replace("%", "%%").replace("**", "")
        # The form leaves the field empty.
        flag["help"] = words.replace("Empty:", "auto:") if can_be_auto else words
    if kind.kind is bool:
        return {**flag, "action": BooleanOptionalAction}
    if kind.limits.choices:
        return {**flag, "choices": kind.limits.choices}
    name, parse = _PARSERS.get(kind.kind, ("JSON", json_of))
    if can_be_auto:
        return {**flag, "type": _or_auto(parse, name.lower()), "metavar": f"{name}|auto"}
    return {**flag, "type": parse, "metavar": name}


def _or_auto(parse: Callable[[str], Any], kind: str) -> Callable[[str], Any]:
    """A parser of values of that kind, and of the word ``auto``, which is null."""

    def value(text: str) -> Any:
        if text == "auto":
            return None
        try:
            return parse(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is no {kind}; or give auto") from None

    return value


def json_of(text: str) -> Any:
    """The value of a flag that takes JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


#: The name and the parser of a value by its type; all others are JSON.
_PARSERS: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    int: ("INTEGER", int),
    float: ("NUMBER", float),
    str: ("STRING", str),
}
