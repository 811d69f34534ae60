"""Options of a run, each declared once, as the field of a dataclass.

The declaration holds the title, the help, the limits and the section; the field has the type. The
trigger form, the command line, the checks, the schema of the REST API and docs/options.md are
derived from both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.validation import (
    LIMITS,
    Limits,
    Validated,
    ValueType,
    check,
    default_of,
    field_type,
)


class Section(StrEnum):
    """The sections of the trigger form, in their order."""

    TRAINING = "Training"
    REPLICAS = "Replicas"
    DATA = "Data"
    PERFORMANCE = "Performance"
    RECOVERY = "Recovery"
    CHECKS = "Checks and reuse"
    LAUNCHER = "Launcher"
    RARE = "Rarely needed"
    RETENTION = "Retention"


#: The types of options, as JSON Schema names them.
JSON_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    Mapping: "object",
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
class Option(Limits):
    """The description of one option, and the values it accepts.

    An option whose type has ``None`` may be null, and ``empty`` says what that means. ``strategy``
    is the only strategy that has the option: the title names it, and no other strategy accepts a
    value. ``in_form`` is false for an option that only the command line and DAG files offer.
    ``fixed`` is true for one that names a place, where the work would be done or data be sent: a
    DAG file may set it, and its runs may not change it.
    """

    title: str
    help: str
    section: Section
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


def option(default: Any, **described: Any) -> Any:
    """A dataclass field that is an option; ``described`` are the fields of ``Option``."""
    metadata = {LIMITS: Option(**described)}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Declared:
    """An option with its name, its type and its default."""

    name: str
    option: Option
    type: ValueType
    default: Any

    @property
    def needs_value(self) -> bool:
        """Whether a run has a value of it other than a switch or an empty object."""
        return not self.type.optional and self.type.kind not in (Mapping, bool)

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            SpecError: it is not accepted; the message says which values are.
        """
        check(self.name, self.type, value)

    def json_schema(self) -> dict[str, Any]:
        """The accepted values as JSON Schema, https://json-schema.org/draft/2020-12.

        Null is always accepted: where it is no value of the option, it means its default.
        """
        limits, kind = self.option, self.type.kind
        # Airflow's form shows a field of the first type but null.
        types = ["string", "integer"] if self.type.is_size else [JSON_TYPES[kind]]
        schema: dict[str, Any] = {"type": ["null", *types]}
        if limits.pattern:
            schema["pattern"] = f"^({limits.pattern})$"
        if kind is float:
            schema |= _FINITE_OPTION
        if kind is Mapping:
            schema["additionalProperties"] = dict(_FINITE)
        for name, value in (
            ("minimum", limits.minimum),
            ("exclusiveMinimum", limits.above),
            ("maximum", limits.maximum),
        ):
            if value is not None:
                schema[name] = value
        if limits.choices:
            schema["enum"] = [None, *limits.choices]
        if limits.keys:
            schema["propertyNames"] = {"enum": list(limits.keys)}
        return schema


def options_of(*owners: type) -> dict[str, Declared]:
    """The options that the dataclasses ``owners`` declare, by name, in the order of the form.

    In each section, those that need a value come first.
    """
    found = [
        Declared(each.name, each.metadata[LIMITS], field_type(each), default_of(each))
        for owner in owners
        for each in fields(owner)
        if LIMITS in each.metadata
    ]
    order = list(Section)
    found.sort(key=lambda each: (order.index(each.option.section), not each.needs_value))
    return {each.name: each for each in found}


def check_strategy(values: Validated, strategy: str) -> None:
    """Check that no option of a dataclass instance is set that only another strategy has.

    Raises:
        SpecError: one is set; the message names its strategy.
    """
    for name, each in options_of(type(values)).items():
        only, value = each.option.strategy, getattr(values, name)
        of_run = each.option.in_form and not each.option.fixed
        if of_run and only not in ("", strategy) and value != each.default:
            raise SpecError(
                f"{name} is {value!r}, which only the strategy {only!r} uses, and this is "
                f"{strategy!r}; choose {only!r}, or give {name} its default {each.default!r}"
            )
