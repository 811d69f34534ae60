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

#: The most columns that are named as the probable label.
_MOST_SHOWN = 10

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
        if self.classes is None or not self.column.is_number:
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
    if given is None:
        own = name.casefold()
        sure = _NAMES | {f"{own}{end}" for end in ("", "s", "d", "ed")}
        folded = {
            column: column.casefold()
            for column, decision in decisions.items()
            if decision.use is not Use.KEY
        }
        named = [column for column, low in folded.items() if low in sure]
        if len(named) == 1:
            return named[0]
        maybe = [column for column, low in folded.items() if low in _MAYBE or low.startswith(own)]
        # Of a few values first, and the last ones of the table before the first ones.
        others = [
            column
            for column, decision in [*decisions.items()][::-1]
            if decision.use in (Use.NUMBER, Use.CATEGORY) and not decision.is_time
        ]
        others.sort(key=lambda column: len(columns[column].counts) > _MOST_INTEGERS)
        candidates = list(dict.fromkeys([*named, *maybe, *others]))[:_MOST_SHOWN]
        if ask is None:
            few = [each for each in candidates if len(columns[each].counts) <= _MOST_INTEGERS]
            many = [each for each in candidates if each not in few]
            groups = [", ".join(map(repr, each)) for each in (few, many) if each]
            raise SpecError(
                "which column to predict is in doubt; name it by --label, probably one of "
                f"{'; or, of more values, '.join(groups) or 'none of these columns'}"
            )
        given = ask(candidates)
    if given not in decisions:
        raise SpecError(
            f"there is no column {given!r} to predict{nearest(given, decisions)}; the columns are "
            f"{', '.join(decisions)}"
        )
    return given


def label_of(column: SampledColumn, task: str | None) -> Label:
    """What the column says about the model that predicts it.

    ``task`` is ``classification``, ``regression``, or None to decide it by the values.

    Raises:
        SpecError: no model can learn to predict it.
    """
    values, count = column.counts, len(column.counts)
    if count < 2:
        what = f"only has the value {next(iter(values))!r}" if count else "has no values to compare"
        raise SpecError(
            f"{column.name!r} cannot be predicted: it {what} in the records that were read; name "
            "another column by --label, or check whether the records are sorted by it"
        )
    are_whole = column.is_number and all(float(value).is_integer() for value in values)
    if task is None:
        are_few = count <= min(_MOST_INTEGERS, len(column.known) // 2)
        are_classes = not column.is_number or (are_whole and are_few)
        task = "classification" if are_classes else "regression"
    if task == "regression":
        return _regression_of(column)
    if count > _MOST_CLASSES:
        what = "--task regression" if column.is_number else "another column by --label"
        raise SpecError(
            f"{column.name!r} has {count:,} different values, and at most {_MOST_CLASSES} can be "
            f"classes; give {what}"
        )
    if column.is_number and not are_whole:
        raise SpecError(
            f"{column.name!r} has fractions, such as {next(iter(values))}, which are no classes; "
            "give --task regression"
        )
    classes: list[Any] = sorted(map(int, values) if column.is_number else values)
    if count == 2 and str(classes[0]).casefold() in _YES:
        classes.reverse()
    return Label(
        column=column,
        task=Task.BINARY if count == 2 else Task.SEVERAL,
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
