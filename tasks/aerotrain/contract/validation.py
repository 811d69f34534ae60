"""Checks of what a description is given, in words that name the field."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest


def known(part: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` as keyword arguments of ``part``, refusing what it does not know."""
    if not isinstance(data, Mapping):
        raise SpecError(f"a {part.__name__.lower()} is described by an object, got {data!r}")
    names = [each.name for each in fields(part)]
    for key in data:
        if key not in names:
            raise SpecError(
                f"a {part.__name__.lower()} has no field {key!r}{nearest(key, names)}; "
                f"its fields are {', '.join(names)}"
            )
    return dict(data)


def check_types(part: object, **types: type | tuple[type, ...]) -> None:
    """Refuse a field that is not of its type; bool is no number here."""
    for name, expected in types.items():
        value = getattr(part, name)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise SpecError(f"{type(part).__name__.lower()}'s {name} cannot be {value!r}")
