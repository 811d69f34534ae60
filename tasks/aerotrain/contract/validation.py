"""Validation of the fields of job descriptions, with errors that name the field."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest


def known(section: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` as keyword arguments of the dataclass ``section``.

    Raises:
        SpecError: ``data`` is not an object, or has a key that is not a field.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"a {section.__name__.lower()} is described by an object, got {data!r}")
    names = [each.name for each in fields(section)]
    for key in data:
        if key not in names:
            raise SpecError(
                f"a {section.__name__.lower()} has no field {key!r}{nearest(key, names)}; "
                f"its fields are {', '.join(names)}"
            )
    return dict(data)


def check_types(section: object, **types: type | tuple[type, ...]) -> None:
    """Check the types of fields. A bool is not accepted as a number.

    Raises:
        SpecError: a field has another type.
    """
    for name, expected in types.items():
        value = getattr(section, name)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise SpecError(f"{type(section).__name__.lower()}'s {name} cannot be {value!r}")
