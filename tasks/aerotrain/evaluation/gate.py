"""The evaluation of a model by rules: its figures by slice, and a verdict of each rule."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.gate import Rule, RuleKind, columns_of
from aerotrain.data.dataset import Schema
from aerotrain.evaluation.metrics import CellMetrics, States, extra_metrics, name_of, output_names
from aerotrain.evaluation.records import BASELINE, CANDIDATE, TRIVIAL, Block
from aerotrain.evaluation.slices import Slicing, Statistics, check_slice, slicing_of
from aerotrain.evaluation.verdicts import FAIL, Sums, Verdict, of_batches, verdicts_of
from aerotrain.training.internals import keras3
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.state import MetricState

Functions = Mapping[str, Callable[..., Any]]

#: The level of the intervals that belong to no rule.
_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an evaluation has found.

    ``metrics`` and ``intervals`` are those of the model over all records, ``baseline`` are the
    metrics of the baseline, and ``trivial`` those of the best constant prediction, each empty
    without one. Those of ``by_batches`` are no sums over records, and have no interval. ``copies``
    is the share of records that equal another one, if these are copies. ``warnings``, and ``leaks``
    of columns that give the label away, are sentences; ``outputs`` is what each output shows, as
    JSON by its name, and ``importance`` that of columns, None where it is not known.
    """

    records: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    trivial: Mapping[str, float] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()
    by_batches: Sequence[str] = ()
    copies: float = 0.0
    warnings: Sequence[str] = ()
    leaks: Sequence[str] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    importance: Mapping[str, Any] | None = None

    @property
    def failures(self) -> list[str]:
        """One sentence for each rule and slice that is refused."""
        return [each.reason for each in self.verdicts if each.verdict == FAIL]


class Gate:
    """Rules for a compiled model on a data set.

    ``functions`` are those of the user's module.

    Raises:
        FinalError: there is no such metric, output or column; or a rule compares a metric of which
            it is not known whether more is better.
    """

    def __init__(
        self,
        model: keras.Model,
        rules: Sequence[Rule],
        schema: Schema,
        statistics: Statistics,
        functions: Functions,
    ) -> None:
        compiled = MetricState(model).measured_names()
        assert compiled is not None, "a model with its own test_step has no metrics of records"
        self._better = check_rules(model, rules, compiled, schema, functions)
        self._rules = [(rule, name_of(rule, compiled)) for rule in rules]
        self._metrics = CellMetrics(model, extra_metrics(rules, compiled, functions))
        self.columns = sorted({each for rule in rules for each in columns_of(rule.slices)})
        # Each slicing, and the names of the metrics that rules judge in its slices.
        self._slicings: dict[str, tuple[Slicing, dict[str, None]]] = {}
        for rule, name in self._rules:
            for given in rule.slices:
                slicing = slicing_of(given, schema, statistics)
                self._slicings.setdefault(repr(given), (slicing, {}))[1][name] = None

    def judge(self, blocks: Iterable[Block], *, compared: bool, batch_size: int) -> Outcome:
        """The outcome over all records of ``blocks``, which consist of batches of ``batch_size``.

        Where nothing is ``compared``, the blocks have no predictions of a baseline, and rules that
        need them have no verdict.

        Raises:
            FinalError: a rule compares a metric that is no sum over records, or has slices of it;
                or with a trivial model, which the first block does not have.
        """
        # The first block shows whether there is a trivial one.
        models = [CANDIDATE, BASELINE] if compared else [CANDIDATE]
        whole = Sums(self._metrics, None, Slicing(), models)
        by_slicing = {
            key: Sums(self._metrics, tuple(names), slicing, models)
            for key, (slicing, names) in self._slicings.items()
        }
        by_batches: list[str] = []
        measured: dict[str, States] = {}
        for number, block in enumerate(blocks):
            if not number:
                by_batches = self._begin(block)
                measured = dict.fromkeys(models if by_batches else (), self._metrics.zero)
                if TRIVIAL in block.predictions:
                    models.append(TRIVIAL)
            for each in (whole, *by_slicing.values()):
                each.add(block)
            for model, states in measured.items():
                measured[model] = self._metrics.measure(states, block.of(model), batch_size)
        values = {model: dict(whole.figures(model, 0).values) for model in models}
        for model, states in measured.items():
            found = self._metrics.results([np.asarray(each)[None] for each in states], None)
            values[model] |= {name: float(found[name][0]) for name in by_batches}
        ours, records = values[CANDIDATE], whole.records(0)
        verdicts: list[Verdict] = []
        for rule, name in self._rules:
            if name in by_batches:
                verdicts.append(of_batches(rule, name, ours[name], records))
            elif compared or rule.kind != RuleKind.NO_WORSE:
                sums = [whole, *(by_slicing[repr(each)] for each in rule.slices)]
                is_better = self._better.get(name, True)
                verdicts += verdicts_of(rule, name, sums, higher_is_better=is_better)
        return Outcome(
            records=records,
            metrics=ours,
            intervals={
                name: whole.estimate(CANDIDATE, name, 0).interval(_LEVEL)
                for name in ours
                if name not in by_batches
            },
            baseline=values.get(BASELINE, {}),
            trivial={n: v for n, v in values.get(TRIVIAL, {}).items() if n not in by_batches},
            verdicts=verdicts,
            by_batches=by_batches,
        )

    def _begin(self, block: Block) -> list[str]:
        """Build the metrics for the first block; returns those that are no sums over records.

        Raises:
            FinalError: as ``judge``.
        """
        self._metrics.build(block.y, block.predictions[CANDIDATE], block.weight)
        by_batches = self._metrics.no_sums(block.of(CANDIDATE))
        for rule, name in self._rules:
            if rule.kind == RuleKind.BETTER_THAN_TRIVIAL and TRIVIAL not in block.predictions:
                raise FinalError(
                    f"{rule} needs targets that are classes, or of the shape of the predictions: "
                    "use at_least or at_most"
                )
            if name in by_batches:
                check_rule_of_batches(
                    rule,
                    f"{name!r} of a batch is not made of those of its records, as those of "
                    "keras.metrics and of functions that return a number for each record are",
                )
        return by_batches

    @property
    def main_metric(self) -> tuple[str, bool]:
        """The metric of the first rule, or else the loss, and whether more of it is better."""
        for rule, name in self._rules:
            return name, self._better.get(name, rule.kind == RuleKind.AT_LEAST)
        return "loss", False

    def measured(self, block: Block, name: str) -> float:
        """The metric of that name of the records of ``block``, after ``judge``."""
        metrics, size = self._metrics, len(block.groups)
        states = metrics.measure(metrics.zero, block.of(CANDIDATE), batch_size=size)
        return float(metrics.results([np.asarray(e)[None] for e in states], None)[name][0])


def has_metrics_of_records(model: keras.Model) -> bool:
    """Whether the metrics are sums over records, which follow from targets and predictions.

    Not so if the model has its own ``test_step``, or metrics that its layers update.
    """
    if KERAS.name != "keras" or type(model).test_step is not keras.Model.test_step:
        return False
    return not MetricState(model).in_call


def check_rule_of_batches(rule: Rule, why: str) -> None:
    """Check the rule for a metric that has no values of single records, as ``why`` says.

    Raises:
        FinalError: it compares, or has slices.
    """
    if rule.compares or rule.slices:
        raise FinalError(
            f"{rule} needs values of single records, and {why}: use at_least or at_most without "
            "slices"
        )


def check_rules(
    model: keras.Model,
    rules: Sequence[Rule],
    compiled: Sequence[str],
    schema: Schema,
    functions: Functions,
) -> dict[str, bool]:
    """Check that the model and the data have what the rules name; raises as ``Gate`` does.

    ``compiled`` are the metrics that ``evaluate`` measures.

    Returns:
        Whether more is better, for the metric of each rule that compares.
    """
    outputs = output_names(model)
    for rule in rules:
        if rule.metric not in compiled:
            _check_output(rule, outputs, compiled)
        for given in rule.slices:
            check_slice(given, schema)
    extra = extra_metrics(rules, compiled, functions)
    better = {}
    for rule in rules:
        if not rule.compares:
            continue
        name = name_of(rule, compiled)
        if rule.better is not None:
            better[name] = rule.better == "higher"
            continue
        known = (
            keras3.mode_of(extra[name][0])
            if name in extra
            else keras3.monitor_mode(model, f"val_{name}")
        )
        if known is None:
            raise FinalError(
                f"Keras does not know whether more or less of {name!r} is better: say it, as "
                f'{rule.kind}("{rule.metric}", better="higher")'
            )
        better[name] = known == "max"
    return better


def _check_output(rule: Rule, names: Sequence[str], compiled: Sequence[str]) -> None:
    """Check that a rule for one of several outputs names it."""
    if rule.output is not None and names and rule.output not in names:
        raise FinalError(f"the model has no output {rule.output!r}; it has {', '.join(names)}")
    if rule.output is None and len(names) > 1:
        raise FinalError(
            f"{rule.metric!r} is not a metric of the model{nearest(rule.metric, compiled)}; it "
            f"has {', '.join(compiled)}. One that is not compiled is of one of the outputs "
            f'{", ".join(names)}: say of which, as output="{names[0]}"'
        )
