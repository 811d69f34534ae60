"""The verdict of each rule in each slice."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from aerotrain.contract.errors import counted
from aerotrain.contract.gate import Choice, Rule, RuleKind
from aerotrain.evaluation.intervals import FEWEST_GROUPS, Estimate, holm
from aerotrain.evaluation.records import BASELINE, CANDIDATE
from aerotrain.evaluation.slices import ALL
from aerotrain.evaluation.sums import Sums

PASS, FAIL, TOO_FEW = "pass", "fail", "too few records"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a rule says of one slice.

    ``bound`` is that of the value, or of the difference if the rule compares.
    ``value`` and ``baseline`` are the metric of the two models, ``interval`` is that of the value,
    and ``difference`` that of the two models' difference, each of the rule's confidence.
    ``probability`` is that of such a loss, or a greater one, if the true one were the allowed one,
    after Holm's correction over the slices of the rule. ``detectable`` is the loss beyond the
    allowed one that the rule sees in 80 % of all such splits, without that correction.
    """

    rule: str
    bound: float
    metric: str
    slice: str
    records: int
    verdict: str
    value: float
    interval: tuple[float, float]
    baseline: float | None = None
    difference: tuple[float, float] | None = None
    probability: float | None = None
    detectable: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return asdict(self)


def unjudged(verdicts: Iterable[Verdict]) -> list[str]:
    """A warning for each rule that was not applied to all records, or to none of its slices."""
    by_rule: dict[str, list[str]] = {}
    whole = []
    for each in verdicts:
        if each.slice != ALL:
            by_rule.setdefault(each.rule, []).append(each.verdict)
        elif each.verdict == TOO_FEW:
            whole.append(f"{each.rule} was not applied, as too_few accepts: {each.reason}")
    return whole + [
        f"{rule} was applied to no slice, because each has too few records, or one class only for "
        "such as AUC, or no weights: lower `least`, or evaluate on more"
        for rule, found in by_rule.items()
        if set(found) == {TOO_FEW}
    ]


def verdicts_of(
    rule: Rule, name: str, slicings: Sequence[Sums], *, higher_is_better: bool = True
) -> list[Verdict]:
    """The verdicts of a rule on the metric ``name`` in every slice of ``slicings``.

    ``higher_is_better`` is for rules that compare.
    """
    places = [(sums, number) for sums in slicings for number in range(len(sums.slicing.names))]
    if rule.kind == RuleKind.NO_WORSE:
        return _compared(rule, name, places, 1 if higher_is_better else -1)
    found = []
    for sums, number in places:
        seen = _seen(rule, name, sums, number)
        is_defined = name not in sums.figures(CANDIDATE, number).undefined
        judged = is_defined and _has_enough(rule, seen)
        few = _too_few(rule, seen, sums.groups(number))
        found.append(bounded(rule, seen) if judged else few)
    return found


def _compared(
    rule: Rule, name: str, places: Sequence[tuple[Sums, int]], sign: int
) -> list[Verdict]:
    """``sign`` is -1 where less is better."""
    judged: list[tuple[dict[str, Any], Estimate] | Verdict] = []
    for sums, number in places:
        ours, theirs = sums.figures(CANDIDATE, number), sums.figures(BASELINE, number)
        difference = sums.difference(name, number)
        seen = _seen(rule, name, sums, number) | {
            "bound": -sign * rule.by,
            "baseline": theirs.values[name],
            "difference": difference.interval(rule.level),
        }
        if not math.isfinite(ours.values[name]) and math.isfinite(theirs.values[name]):
            judged.append(Verdict(**seen, verdict=FAIL, reason=_not_finite(seen)))
        elif not _has_enough(rule, seen) or not difference.is_known or name in ours.undefined:
            judged.append(_too_few(rule, seen, sums.groups(number)))
        else:
            judged.append((seen, replace(difference, value=sign * difference.value)))
    gains = [gain for _, gain in (each for each in judged if isinstance(each, tuple))]
    adjusted = iter(holm([gain.probability_below(-rule.by) for gain in gains]))
    return [
        each if isinstance(each, Verdict) else _of_gain(rule, *each, next(adjusted))
        for each in judged
    ]


def shown(value: float, apart_from: float = math.nan) -> str:
    """A number with four decimals, or as many as tell it from 0 and from another number."""
    for decimals in range(4, 12):
        text = f"{value:.{decimals}f}"
        if float(text) != apart_from and math.isclose(float(text), value, rel_tol=0.2):
            break
    return text


def of_batches(rule: Rule, name: str, value: float, records: int) -> Verdict:
    """The verdict of a bound on a value that has no interval, as it is measured by batches."""
    seen = {
        "rule": str(rule),
        "bound": rule.bound,
        "metric": name,
        "slice": ALL,
        "records": records,
        "value": value,
        "interval": (math.nan, math.nan),
    }
    return bounded(rule, seen)


def bounded(rule: Rule, seen: Mapping[str, Any]) -> Verdict:
    """The verdict of a bound; ``seen`` has those fields of it that the rule does not decide."""
    assert rule.bound is not None
    value, below = seen["value"], rule.kind == RuleKind.AT_LEAST
    if not math.isfinite(value):
        return Verdict(**seen, verdict=FAIL, reason=_not_finite(seen))
    if value >= rule.bound if below else value <= rule.bound:
        return Verdict(**seen, verdict=PASS)
    reason = (
        f"{_named(seen)} is {shown(value, rule.bound)}, {'below' if below else 'above'} the "
        f"threshold of {rule.bound:g}: train longer, change the model, or "
        f"{'lower' if below else 'raise'} the threshold"
    )
    return Verdict(**seen, verdict=FAIL, reason=reason)


def _of_gain(rule: Rule, seen: dict[str, Any], gain: Estimate, probability: float) -> Verdict:
    seen = {**seen, "detectable": gain.detectable(rule.level)}
    if probability >= rule.level:
        return Verdict(**seen, verdict=PASS, probability=probability)
    high, low = (-each for each in gain.interval(rule.level))
    ours, theirs = seen["value"], seen["baseline"]
    reason = (
        f"{_named(seen)} is {shown(ours, theirs)}, and {shown(theirs, ours)} of the baseline: "
        f"worse by {shown(-gain.value)} ({100 * (1 - rule.level):g} % interval {shown(low)} to "
        f"{shown(high)}, {seen['records']:,} records)"
        + (f", where {rule.by:g} is allowed" if rule.by else "")
    )
    return Verdict(**seen, verdict=FAIL, probability=probability, reason=reason)


def _seen(rule: Rule, name: str, sums: Sums, number: int) -> dict[str, Any]:
    """The fields of a verdict that the rule does not decide."""
    found = sums.estimate(CANDIDATE, name, number)
    return {
        "rule": str(rule),
        "bound": rule.bound if rule.bound is not None else 0.0,
        "metric": name,
        "slice": sums.slicing.names[number],
        "records": sums.records(number),
        "value": found.value,
        "interval": found.interval(rule.level),
    }


def _has_enough(rule: Rule, seen: Mapping[str, Any]) -> bool:
    return _is_always_judged(rule, seen) or bool(seen["records"] >= rule.least)


def _is_always_judged(rule: Rule, seen: Mapping[str, Any]) -> bool:
    """Whether it is a bound for all records, without which a model would pass unseen."""
    return rule.kind != RuleKind.NO_WORSE and seen["slice"] == ALL


def _too_few(rule: Rule, seen: dict[str, Any], groups: int) -> Verdict:
    always, records = _is_always_judged(rule, seen), seen["records"]
    default = Choice.REFUSE if seen["slice"] == ALL else Choice.ACCEPT
    is_accepted = (rule.too_few or default) == Choice.ACCEPT and not always
    in_groups = f" in {counted(groups, 'group')}" if groups < min(records, FEWEST_GROUPS) else ""
    least = "" if always else f"at least {rule.least}, in {FEWEST_GROUPS} groups, and "
    reason = (
        f"{_named(seen)} cannot be judged by {records:,} records{in_groups} ({least}both classes "
        "for such as AUC, and weights above 0): evaluate on more"
        + ("" if always or is_accepted else ", or accept it by too_few")
    )
    return Verdict(**seen, verdict=TOO_FEW if is_accepted else FAIL, reason=reason)


def _named(seen: Mapping[str, Any]) -> str:
    where = seen["slice"]
    return seen["metric"] if where == ALL else f"{seen['metric']} of {where}"


def _not_finite(seen: Mapping[str, Any]) -> str:
    return (
        f"{_named(seen)} is {seen['value']}, no finite number: look for missing values in the "
        "records of the split"
    )
