"""Evaluate a trained model on every record of a split, and judge it by the rules of a gate."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from aerotrain.contract.errors import FinalError, counted, nearest
from aerotrain.contract.gate import SERVING, Choice, RuleKind
from aerotrain.contract.layout import CARD, CARD_DATA, METRICS
from aerotrain.contract.steps import EvaluateArguments, Format
from aerotrain.data.dataset import (
    TRAIN_SPLIT,
    Dataset,
    Schema,
    Split,
    json_text,
    load_dataset,
    load_statistics,
)
from aerotrain.evaluation.card import card
from aerotrain.evaluation.diagnostics import SAMPLE, Diagnostics, copied, leaks_of
from aerotrain.evaluation.gate import Gate, Outcome, check_rule_of_batches, has_metrics_of_records
from aerotrain.evaluation.importance import importance_of
from aerotrain.evaluation.records import Predictor, content_of, reads_inputs
from aerotrain.evaluation.trivial import with_trivial
from aerotrain.evaluation.verdicts import TOO_FEW, of_batches, shown, unjudged
from aerotrain.replica import Replica
from aerotrain.serving.alias import served_version
from aerotrain.serving.classes import check_classes
from aerotrain.serving.servable import Servable
from aerotrain.serving.served import Served
from aerotrain.serving.versions import model_name
from aerotrain.store import MANIFEST, CorruptError, MissingError, open_store
from aerotrain.store.manifest import Manifest
from aerotrain.training.input.batches import (
    batch_spec,
    every_record,
    first_records,
    parse,
    streamed,
)
from aerotrain.training.input.shards import enough, split_of
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.error_messages import errors_translated
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.steps.state import numbers

#: The version of the format of the metrics.
VERSION = 2

#: Where this key has a value in the result, the task is skipped, and the value says why.
SKIPPED = "skipped"


def run(replica: Replica) -> dict[str, Any]:
    """Evaluate the model; write the metrics and the card to the store, whether they pass or not.

    Returns:
        The model's metrics by name, the loss among them.

    Raises:
        FinalError: a metric is no finite number; a rule refuses the model, or names something that
            does not exist; the baseline cannot be loaded, or does not fit the data.
    """
    arguments = EvaluateArguments.from_dict(replica.job.arguments)
    model = arguments.model if arguments.model_format is None else trained_model_of(arguments.model)
    trained, dataset = ModelManifest.load(model), load_dataset(arguments.data)
    served = served_version(replica.job.store)
    named = served if arguments.baseline == SERVING else arguments.baseline
    baseline = named if arguments.compares else None
    outcome = evaluate(replica, arguments, trained, dataset, baseline)
    failures, warnings = reasons(arguments, outcome, baseline)
    warnings += trained.code_warnings()
    document = {
        "version": VERSION,
        "split": arguments.split,
        "records": outcome.records,
        "metrics": outcome.metrics,
        "intervals": outcome.intervals,
        "by_batches": dict.fromkeys(outcome.by_batches, arguments.batch_size),
        "baseline": {"url": baseline, "metrics": outcome.baseline} if baseline else None,
        "served": served,
        "trivial": outcome.trivial,
        "data": {"records": dataset.records, "rejected": dataset.rejected},
        "thresholds": dict(arguments.thresholds),
        "verdicts": [each.to_dict() for each in outcome.verdicts],
        "failures": failures,
        "warnings": warnings,
        "passed": not failures,
        "candidate": candidate_of(replica, arguments, model, trained),
    }
    store = open_store(replica.job.prefix)
    whole = {**document, "outputs": outcome.outputs, "importance": outcome.importance}
    store.put(CARD_DATA, json_text(whole).encode())
    store.put(CARD, card(whole, f"{model_name(replica.job.store)}, run {replica.job.run}").encode())
    store.put(METRICS, json_text(document).encode())
    for each in warnings:
        print(f"warning: {each}", flush=True)
    print(" ".join(f"{name}={shown(value)}" for name, value in outcome.metrics.items()), flush=True)
    for verdict in outcome.verdicts:
        if verdict.verdict == TOO_FEW:
            few = f"{verdict.slice} cannot be judged by its {counted(verdict.records, 'record')}"
            print(f"{verdict.rule}: {few}", flush=True)
    if not failures:
        return dict(outcome.metrics)
    reason = refused(failures)
    if arguments.on_fail == "skip":
        print(f"skipped: {reason}", flush=True)
        return {**outcome.metrics, SKIPPED: reason}
    raise FinalError(f"{reason}; the card has all metrics: {replica.job.prefix}/{CARD}")


def reasons(
    arguments: EvaluateArguments, outcome: Outcome, baseline: str | None
) -> tuple[list[str], list[str]]:
    """The reasons against the model, and the warnings, as sentences."""
    failures = [
        f"{name} is {value}, no finite number: look for missing values in the records of the split"
        for name, value in outcome.metrics.items()
        if not math.isfinite(value)
    ]
    failures += outcome.failures
    warnings = [*unjudged(outcome.verdicts), *outcome.warnings]
    if outcome.copies:
        warnings.append(
            f"{outcome.copies:.0%} of the records equal another one: equal records count as one "
            "in intervals and comparisons; remove copies from the data, or name the column that "
            "they share as group"
        )
    if outcome.by_batches:
        warnings.append(
            f"{', '.join(outcome.by_batches)}: measured by batches of {arguments.batch_size} "
            "records, as Keras's evaluate does, as it is no sum over records that is known; so "
            "there is no interval, and another batch size may give another value"
        )
    (failures if arguments.leakage == Choice.REFUSE else warnings).extend(outcome.leaks)
    if arguments.compares and baseline is None:
        first = "there is no exported version to compare with"
        if arguments.first_run == Choice.REFUSE:
            failures.append(f"{first}: export one, or accept the first model by first_run")
        else:
            rules = "; ".join(str(r) for r in arguments.rules if r.kind == RuleKind.NO_WORSE)
            warnings.append(f"{first}, so this rule was not applied: {rules}")
    return list(dict.fromkeys(failures)), warnings


def refused(failures: Sequence[str]) -> str:
    """A short reason. Of several failures, each is also a line of the log."""
    if len(failures) == 1:
        return failures[0]
    for each in failures:
        print(f"refused: {each}", flush=True)
    return f"{len(failures)} reasons against the model, each a line above; the first: {failures[0]}"


def trained_model_of(version: str) -> str:
    """The URL of the trained model of which an exported version was made."""
    try:
        return str(Manifest.from_json(open_store(version).get(MANIFEST)).about["model"])
    except (MissingError, CorruptError) as error:
        raise FinalError(f"the version {version} cannot be loaded: {error}") from error


def candidate_of(
    replica: Replica, arguments: EvaluateArguments, model: str, trained: ModelManifest
) -> dict[str, Any]:
    """What the model is made of, for people."""
    started = trained.started_from
    exported = {"version": arguments.model, "format": arguments.model_format}
    return {
        "run": replica.job.run,
        "model": model,
        **(exported if arguments.model_format else {}),
        "module": trained.module,
        "code": trained.code,
        "hparams": ", ".join(f"{name}={value!r}" for name, value in trained.hparams.items()),
        "strategy": trained.strategy,
        "steps": trained.step,
        "trained on": trained.data,
        "evaluated on": arguments.data,
        **({"started from": started["model"]} if started and started["model"] else {}),
        **trained.environment,
    }


def evaluate(
    replica: Replica,
    arguments: EvaluateArguments,
    trained: ModelManifest,
    dataset: Dataset,
    baseline: str | None,
) -> Outcome:
    """The outcome over all records of the split, each once."""
    code = UserCode.load(trained.module, trained.data)
    split = _checked_split(arguments, dataset)
    with (
        errors_translated(code, dataset, arguments.data, arguments.split, replica.scratch),
        streamed(arguments.data, split.shards, replica.scratch) as files,
    ):
        model = trained.restore(code, batch_spec(dataset.schema, code.transform), replica.scratch)
        if not has_metrics_of_records(model):
            batches = partial(every_record, files, dataset.schema, code.transform)
            return by_keras(model, batches, arguments, split)
        statistics = load_statistics(arguments.data)
        gate = Gate(model, arguments.rules, dataset.schema, statistics, code.functions)
        served, exported = _versions(replica, arguments, baseline, dataset)
        label_names = dataset.names.get(dataset.label, ())
        predictor = Predictor(
            model,
            served,
            dataset.schema,
            code.transform,
            exported=exported,
            columns=[*gate.columns, *([dataset.label] if label_names else [])],
            group=arguments.group,
        )
        diagnostics = Diagnostics(label_names, dataset.label)
        y, weight, contents = _of_training(code, dataset, arguments, replica.scratch)
        blocks = predictor.blocks(files, split.records, arguments.batch_size)
        watched = with_trivial(diagnostics.watched(blocks), y, weight)
        outcome = gate.judge(watched, compared=served is not None, batch_size=arguments.batch_size)
        warnings = diagnostics.warnings()
        if contents is not None:
            warnings += copied(arguments.split, *predictor.chosen(np.asarray(contents)))
        outcome = replace(
            outcome, copies=predictor.copies, warnings=warnings, outputs=diagnostics.outputs
        )
        try:
            servable = Servable(model, code.transform, dataset.schema)
        except FinalError:
            return outcome  # predictions depend on no column: the export says so
        # An image is a single value, too.
        columns = {name: each for name, each in servable.needed.items() if not each.shape}
        are_all = 1 < len(columns) == len(servable.needed) and not reads_inputs(model)
        schema = dataset.schema if are_all else columns
        first = _first_of(split, arguments.data, schema, replica.scratch) if columns else {}
        values = {name: np.asarray(first[name]) for name in columns}
        found: dict[str, Any] = {"leaks": leaks_of(diagnostics, values)}
        if are_all and outcome.trivial:
            size = arguments.batch_size
            found["importance"] = importance_of(gate, servable, first, batch_size=size)
        return replace(outcome, **found)


def _of_training(
    code: UserCode, dataset: Dataset, arguments: EvaluateArguments, scratch: Path
) -> tuple[Any, Any, Any]:
    """The targets, their weights and the contents of the first records that models are trained on.

    A data set without a train split is compared with the best constant of its own records, which
    are no copies: the contents are None then.
    """
    is_other = arguments.split != TRAIN_SPLIT and TRAIN_SPLIT in dataset.splits
    split = dataset.splits[TRAIN_SPLIT if is_other else arguments.split]
    known = _first_of(split, arguments.data, dataset.schema, scratch)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(code.transform(known))
    return y, weight, content_of((x, y)) if is_other else None


def _first_of(split: Split, data: str, schema: Schema, scratch: Path) -> dict[str, Any]:
    """The columns ``schema`` of the first records of a split of the data set at ``data``."""
    with streamed(data, enough(split.shards, SAMPLE), scratch) as files:
        return parse(first_records(files, SAMPLE), schema)


def _check_batches_suffice(arguments: EvaluateArguments) -> None:
    """Raise ``FinalError`` if an argument needs predictions of single records."""
    by_batches = "the model computes its metrics by batches, in its own test_step, which"
    if arguments.model_format is not None:
        raise FinalError(
            f"{by_batches} knows no format: evaluate it without "
            f"model_format={arguments.model_format!r}"
        )
    if arguments.leakage == Choice.REFUSE:
        raise FinalError(
            f'{by_batches} shows no targets of records: evaluate it without leakage="refuse"'
        )


def _versions(
    replica: Replica, arguments: EvaluateArguments, baseline: str | None, dataset: Dataset
) -> tuple[Served | None, Served | None]:
    """The baseline, and the exported version whose format is evaluated; each None if not needed."""
    served = exported = None
    if baseline:
        folder = replica.scratch / "baseline"
        served = Served.fetched(baseline, folder, dataset.schema, role="the baseline")
        check_classes(served.title, folder, dataset.names.get(dataset.label, ()))
    if arguments.model_format is not None:
        exported = Served.fetched(
            arguments.model,
            replica.scratch / "exported",
            dataset.schema,
            role="the version",
            model_format=Format(arguments.model_format),
        )
    return served, exported


def by_keras(
    model: Any, batches: Callable[..., Any], arguments: EvaluateArguments, split: Split
) -> Outcome:
    """The outcome by the model's own ``evaluate``, for which only bounds can be rules.

    Raises:
        FinalError: a rule compares, or has slices; or names no metric of the model.
    """
    _check_batches_suffice(arguments)
    every = batches(records=split.records, batch_size=arguments.batch_size)
    metrics: Mapping[str, float] = numbers(model.evaluate(every, return_dict=True, verbose=0))
    why = "this model has its own test_step, or metrics that layers update, or is one of tf_keras"
    verdicts = []
    for rule in arguments.rules:
        check_rule_of_batches(rule, why)
        if rule.metric not in metrics:
            raise FinalError(
                f"{rule.metric!r} is not a metric of the model{nearest(rule.metric, metrics)}; it "
                f"has {', '.join(metrics)}"
            )
        verdicts.append(of_batches(rule, rule.metric, metrics[rule.metric], split.records))
    by_batches = list(metrics)
    return Outcome(records=split.records, metrics=metrics, verdicts=verdicts, by_batches=by_batches)


def _checked_split(arguments: EvaluateArguments, dataset: Dataset) -> Split:
    """The split that is evaluated, if the data set has it and the column ``group``."""
    group, split = arguments.group, split_of(dataset, arguments.split)
    if group is None:
        return split
    if group not in dataset.schema:
        raise FinalError(
            f"there is no column {group!r} to group records by{nearest(group, dataset.schema)}; "
            f"the data set has {', '.join(sorted(dataset.schema))}"
        )
    if shape := dataset.schema[group].shape:
        raise FinalError(
            f"the column {group!r} has values of shape {shape}: records are grouped by a column of "
            "single values"
        )
    return split
