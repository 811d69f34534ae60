"""The figures of each slice, and what each rule says of them.

All figures are computed from sums: the states of metrics by slice and group of records, which are
added over blocks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.contract.errors import counted
from aerotrain.contract.gate import Choice, Rule, RuleKind
from aerotrain.evaluation.intervals import (
    FEWEST_GROUPS,
    GROUPS,
    Estimate,
    Floats,
    estimate,
    holm,
    samples,
)
from aerotrain.evaluation.metrics import CellMetrics, Names, States
from aerotrain.evaluation.records import BASELINE, CANDIDATE, TRIVIAL, Block
from aerotrain.evaluation.slices import ALL, Slicing

#: The relative difference of two metrics that rounding explains. A model and its own export differ
#: by 2e-7, because TensorFlow computes them in another order, and often in one direction.
_ROUNDING = 1e-5

PASS, FAIL, TOO_FEW = "pass", "fail", "too few records"


class Figures(NamedTuple):
    """Metrics of one model in one slice by name: each value, and its values in the samples.

    ``undefined`` are the names of those that the records of the slice do not determine.
    """

    values: dict[str, float]
    sampled: dict[str, Floats]
    undefined: frozenset[str]


@dataclass
class Sums:
    """The states of the metrics ``names`` of each model, for the slices of one ``slicing``."""

    metrics: CellMetrics
    names: Names
    slicing: Slicing
    models: Sequence[str]
    _records: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, GROUPS), np.int64))
    _states: dict[str, States] = field(default_factory=dict)
    _figures: dict[tuple[str, int], Figures] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        """Add records."""
        slices = self.slicing.numbers(block.features, len(block.groups))
        self._grow()
        # Numbers of 16 bits are sorted in one pass.
        places = (slices * GROUPS + block.groups).astype(np.uint16)
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places)
        cells = np.flatnonzero(counts)
        counts = counts[cells]
        self._records.reshape(-1)[cells] += counts
        for model in self.models:
            records = tf.nest.map_structure(
                lambda each: None if each is None else tf.gather(each, order), block.of(model)
            )
            states = self.metrics.states(records, np.cumsum(counts), self.names)
            for total, each in zip(self._states[model], states, strict=True):
                total[cells] += each

    def _grow(self) -> None:
        """Make room for the slices that were found last."""
        missing = len(self.slicing.names) - len(self._records)
        self._records = np.concatenate([self._records, np.zeros((missing, GROUPS), np.int64)])
        zeros = self.metrics.zeros(self.names)
        new = [np.zeros((missing * GROUPS, *each.shape), np.float64) for each in zeros]
        for model in self.models:
            old = self._states.get(model, [each[:0] for each in new])
            self._states[model] = [np.concatenate(pair) for pair in zip(old, new, strict=True)]

    def records(self, number: int) -> int:
        """The records of a slice, by its number."""
        return int(self._records[number].sum())

    def groups(self, number: int) -> int:
        """The groups that have records of a slice."""
        return int(np.count_nonzero(self._records[number]))

    def figures(self, model: str, number: int) -> Figures:
        """The metrics of a model in a slice, once all records are added."""
        if (model, number) not in self._figures:
            cells = slice(number * GROUPS, (number + 1) * GROUPS)
            # The first sample has every group once, and gives the values themselves.
            weights = np.concatenate([np.ones((1, GROUPS)), samples()])
            zeros = self.metrics.zeros(self.names)
            drawn = [
                np.tensordot(weights, states[cells], axes=1).astype(zero.dtype)
                for states, zero in zip(self._states[model], zeros, strict=True)
            ]
            results = self.metrics.results(drawn, self.names)
            self._figures[model, number] = Figures(
                {name: float(each[0]) for name, each in results.items()},
                {name: each[1:] for name, each in results.items()},
                self.metrics.undefined([each[0] for each in drawn], self.names),
            )
        return self._figures[model, number]

    def estimate(self, model: str, name: str, number: int) -> Estimate:
        """The metric of that name of a model in a slice, with its error."""
        figures = self.figures(model, number)
        found = estimate(figures.values[name], figures.sampled[name], self.groups(number))
        return replace(found, range=(0.0, 1.0)) if self.metrics.is_rate(name) else found

    def difference(self, name: str, number: int, other: str) -> Estimate:
        """How much greater the candidate's metric is; both samples have the same records."""
        candidate, baseline = self.figures(CANDIDATE, number), self.figures(other, number)
        ours, theirs = candidate.values[name], baseline.values[name]
        found = estimate(
            0.0 if math.isclose(ours, theirs, rel_tol=_ROUNDING) else ours - theirs,
            candidate.sampled[name] - baseline.sampled[name],
            self.groups(number),
        )
        return replace(found, range=(-1.0, 1.0)) if self.metrics.is_rate(name) else found


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a rule says of one slice.

    ``bound`` is that of the value, or of the difference if the rule compares.
    ``value`` and ``baseline`` are the metric of the two models, of which the second is ``other``,
    ``interval`` is that of the value, and ``difference`` that of the two models' difference, each
    of the rule's confidence. ``probability`` is that of such a loss, or a greater one, if the true
    one were the allowed one, after Holm's correction over the slices of the rule; or of such a gain
    if there were none, where the rule requires one. ``detectable`` is the loss beyond the allowed
    one, or the gain, that the rule sees in 80 % of all such splits, without that correction.
    """

    rule: str
    bound: float
    metric: str
    slice: str
    records: int
    value: float
    interval: tuple[float, float]
    verdict: str = PASS
    other: str = BASELINE
    baseline: float | None = None
    difference: tuple[float, float] | None = None
    probability: float | None = None
    detectable: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return asdict(self)

    @property
    def title(self) -> str:
        """The metric, and of which slice it is."""
        return self.metric if self.slice == ALL else f"{self.metric} of {self.slice}"

    def failed(self, reason: str) -> "Verdict":
        """The same verdict as a refusal; ``reason`` follows the metric."""
        return replace(self, verdict=FAIL, reason=f"{self.title} {reason}")


def unjudged(verdicts: Iterable[Verdict]) -> list[str]:
    """A warning for each rule that was not applied to all records, or to none of its slices."""
    by_rule: dict[str, set[str]] = {}
    whole = []
    for each in verdicts:
        if each.slice != ALL:
            by_rule.setdefault(each.rule, set()).add(each.verdict)
        elif each.verdict == TOO_FEW:
            whole.append(f"{each.rule} was not applied, as too_few accepts: {each.reason}")
    return whole + [
        f"{rule} was applied to no slice, because each has too few records, or one class only for "
        "such as AUC, or no weights: lower `least`, or evaluate on more"
        for rule, found in by_rule.items()
        if found == {TOO_FEW}
    ]


def verdicts_of(
    rule: Rule, name: str, slicings: Sequence[Sums], *, higher_is_better: bool = True
) -> list[Verdict]:
    """The verdicts of a rule on the metric ``name`` in every slice of ``slicings``.

    ``higher_is_better`` is for rules that compare.
    """
    places = [(sums, number) for sums in slicings for number in range(len(sums.slicing.names))]
    if rule.compares:
        return _compared(rule, name, places, 1 if higher_is_better else -1)
    found = []
    for sums, number in places:
        seen = _seen(rule, name, sums, number)
        is_defined = name not in sums.figures(CANDIDATE, number).undefined
        enough = seen.slice == ALL or seen.records >= rule.least
        few = _too_few(rule, seen, sums.groups(number))
        found.append(bounded(rule, seen) if is_defined and enough else few)
    return found


def _compared(
    rule: Rule, name: str, places: Sequence[tuple[Sums, int]], sign: int
) -> list[Verdict]:
    """``sign`` is -1 where less is better."""
    verdicts, gains = [], {}
    other = BASELINE if rule.kind == RuleKind.NO_WORSE else TRIVIAL
    for place, (sums, number) in enumerate(places):
        ours, theirs = sums.figures(CANDIDATE, number), sums.figures(other, number)
        difference = sums.difference(name, number, other)
        seen = replace(
            _seen(rule, name, sums, number),
            bound=-sign * rule.by,
            other=other,
            baseline=theirs.values[name],
            difference=difference.interval(rule.level),
        )
        if not math.isfinite(seen.value) and math.isfinite(theirs.values[name]):
            seen = seen.failed(_not_finite(seen))
        elif seen.records < rule.least or not difference.is_known or name in ours.undefined:
            seen = _too_few(rule, seen, sums.groups(number))
        else:
            gains[place] = replace(difference, value=sign * difference.value)
        verdicts.append(seen)
    if other == TRIVIAL:
        for place, gain in gains.items():
            verdicts[place] = _of_advantage(rule, verdicts[place], gain)
        return verdicts
    adjusted = holm([gain.probability_below(-rule.by) for gain in gains.values()])
    for (place, gain), probability in zip(gains.items(), adjusted, strict=True):
        verdicts[place] = _of_gain(rule, verdicts[place], gain, probability)
    return verdicts


def of_batches(rule: Rule, name: str, value: float, records: int) -> Verdict:
    """The verdict of a bound on a value that has no interval, as it is measured by batches."""
    assert rule.bound is not None
    seen = Verdict(
        rule=str(rule),
        bound=rule.bound,
        metric=name,
        slice=ALL,
        records=records,
        value=value,
        interval=(math.nan, math.nan),
    )
    return bounded(rule, seen)


def bounded(rule: Rule, seen: Verdict) -> Verdict:
    """The verdict of a bound on the value that was ``seen``."""
    below = rule.kind == RuleKind.AT_LEAST
    if not math.isfinite(seen.value):
        return seen.failed(_not_finite(seen))
    if seen.value >= seen.bound if below else seen.value <= seen.bound:
        return seen
    return seen.failed(
        f"is {shown(seen.value, seen.bound)}, {'below' if below else 'above'} the threshold of "
        f"{seen.bound:g}: train longer, change the model, or {'lower' if below else 'raise'} the "
        "threshold"
    )


def _of_gain(rule: Rule, seen: Verdict, gain: Estimate, probability: float) -> Verdict:
    """The verdict of a comparison by what the model is better; less than 0 is a loss."""
    seen = replace(seen, detectable=gain.detectable(rule.level), probability=probability)
    if probability >= rule.level:
        return seen
    assert seen.baseline is not None
    high, low = (-each for each in gain.interval(rule.level))
    return seen.failed(
        f"is {shown(seen.value, seen.baseline)}, and {shown(seen.baseline, seen.value)} of the "
        f"baseline: worse by {shown(-gain.value)} ({100 * (1 - rule.level):g} % interval "
        f"{shown(low)} to {shown(high)}, {seen.records:,} records)"
        + (f", where {rule.by:g} is allowed" if rule.by else "")
    )


def _of_advantage(rule: Rule, seen: Verdict, gain: Estimate) -> Verdict:
    """The verdict by how much better the model is than the trivial one, which must be shown.

    As each slice must show it, there is no correction for their number: R. Berger, Multiparameter
    Hypothesis Testing and Acceptance Sampling, 1982.
    """
    probability = replace(gain, value=-gain.value).probability_below(0.0)
    seen = replace(seen, detectable=gain.detectable(rule.level), probability=probability)
    if probability < rule.level:
        return seen
    assert seen.baseline is not None
    return seen.failed(
        f"is {shown(seen.value, seen.baseline)}, and {shown(seen.baseline, seen.value)} by the "
        f"best constant prediction: {seen.records:,} records do not show that the model is better "
        f"(p = {probability:.2f}); look at the inputs, train longer, or evaluate on more"
    )


def _seen(rule: Rule, name: str, sums: Sums, number: int) -> Verdict:
    """What does not depend on what the rule decides."""
    found = sums.estimate(CANDIDATE, name, number)
    return Verdict(
        rule=str(rule),
        bound=rule.bound if rule.bound is not None else 0.0,
        metric=name,
        slice=sums.slicing.names[number],
        records=sums.records(number),
        value=found.value,
        interval=found.interval(rule.level),
    )


def _too_few(rule: Rule, seen: Verdict, groups: int) -> Verdict:
    # Without a bound for all records, a model would pass unseen.
    always = not rule.compares and seen.slice == ALL
    default = Choice.REFUSE if seen.slice == ALL else Choice.ACCEPT
    is_accepted = (rule.too_few or default) == Choice.ACCEPT and not always
    few_groups = groups < min(seen.records, FEWEST_GROUPS)
    in_groups = f" in {counted(groups, 'group')}" if few_groups else ""
    least = "" if always else f"at least {rule.least}, in {FEWEST_GROUPS} groups, and "
    found = seen.failed(
        f"cannot be judged by {seen.records:,} records{in_groups} ({least}both classes for such as "
        "AUC, and weights above 0): evaluate on more"
        + ("" if always or is_accepted else ", or accept it by too_few")
    )
    return replace(found, verdict=TOO_FEW) if is_accepted else found


def _not_finite(seen: Verdict) -> str:
    return f"is {seen.value}, no finite number: look for missing values in the records of the split"


def shown(value: float, apart_from: float = math.nan) -> str:
    """A number with four decimals, or as many as tell it from 0 and from another number."""
    for decimals in range(4, 12):
        text = f"{value:.{decimals}f}"
        if float(text) != apart_from and math.isclose(float(text), value, rel_tol=0.2):
            break
    return text
