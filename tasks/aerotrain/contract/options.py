"""Options of a run, each declared once, as the field of a dataclass; and checks of other fields.

The declaration holds the title, the help, the bounds and the section. The trigger form, the command
line, the checks, the schema of the REST API and docs/options.md are derived from it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

from aerotrain.contract.errors import SpecError, nearest

_KEY = "option"


class Section(StrEnum):
    """The sections of the trigger form, in their order."""

    TRAINING = "Training"
    REPLICAS = "Replicas"
    DATA = "Data"
    PERFORMANCE = "Performance"
    RECOVERY = "Recovery"
    LAUNCHER = "Launcher"
    RARE = "Rarely needed"
    RETENTION = "Retention"


class OptionType(StrEnum):
    """The types of an option's value, as JSON Schema names them."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    OBJECT = "object"


_PYTHON: Mapping[OptionType, type | tuple[type, ...]] = {
    OptionType.BOOLEAN: bool,
    OptionType.INTEGER: int,
    OptionType.NUMBER: (int, float),
    OptionType.STRING: str,
    OptionType.OBJECT: Mapping,
}

#: JSON Schema of finite numbers; it accepts all values of other types. Airflow would store NaN and
#: infinities as null. NaN passes all bounds, as it is neither below nor above any number: so it is
#: the only number that is both at least 1 and at most -1.
_FINITE: Mapping[str, Any] = {
    "minimum": -1e308,
    "maximum": 1e308,
    "not": {"title": "NaN", "type": "number", "minimum": 1, "maximum": -1},
}

#: Bounds of options: Airflow shows them with each refused value, and PostgreSQL all their digits.
_FINITE_OPTION = {**_FINITE, "minimum": -1e15, "maximum": 1e15}


@dataclass(frozen=True, kw_only=True)
class Option:
    """The description of one option, and the values it accepts.

    ``minimum`` and ``maximum`` are inclusive, ``above`` is exclusive. ``choices`` are the allowed
    strings, ``keys`` the allowed keys of an object. ``pattern`` is a regular expression for the
    whole of a string, and ``form`` describes such strings. An ``optional`` option may be null, and
    ``empty`` says what that means. ``strategy`` is the only strategy that has the option: the title
    names it, and no other strategy accepts a value. ``in_form`` is false for an option that only
    the command line and DAG files offer. ``fixed`` is true for one that names a place, where the
    work would be done or data be sent: a DAG file may set it, and its runs may not change it.
    """

    title: str
    help: str
    section: Section
    kind: OptionType
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    pattern: str = ".*"
    form: str = ""
    optional: bool = False
    empty: str = ""
    strategy: str = ""
    in_form: bool = True
    fixed: bool = False

    @property
    def full_title(self) -> str:
        """The title, with the strategy that the option belongs to."""
        return f"{self.strategy}: {self.title}" if self.strategy else self.title

    @property
    def full_help(self) -> str:
        """The help, with what an empty value means."""
        return f"{self.help} Empty: {self.empty}." if self.empty else self.help

    @property
    def needs_value(self) -> bool:
        """Whether a run has a value of it other than a switch or an empty object."""
        return not self.optional and self.kind not in (OptionType.OBJECT, OptionType.BOOLEAN)

    def json_schema(self) -> dict[str, Any]:
        """The accepted values as JSON Schema, https://json-schema.org/draft/2020-12.

        Null is always accepted: where it is no value of the option, it means its default.
        """
        schema: dict[str, Any] = {"type": ["null", self.kind.value]}
        if self.kind is OptionType.NUMBER:
            schema |= _FINITE_OPTION
        if self.kind is OptionType.OBJECT:
            schema["additionalProperties"] = dict(_FINITE)
        for name, value in (
            ("minimum", self.minimum),
            ("exclusiveMinimum", self.above),
            ("maximum", self.maximum),
        ):
            if value is not None:
                schema[name] = value
        if self.choices:
            schema["enum"] = [None, *self.choices]
        if self.keys:
            schema["propertyNames"] = {"enum": list(self.keys)}
        return schema

    def check(self, name: str, value: Any) -> None:
        """Check one value of the option called ``name``.

        Raises:
            SpecError: the value is not accepted; the message says which values are.
        """
        if value is None and self.optional:
            return
        if self.choices and value not in self.choices:
            raise SpecError(
                f"there is no {name} {value!r}{nearest(str(value), self.choices)}; use one "
                f"of {', '.join(self.choices)}"
            )
        is_number = self.kind in (OptionType.INTEGER, OptionType.NUMBER)
        fits = isinstance(value, _PYTHON[self.kind])
        if is_number and fits:
            fits = not isinstance(value, bool) and self._is_within(value)
        elif self.kind is OptionType.STRING and fits:
            fits = re.fullmatch(self.pattern, value) is not None
        if not fits:
            raise SpecError(f"{name} must be {self._expected()}, got {value!r}")
        for key in value if self.keys else ():
            if key not in self.keys:
                raise SpecError(
                    f"{name} has no key {key!r}{nearest(str(key), self.keys)}; its keys are "
                    f"{', '.join(self.keys)}"
                )

    def _is_within(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
        )

    def _expected(self) -> str:
        words = {
            OptionType.BOOLEAN: "true or false",
            OptionType.INTEGER: "a whole number",
            OptionType.NUMBER: "a number",
            OptionType.STRING: self.form or "a string",
            OptionType.OBJECT: "an object",
        }[self.kind]
        if self.minimum is not None and self.maximum is not None:
            words += f" from {self.minimum:g} to {self.maximum:g}"
        elif self.minimum is not None:
            words += f" of {self.minimum:g} or more"
        elif self.above is not None:
            words += f" above {self.above:g}"
            words += f" and at most {self.maximum:g}" if self.maximum is not None else ""
        return words + (" or null" if self.optional else "")


def option(default: Any, *, title: str, help: str, section: Section, **more: Any) -> Any:  # noqa: A002 -- argparse's name for it
    """A dataclass field that is an option; ``more`` are further fields of ``Option``.

    The kind is derived from ``default``; it is required if ``default`` is None.
    """
    kind = more.pop("kind", None) or _kind_of(default)
    more.setdefault("optional", default is None)
    declared = Option(title=title, help=help, section=section, kind=kind, **more)
    metadata = {_KEY: declared}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _kind_of(default: Any) -> OptionType:
    # bool comes before int, because a bool is also an int.
    return next(kind for kind, python in _PYTHON.items() if isinstance(default, python))


@dataclass(frozen=True)
class Declared:
    """An option with its name and its default."""

    name: str
    option: Option
    default: Any


def options_of(*owners: type) -> dict[str, Declared]:
    """The options that the dataclasses ``owners`` declare, by name, in the order of the form.

    In each section, those that need a value come first.
    """
    found = [each for owner in owners for each in _declared(owner)]
    order = list(Section)
    found.sort(key=lambda each: (order.index(each.option.section), not each.option.needs_value))
    return {each.name: each for each in found}


def _declared(owner: type) -> Iterator[Declared]:
    for each in fields(owner):
        if _KEY in each.metadata:
            yield Declared(each.name, each.metadata[_KEY], _default_of(each))


def _default_of(declared: Field[Any]) -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def check_options(values: Any) -> None:
    """Check every option of a dataclass instance.

    Raises:
        SpecError: a value is not accepted; the message says what was expected.
    """
    for each in _declared(type(values)):
        each.option.check(each.name, getattr(values, each.name))


def check_strategy(values: Any, strategy: str) -> None:
    """Check that no option of a dataclass instance is set that only another strategy has.

    Raises:
        SpecError: one is set; the message names its strategy.
    """
    for each in _declared(type(values)):
        only, value = each.option.strategy, getattr(values, each.name)
        of_run = each.option.in_form and not each.option.fixed
        if of_run and only not in ("", strategy) and value != each.default:
            raise SpecError(
                f"{each.name} is {value!r}, which only the strategy {only!r} uses, and this is "
                f"{strategy!r}; choose {only!r}, or give {each.name} its default {each.default!r}"
            )


def known(owner: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` as keyword arguments of the dataclass ``owner``.

    Raises:
        SpecError: ``data`` is not an object, has a key that is not a field, or lacks one that is
            required.
    """
    name = _title(owner)
    if not isinstance(data, Mapping):
        raise SpecError(f"{name} is described by an object, got {data!r}")
    names = {each.name: each for each in fields(owner)}
    for key in data:
        if key not in names:
            raise SpecError(
                f"{name} has no field {key!r}{nearest(key, names)}; its fields are "
                f"{', '.join(names)}"
            )
    required = [key for key, each in names.items() if _default_of(each) is MISSING]
    missing = [key for key in required if key not in data]
    if missing:
        raise SpecError(f"{name} needs {', '.join(required)}; missing: {', '.join(missing)}")
    return dict(data)


def _title(owner: type) -> str:
    """What the messages call an instance of ``owner``: its ``TITLE``, if it has one."""
    title: str = getattr(owner, "TITLE", owner.__name__)
    return title


#: How messages describe a type of JSON.
_WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    Mapping: "an object",
    type(None): "null",
}


def check_types(section: object, **types: type | tuple[type, ...]) -> None:
    """Check the types of fields. A bool is not accepted as a number.

    Raises:
        SpecError: a field has another type.
    """
    for name, expected in types.items():
        value = getattr(section, name)
        if not isinstance(value, expected) or isinstance(value, bool):
            kinds = expected if isinstance(expected, tuple) else (expected,)
            words = [_WORDS[each] for each in kinds if each is not int or float not in kinds]
            raise SpecError(
                f"{name} of {_title(type(section))} must be {' or '.join(words)}, got {value!r}"
            )


def is_number(value: object) -> bool:
    """Whether that value of a JSON document is a number; neither a bool nor NaN is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)


class Arguments:
    """The base class of the steps' arguments, which are read from JSON.

    ``TITLE`` is the name of the step in messages.
    """

    TITLE: ClassVar[str]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Build and check the arguments.

        Raises:
            SpecError: a key is unknown or missing, or a value is invalid.
        """
        return cls(**known(cls, data))
