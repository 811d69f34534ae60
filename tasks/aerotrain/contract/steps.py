"""The arguments of each step, as Airflow passes them to a replica."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.formats import Format, formats_of
from aerotrain.contract.gate import SERVING, Choice, Rule, RuleKind, check_gate
from aerotrain.contract.job import Deadlines, Job, Restarts
from aerotrain.contract.options import Arguments, check_types, is_number
from aerotrain.contract.predicting import (
    PredictArguments,
    PredictFinalizeArguments,
    PredictPartitionArguments,
)
from aerotrain.contract.preparing import FinalizeArguments, PartitionArguments, PlanArguments
from aerotrain.contract.replicas import Role
from aerotrain.contract.serving_check import ServeCheckArguments
from aerotrain.contract.training import TrainArguments

#: Seconds within which the check of a training must start, and end.
_CHECK_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class CheckArguments(Arguments):
    """Check whether a training and its later steps could end, without waiting for its data set.

    ``job`` describes the training. ``prepare`` are the arguments of ``PlanArguments`` for data that
    are not prepared yet: the training is tried on the first records of their source. Where it is
    empty, it is tried on those of the data set that the training names. ``evaluations`` and
    ``exports`` are the arguments of later steps that take its model, which are tried, too.

    Raises:
        SpecError: a value is not accepted; the message says what was expected.
    """

    TITLE: ClassVar = "check"

    job: Mapping[str, Any]
    prepare: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    exports: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        check_types(self, job=Mapping, prepare=Mapping)


def check_of(
    training: Job,
    prepare: Mapping[str, Any],
    *,
    name: str,
    task: str,
    evaluations: Sequence[Mapping[str, Any]] = (),
    exports: Sequence[Mapping[str, Any]] = (),
) -> Job:
    """The job that checks a training: one replica with the chief's environment, without devices.

    It is not restarted, because the training makes the same checks when it starts.
    """
    chief = training.replica(Role.CHIEF)
    without = replace(chief, resources=replace(chief.resources, gpu=0, tpu=0))
    described = replace(training, code=None)
    return replace(
        training,
        name=name,
        task=task,
        module="aerotrain.check",
        strategy="one_device",
        min_workers=None,
        replicas=(without,),
        arguments={
            "job": json.loads(described.to_json()),
            "prepare": dict(prepare),
            "evaluations": [dict(each) for each in evaluations],
            "exports": [dict(each) for each in exports],
        },
        deadlines=Deadlines(start=_CHECK_SECONDS, run=_CHECK_SECONDS),
        restarts=Restarts(**{each.name: 0 for each in fields(Restarts)}),
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(Arguments):
    """Evaluate the model of the training ``model`` on one split of the data set ``data``.

    ``model`` is the URL of the training's folder, or of ``model.json`` in it. With
    ``model_format``, it is the URL of an exported version, which is judged in this format.

    ``thresholds`` maps names of metrics to the lowest accepted value. ``gate`` has other rules, as
    ``aerotrain.contract.gate`` describes them. A rule ``no_worse`` compares the model with
    ``baseline``: the URL of an exported version, or ``serving`` for the served one of this
    pipeline. Where that has no version yet, ``first_run`` says whether to ``accept`` or to
    ``refuse`` the model. ``group`` is a column; records with the same value in it depend on each
    other, such as those of one user. ``leakage`` says whether to ``accept`` a model, with a
    warning, or to ``refuse`` it if one of its columns alone predicts the label. With ``on_fail``
    ``skip``, a refused model is no error: the task is skipped, and later ones with it.

    Raises:
        SpecError: a value is not accepted; the message says what was expected.
    """

    TITLE: ClassVar = "evaluate"

    model: str
    data: str
    split: str = "test"
    model_format: str | None = None
    batch_size: int = 256
    thresholds: Mapping[str, float] = field(default_factory=dict)
    gate: Sequence[Mapping[str, Any]] = ()
    baseline: str = SERVING
    first_run: str | None = None
    group: str | None = None
    leakage: str = Choice.ACCEPT
    on_fail: str = "fail"

    def __post_init__(self) -> None:
        check_types(self, model=str, data=str, split=str, batch_size=int, thresholds=Mapping)
        check_types(self, baseline=str)
        if self.model_format not in (None, *Format):
            raise SpecError(
                f"model_format of evaluate must be one of {', '.join(Format)}, "
                f"got {self.model_format!r}"
            )
        if self.model_format and not self.model.rstrip("/").rpartition("/")[2].isdigit():
            raise SpecError(
                "evaluate with model_format judges an exported version: pass what export returned, "
                f"got {self.model!r}"
            )
        if self.batch_size < 1:
            raise SpecError(f"batch_size of evaluate must be 1 or more, got {self.batch_size}")
        for metric, least in self.thresholds.items():
            if not is_number(least):
                raise SpecError(f"the threshold of {metric!r} must be a number, got {least!r}")
        if isinstance(self.gate, str) or not isinstance(self.gate, Sequence):
            raise SpecError(f"gate of evaluate must be a list of rules, got {self.gate!r}")
        if self.group is not None and not isinstance(self.group, str):
            raise SpecError(f"group of evaluate must be the name of a column, got {self.group!r}")
        if self.on_fail not in ("fail", "skip"):
            raise SpecError(f"on_fail of evaluate must be 'fail' or 'skip', got {self.on_fail!r}")
        if self.first_run not in (None, *Choice):
            raise SpecError(
                f"first_run of evaluate must be 'accept' or 'refuse', got {self.first_run!r}"
            )
        if self.leakage not in tuple(Choice):
            raise SpecError(
                f"leakage of evaluate must be 'accept' or 'refuse', got {self.leakage!r}"
            )
        check_gate(self.rules)
        if self.compares and self.baseline == SERVING and self.first_run is None:
            raise SpecError(
                "no_worse compares with the version that is served: say what happens while there "
                'is none, by first_run="accept" or first_run="refuse"'
            )

    @property
    def rules(self) -> list[Rule]:
        """The rules, those of ``thresholds`` among them."""
        bounds = [
            Rule(kind=RuleKind.AT_LEAST, metric=metric, bound=least)
            for metric, least in self.thresholds.items()
        ]
        return [*bounds, *(Rule.from_dict(each) for each in self.gate)]

    @property
    def compares(self) -> bool:
        """Whether a rule needs a baseline."""
        return any(rule.kind == RuleKind.NO_WORSE for rule in self.rules)


@dataclass(frozen=True, kw_only=True)
class ExportArguments(Arguments):
    """Export the model of the training ``model``, verified on records of the data set ``data``.

    ``model`` is the URL of the training's folder, or of ``model.json`` in it.

    The exported model must give the predictions of the trained one for the first ``records``
    records of the split, or for all of them if it is None, within a bound of disk. With
    ``keras_file``, the file ``model.keras`` is written next to the SavedModel.

    ``formats`` are other formats of the same version, ``litert`` and ``onnx``: with the transform
    inside, and verified in their own runtime, on as many of the same records as fit into 256 MiB
    with their predictions. With ``quantize`` ``int8``, their weights and activations are integers
    of 8 bits. ``format_tolerance`` is the accepted difference of their predictions: of each value,
    absolute or relative, by default 0.0001; with ``quantize`` of the mean difference of an output,
    relative to its range, by default 0.05.

    Raises:
        SpecError: a value is not accepted; the message says what was expected.
    """

    TITLE: ClassVar = "export"

    model: str
    data: str
    split: str = "test"
    records: int | None = 64
    keras_file: bool = True
    formats: Sequence[str] = ()
    quantize: str | None = None
    format_tolerance: float | None = None

    def __post_init__(self) -> None:
        check_types(self, model=str, data=str, split=str, records=(int, type(None)))
        if not isinstance(self.keras_file, bool):
            raise SpecError(f"keras_file of export must be true or false, got {self.keras_file!r}")
        if self.records is not None and self.records < 1:
            raise SpecError(f"records of export must be 1 or more, got {self.records}")
        formats_of("export", self.formats, self.quantize)
        given = self.format_tolerance
        if given is not None and not (is_number(given) and given >= 0):
            raise SpecError(f"format_tolerance of export must be zero or more, got {given!r}")

    @property
    def other_formats(self) -> list[Format]:
        """The formats besides the SavedModel."""
        return formats_of("export", self.formats, self.quantize)


#: The arguments of every module of aerotrain that a job may run.
ARGUMENTS: Mapping[str, type[Arguments]] = {
    "aerotrain.data.prepare.plan": PlanArguments,
    "aerotrain.data.prepare.partition": PartitionArguments,
    "aerotrain.data.prepare.finalize": FinalizeArguments,
    "aerotrain.check": CheckArguments,
    "aerotrain.train": TrainArguments,
    "aerotrain.evaluate": EvaluateArguments,
    "aerotrain.export": ExportArguments,
    "aerotrain.serve_check": ServeCheckArguments,
    "aerotrain.prediction.plan": PredictArguments,
    "aerotrain.prediction.partition": PredictPartitionArguments,
    "aerotrain.prediction.finalize": PredictFinalizeArguments,
}
