"""Which column a model predicts, and how: by its name, by the user's answer, by its values."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow.compute as pc

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.scaffold.columns import ColumnDecision, SampledColumn, Use

#: The most classes, and the most of integers that may as well be a quantity.
_MOST_CLASSES, _MOST_INTEGERS = 100, 20

#: Decimal digits of a regression's mean and deviation, after the first of the deviation.
_DIGITS = 3

#: Names that say that a column is the label, and those that may as well be of something else.
_NAMES, _MAYBE = {"label", "target", "outcome"}, {"class", "y"}

#: Words that mean yes: the class of which a model gives the probability, as the second of two.
_YES = frozenset({"yes", "y", "true", "t", "ja", "j", "oui", "o", "si", "sí", "sì", "sim", "tak"})


class Task(StrEnum):
    """What a model predicts: which of two classes, which of several, or a number."""

    BINARY = "binary"
    SEVERAL = "several"
    REGRESSION = "regression"


@dataclass(frozen=True, kw_only=True)
class Label:
    """The column that a model predicts.

    ``classes`` are its values in the order of the model's outputs, None for a regression. ``share``
    is that of the records with the most frequent class; ``mean`` and ``deviation`` are those of a
    regression.
    """

    column: SampledColumn
    task: Task
    classes: Sequence[Any] | None = None
    share: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def is_numbered(self) -> bool:
        """Whether the classes are numbers other than 0, 1, 2, …, of which transform makes these."""
        if self.classes is None or self.column.is_text or self.column.is_bool:
            return False
        return list(self.classes) != list(range(len(self.classes)))

    @property
    def why(self) -> str:
        if self.classes is None:
            return f"the label, a number of mean {self.mean:,.6g}"
        shown = ", ".join(map(str, self.classes[:6])) + (", …" if len(self.classes) > 6 else "")
        return f"the label, {len(self.classes)} classes: {shown}"


def name_of_label(
    name: str,
    columns: Mapping[str, SampledColumn],
    decisions: Mapping[str, ColumnDecision],
    given: str | None,
    ask: Callable[[Sequence[str]], str] | None,
) -> str:
    """The name of the label: as ``given``, by its name, or by the answer of ``ask``.

    ``name`` is that of the pipeline; ``ask`` is None without a terminal.

    Raises:
        SpecError: there is no such column, or it is in doubt which one it is.
    """
    candidates = [each for each in columns if decisions[each].use in (Use.NUMBER, Use.CATEGORY)]
    candidates = [each for each in candidates if not decisions[each].is_time]
    if given is None:
        own = name.casefold()
        sure = _NAMES | {f"{own}{end}" for end in ("", "s", "d", "ed")}
        folded = {x: x.casefold() for x in columns if decisions[x].use is not Use.KEY}
        named = [x for x, low in folded.items() if low in sure]
        if len(named) == 1:
            return named[0]
        maybe = [x for x, low in folded.items() if low in _MAYBE or low.startswith(own)]
        candidates = list(dict.fromkeys([*named, *maybe, *candidates]))
        if ask is None:
            raise SpecError(
                "which column to predict is in doubt; name it by --label, probably one of "
                f"{', '.join(map(repr, candidates)) or 'none of these columns'}"
            )
        given = ask(candidates)
    if given not in columns:
        raise SpecError(
            f"there is no column {given!r} to predict{nearest(given, columns)}; the columns are "
            f"{', '.join(columns)}"
        )
    return given


def label_of(column: SampledColumn, task: str | None) -> Label:
    """What the column says about the model that predicts it.

    ``task`` is ``classification``, ``regression``, or None to decide it by the values.

    Raises:
        SpecError: no model can learn to predict it.
    """
    different = list(column.counts)
    if len(different) < 2:
        what = f"only has the value {different[0]!r}" if different else "has no values to compare"
        raise SpecError(
            f"{column.name!r} cannot be predicted: it {what} in the records that were read; name "
            "another column by --label, or check whether the records are sorted by it"
        )
    if task is None:
        task = "classification" if _are_classes(column) else "regression"
    return _classes_of(column) if task == "classification" else _regression_of(column)


def _are_classes(column: SampledColumn) -> bool:
    if not column.is_number:
        return True
    are_whole = all(float(each).is_integer() for each in column.counts)
    few = len(column.counts) <= min(_MOST_INTEGERS, len(column.known) // 2)
    return are_whole and few


def _classes_of(column: SampledColumn) -> Label:
    if len(column.counts) > _MOST_CLASSES:
        what = "--task regression" if column.is_number else "another column by --label"
        raise SpecError(
            f"{column.name!r} has {len(column.counts):,} different values, and at most "
            f"{_MOST_CLASSES} can be classes; give {what}"
        )
    values = column.counts
    if column.is_number:
        if not all(float(each).is_integer() for each in values):
            raise SpecError(
                f"{column.name!r} has fractions, such as {next(iter(values))}, which are no "
                "classes; give --task regression"
            )
        classes: list[Any] = sorted(map(int, values))
    else:
        classes = sorted(values)
        if len(classes) == 2 and str(classes[0]).casefold() in _YES:
            classes.reverse()
    return Label(
        column=column,
        task=Task.BINARY if len(classes) == 2 else Task.SEVERAL,
        classes=classes,
        share=max(values.values()) / len(column.known),
    )


def _regression_of(column: SampledColumn) -> Label:
    if not column.is_number:
        raise SpecError(
            f"{column.name!r} has {column.values.type} values, and a regression predicts numbers; "
            "give --task classification, or name another column by --label"
        )
    numbers = column.known.cast("float64")
    deviation = pc.stddev(numbers).as_py()
    digits = _DIGITS - math.floor(math.log10(deviation))
    return Label(
        column=column,
        task=Task.REGRESSION,
        mean=round(pc.mean(numbers).as_py(), digits),
        deviation=round(deviation, digits),
    )
