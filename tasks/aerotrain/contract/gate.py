"""The rules by which an evaluation accepts or refuses a model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.validation import Limits, Validated, is_number


class RuleKind(StrEnum):
    """What a rule requires of a metric."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    NO_WORSE = "no_worse"
    BETTER_THAN_TRIVIAL = "better_than_trivial"


class Choice(StrEnum):
    """What happens to a model that cannot be judged."""

    ACCEPT = "accept"
    REFUSE = "refuse"


#: The smallest slice that is judged, unless a rule says otherwise.
LEAST = 100

#: The probability with which a rule refuses a model that is as good as its baseline.
LEVEL = 0.05

#: Metrics that are shares.
_SHARE = re.compile(r"(^|_)(accuracy|auc|precision|recall|f1_score|mean_io_u)$")


#: The name of the version that a pipeline serves.
SERVING = "serving"

#: One column of a crossed slice: its name, or a number's name and how it is cut.
Column = str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rule(Validated):
    """One rule of a gate.

    ``metric`` is the name of a metric: of the compiled model as ``evaluate`` reports it, of
    ``keras.metrics`` (``"auc"``), or of a function ``(y_true, y_pred)`` or ``(y_true, y_pred,
    weight)`` of the model's module, which returns a number for each record.

    ``at_least`` and ``at_most`` compare the metric with ``bound``; ``no_worse`` compares it with
    that of the baseline, and refuses a model that is worse by more than ``by`` with a confidence
    of 1 - ``level``. ``better_than_trivial`` compares it with that of the best constant prediction,
    and refuses a model that is not better with this confidence. ``better`` is ``higher`` or
    ``lower`` for a metric of which Keras does not know it. ``output`` names the model's output
    where it has several.

    The rule holds for all records, and for each slice of at least ``least`` records. A slice is a
    column's name, ``{"column": "age", "buckets": 4}`` for quartiles,
    ``{"column": "age", "buckets": [18, 65]}`` for ranges, or a list of these, which are crossed.
    ``too_few`` says what happens where too few records are left: by default, slices are accepted
    unseen, and a model of which no record can be judged is refused.
    """

    TITLE: ClassVar = "a rule of a gate"

    kind: Annotated[str, Limits(choices=tuple(RuleKind))]
    metric: Annotated[str, Limits(pattern=".+", form="the name of a metric")]
    bound: float | None = None
    by: Annotated[float, Limits(minimum=0)] = 0.0
    better: Annotated[str, Limits(choices=("higher", "lower"))] | None = None
    output: str | None = None
    slices: Sequence[Column | Sequence[Column]] = ()
    least: Annotated[int, Limits(minimum=2, form="a number of records")] = LEAST
    level: Annotated[float, Limits(above=0, below=0.5)] = LEVEL
    too_few: Choice | None = None

    def where(self) -> str:
        return f"the rule {self.kind}({self.metric!r})"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = self.where()
        if self.compares and self.bound is not None:
            raise SpecError(f"{where} has no bound: it compares with another model")
        if not self.compares and self.bound is None:
            raise SpecError(f"{where} needs a bound, which is a number")
        if self.by and self.kind != RuleKind.NO_WORSE:
            raise SpecError(f"{where} has no 'by': it is of no_worse; change the bound instead")
        for place, each in enumerate(self.slices):
            _check_slice(each, where)
            if each in self.slices[:place]:
                raise SpecError(f"slices of {where} has {each!r} twice")

    @property
    def compares(self) -> bool:
        """Whether it compares with another model, not with a bound."""
        return self.kind in (RuleKind.NO_WORSE, RuleKind.BETTER_THAN_TRIVIAL)

    def __str__(self) -> str:
        name = self.metric if self.output is None else f"{self.output}_{self.metric}"
        if self.kind == RuleKind.NO_WORSE:
            return f"{name} no worse" + (f" by more than {self.by:g}" if self.by else "")
        bound = "" if self.bound is None else f" {self.bound:g}"
        return f"{name} {self.kind.replace('_', ' ')}{bound}"


def _check_slice(each: Any, where: str) -> None:
    if isinstance(each, str):
        return
    if isinstance(each, Mapping):
        buckets = each.get("buckets")
        counted = isinstance(buckets, int) and not isinstance(buckets, bool) and buckets >= 2
        listed = isinstance(buckets, Sequence) and buckets and all(map(is_number, buckets))
        rising = listed and list(buckets) == sorted(set(buckets))  # type: ignore[arg-type]
        if set(each) == {"column", "buckets"} and isinstance(each["column"], str):
            if counted or rising:
                return
            raise SpecError(
                f"the buckets of {each['column']!r} of {where} must be a number of at least 2, or "
                f"rising boundaries such as [18, 65]; got {buckets!r}"
            )
    elif isinstance(each, Sequence) and each:
        for part in each:
            if not isinstance(part, str | Mapping):
                break
            _check_slice(part, where)
        else:
            return
    raise SpecError(
        f"a slice of {where} must be a column's name, bucket(...) of one, or a list of these; "
        f"got {each!r}"
    )


def check_gate(rules: Sequence[Rule]) -> None:
    """Check that the rules can hold.

    Raises:
        SpecError: no model can meet a bound.
    """
    for each in rules:
        if each.kind == RuleKind.AT_LEAST and (each.bound or 0) > 1 and _SHARE.search(each.metric):
            raise SpecError(
                f"no model can have {each}: {each.metric} is between 0 and 1; for 95 %, give 0.95"
            )


def parts_of(given: Column | Sequence[Column]) -> list[Column]:
    """The columns of one slice, of which crossed ones have several."""
    return [given] if isinstance(given, str | Mapping) else list(given)


def columns_of(slices: Sequence[Column | Sequence[Column]]) -> list[str]:
    """The names of all columns that ``slices`` are made of."""
    parts = [part for each in slices for part in parts_of(each)]
    return [each if isinstance(each, str) else each["column"] for each in parts]
