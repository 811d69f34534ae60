"""Dataclasses that are read from JSON, and checked by the types and the limits of their fields.

A field declares what it accepts once: by its type, and by ``Limits`` in the type or in the
declaration of an option (``options``). Only checks that compare several fields are code.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

from aerotrain.contract.errors import SpecError, nearest

_Owner = TypeVar("_Owner")

#: The key of a field's metadata for ``Limits`` that are not in its type, as those of an option.
LIMITS = "limits"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The values that a field accepts, of those that have its type.

    ``minimum`` and ``maximum`` are inclusive, ``above`` and ``below`` are exclusive. ``choices``
    are the allowed strings, ``keys`` the allowed keys of an object. ``pattern`` is a regular
    expression for the whole of a string. ``form`` describes the values in messages, where the type
    alone does not, as ``"a number of seconds"``.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""

    def accept(self, value: Any) -> bool:
        """Whether a value, which has the type, is within the limits."""
        if isinstance(value, int | float):
            return (
                math.isfinite(value)
                and (self.minimum is None or value >= self.minimum)
                and (self.above is None or value > self.above)
                and (self.maximum is None or value <= self.maximum)
                and (self.below is None or value < self.below)
            )
        if self.choices:
            return value in self.choices
        return not self.pattern or re.fullmatch(self.pattern, value) is not None

    def bounds(self) -> str:
        """The bounds of a number, in words that follow ``form``; empty if there are none."""
        if self.minimum is not None and self.maximum is not None:
            return f" from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f" of {self.minimum:g} or more"
        words = [] if self.above is None else [f"above {self.above:g}"]
        words += [] if self.maximum is None else [f"at most {self.maximum:g}"]
        words += [] if self.below is None else [f"below {self.below:g}"]
        return f" {' and '.join(words)}" if words else ""


#: Numbers above zero, counts of at least one, and counts that may be zero.
Positive = Annotated[float, Limits(above=0)]
Seconds = Annotated[float, Limits(above=0, form="a number of seconds")]
Count = Annotated[int, Limits(minimum=1)]
CountOrZero = Annotated[int, Limits(minimum=0)]

#: The names of columns.
Columns = Annotated[Sequence[str], Limits(form="a list of columns")]


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """The type of a field, taken apart.

    ``kind`` is ``bool``, ``int``, ``float``, ``str``, ``Mapping``, ``Sequence``, ``tuple``, a
    ``StrEnum``, a dataclass, or ``object`` for any value. ``element`` is the type of the elements
    of a container.
    """

    kind: type
    limits: Limits = Limits()
    element: Any = Any
    optional: bool = False

    def accepts(self, value: Any) -> bool:
        """Whether a value has the type, and is within the limits. No bool is a number."""
        kind = (int, float) if self.kind is float else str if self._is_enum else self.kind
        if not isinstance(value, kind) or (isinstance(value, bool) and self.kind in (int, float)):
            return False
        if self.kind is Sequence:
            return not isinstance(value, str)
        if self.is_size:
            is_text = isinstance(value, str)
            is_number = isinstance(value, int) and not isinstance(value, bool)
            return (is_number or is_text) and self.limits.accept(value)
        has_limits = self._is_enum or self.kind in (int, float, str)
        return not has_limits or self.limits.accept(value)

    @property
    def is_size(self) -> bool:
        """Whether a value is a whole number, or a text that describes several."""
        return self.kind is object and bool(self.limits.pattern)

    @property
    def _is_enum(self) -> bool:
        return issubclass(self.kind, StrEnum)

    def expected(self) -> str:
        """The accepted values, in words."""
        if self.limits.choices:
            words = " or ".join(map(repr, self.limits.choices))
            if len(self.limits.choices) > 2:
                words = f"one of {', '.join(self.limits.choices)}"
        else:
            noun = self.limits.form or _WORDS.get(self.kind) or f"a {self.kind.__name__}"
            words = noun if self.is_size else noun + self.limits.bounds()
        return f"{words} or null" if self.optional else words


#: How messages describe a type of JSON.
_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Mapping: "an object",
    Sequence: "a list",
    tuple: "a list",
}


@cache
def value_type(annotation: Any, limits: Limits | None = None) -> ValueType:
    """The type that a field declares; ``limits`` are those that are not in the annotation."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        found = value_type(parts[0], limits or parts[1])
    elif origin in (Union, UnionType):
        kinds = [each for each in parts if each is not NoneType]
        found = (
            value_type(kinds[0], limits)
            if len(kinds) == 1
            else ValueType(kind=object, limits=limits or Limits())
        )
        return ValueType(**{**vars(found), "optional": len(kinds) < len(parts)})
    elif annotation is Any:
        found = ValueType(kind=object)
    elif origin is None:
        is_enum = isinstance(annotation, type) and issubclass(annotation, StrEnum)
        own = Limits(choices=tuple(each.value for each in annotation)) if is_enum else Limits()
        found = ValueType(kind=annotation, limits=limits or own)
    else:
        element = parts[1] if origin is Mapping else parts[0]
        found = ValueType(kind=origin, limits=limits or Limits(), element=element)
    return found


def check(name: str, expected: ValueType, value: Any, owner: str = "") -> None:
    """Check one value, and the elements of a list or an object, of what messages call ``name``.

    Raises:
        SpecError: it is not accepted; the message says which values are.
    """
    if value is None and expected.optional:
        return
    limits = expected.limits
    if not expected.accepts(value):
        hint = nearest(value, limits.choices) if isinstance(value, str) else ""
        if expected.kind is Sequence and isinstance(value, str):
            hint = f"; write [{value!r}]"
        raise SpecError(f"{name}{owner} must be {expected.expected()}, got {value!r}{hint}")
    for key in value if limits.keys else ():
        if key not in limits.keys:
            raise SpecError(
                f"{name}{owner} has no key {key!r}{nearest(str(key), limits.keys)}; its keys are "
                f"{', '.join(limits.keys)}"
            )
    if expected.element is not Any and not isinstance(value, str):
        element = value_type(expected.element)
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in pairs:
            check(f"{name}[{key!r}]", element, each, owner)


def is_number(value: object) -> bool:
    """Whether that value of a JSON document is a number; neither a bool nor NaN is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)


def default_of(declared: Field[Any]) -> Any:
    """The default of a dataclass field; ``MISSING`` if it is required."""
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def field_type(declared: Field[Any]) -> ValueType:
    """The type of a dataclass field, with its limits."""
    annotation: Any = declared.type
    return value_type(annotation, declared.metadata.get(LIMITS))


def read(owner: type[_Owner], data: Any, *, strict: bool = True) -> _Owner:
    """The instance of the dataclass ``owner`` that a JSON object describes, and those within it.

    Raises:
        SpecError: ``data`` is not an object, has a key that is not a field, unless ``strict`` is
            false, or lacks one that is required.
    """
    title = getattr(owner, "TITLE", owner.__name__)
    if not isinstance(data, Mapping):
        raise SpecError(f"{title} is described by an object, got {data!r}")
    known = {each.name: each for each in fields(owner)}  # type: ignore[arg-type]
    for key in data if strict else ():
        if key not in known:
            raise SpecError(
                f"{title} has no field {key!r}{nearest(key, known)}; its fields are "
                f"{', '.join(known)}"
            )
    required = [name for name, each in known.items() if default_of(each) is MISSING]
    if missing := [name for name in required if name not in data]:
        raise SpecError(f"{title} needs {', '.join(required)}; missing: {', '.join(missing)}")
    values = {
        name: _converted(name, field_type(each), data[name], title, strict)
        for name, each in known.items()
        if name in data
    }
    return owner(**values)


def _converted(name: str, expected: ValueType, value: Any, title: str, strict: bool) -> Any:
    """A value of JSON as one of the type, with dataclasses, enums and tuples in their place."""
    if (value is None and expected.optional) or expected.kind is object:
        return value
    if is_dataclass(expected.kind):
        return read(expected.kind, value, strict=strict)
    if issubclass(expected.kind, StrEnum):
        check(name, expected, value, f" of {title}")
        return expected.kind(value)
    if expected.element is Any or not isinstance(value, Mapping | list | tuple):
        return value
    element = value_type(expected.element)

    def converted(key: Any, each: Any) -> Any:
        return _converted(f"{name}[{key!r}]", element, each, title, strict)

    if isinstance(value, Mapping):
        return {key: converted(key, each) for key, each in value.items()}
    kept = [converted(place, each) for place, each in enumerate(value)]
    return tuple(kept) if expected.kind is tuple else kept


class Validated:
    """The base of dataclasses that check themselves. ``TITLE`` is their name in messages.

    To make one raises a ``SpecError`` if a value is not accepted; its message says what was
    expected. ``__post_init__`` of a subclass compares several fields.
    """

    TITLE: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the type and the limits of every field.

        Raises:
            SpecError: one is not accepted; the message says what was expected.
        """
        title = self.where()
        for each in fields(self):  # type: ignore[arg-type]
            check(
                each.name,
                field_type(each),
                getattr(self, each.name),
                "" if LIMITS in each.metadata else f" of {title}",
            )

    def where(self) -> str:
        """What messages call this instance."""
        return self.TITLE

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Build and check an instance from a JSON object.

        Raises:
            SpecError: a key is unknown or missing, or a value is invalid.
        """
        return read(cls, data)
