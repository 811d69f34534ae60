"""The flags of the command line, derived from the fields of arguments and their options."""

import json
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from aerotrain.contract.options import Declared, OptionType, options_of


def add_fields(parser: ArgumentParser, owner: type, leave_out: Collection[str]) -> None:
    """Add a flag for each field of the dataclass ``owner``."""
    options = options_of(owner)
    for each in fields(owner):
        if each.name not in leave_out:
            declared = options.get(each.name)
            flag = _option_flag(declared) if declared else _field_flag(each)
            parser.add_argument(f"--{each.name.replace('_', '-')}", **flag)


def _field_flag(field: Field[Any]) -> dict[str, Any]:
    """The argparse arguments of a field that is no option; its owner's docstring describes it."""
    parsers: Mapping[Any, Callable[[str], Any]] = {
        str: str,
        int: int,
        float: float,
        str | None: str,
        int | None: int,
    }
    parse = parsers.get(field.type, json_of)
    flag = {"type": parse, "metavar": "JSON" if parse is json_of else parse.__name__.upper()}
    if field.default_factory is not MISSING:
        return {**flag, "default": field.default_factory()}
    if field.default is not MISSING:
        return {**flag, "default": field.default}
    return {**flag, "required": True}


def _option_flag(declared: Declared) -> dict[str, Any]:
    """The argparse arguments of an option; the word ``auto`` means null."""
    option = declared.option
    words = option.full_help.replace("%", "%%").replace("**", "")
    if option.optional:
        words = words.replace("Empty:", "auto:")  # the form leaves the field empty
    flag: dict[str, Any] = {"default": declared.default, "help": words}
    if option.kind is OptionType.BOOLEAN:
        return {**flag, "action": BooleanOptionalAction}
    if option.choices:
        return {**flag, "choices": option.choices}
    parse = _PARSERS[option.kind]
    metavar = "JSON" if option.kind is OptionType.OBJECT else option.kind.value.upper()
    if not option.optional:
        return {**flag, "type": parse, "metavar": metavar}
    return {**flag, "type": _or_auto(parse, option.kind), "metavar": f"{metavar}|auto"}


def _or_auto(parse: Callable[[str], Any], kind: OptionType) -> Callable[[str], Any]:
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


#: The parser of an option's value, by kind.
_PARSERS: Mapping[OptionType, Callable[[str], Any]] = {
    OptionType.INTEGER: int,
    OptionType.NUMBER: float,
    OptionType.STRING: str,
    OptionType.OBJECT: json_of,
}
