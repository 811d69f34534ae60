"""The arguments of each step, as Airflow passes them to a replica."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from string import Formatter
from typing import Annotated, Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.gate import SERVING, Choice, Rule, RuleKind, check_gate
from aerotrain.contract.job import Deadlines, Job, Restarts
from aerotrain.contract.options import check_strategy
from aerotrain.contract.preparing import (
    FinalizeArguments,
    PartitionArguments,
    PlanArguments,
    PredictArguments,
)
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import STRAGGLERS, TrainArguments
from aerotrain.contract.validation import Count, Limits, Positive, Validated

#: A server as a sidecar of the check: the name of its model, the folder of models in the scratch
#: folder, and its ports of REST and gRPC.
SIDECAR_MODEL, SERVED, REST_PORT, GRPC_PORT = "model", "served", 8501, 8500

_VersionUrl = Annotated[
    str,
    Limits(pattern=r".*/\d+/*", form="the URL of a version, such as s3://bucket/flats/serving/7"),
]

#: What a command may contain in braces.
PLACES = ("name", "folder", "rest_port", "grpc_port")


@dataclass(frozen=True, kw_only=True)
class ServeCheckArguments(Validated):
    """Check an exported version in a server.

    ``version`` is the URL of the version. ``command`` starts the server: ``{folder}`` in it is
    replaced by the folder of the versions of the model ``{name}``, and ``{rest_port}`` and
    ``{grpc_port}`` by the ports of REST and gRPC. Without a command, it is a server for
    development.

    The requests that the export carries must be answered with the predictions of the training. Then
    one record at a time is asked for, ``rate`` times a second for ``seconds`` seconds, by REST.
    ``p99`` is the longest accepted 99th percentile of the latencies, in milliseconds.
    """

    TITLE: ClassVar = "serve_check"

    version: _VersionUrl
    command: Annotated[Sequence[str], Limits(form="a list of words")] = ()
    rate: Positive = 50.0
    seconds: Positive = 5.0
    p99: Positive | None = None
    start: Positive = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        places = {place for word in self.command for _, place, *_ in Formatter().parse(word)}
        if unknown := places - {None, *PLACES}:
            raise SpecError(
                f"command of serve_check has {{{min(map(str, unknown))}}}, and can have "
                f"{', '.join(f'{{{each}}}' for each in PLACES)}"
            )


class Format(StrEnum):
    """A format of a model; each runs in a runtime of its own."""

    SAVEDMODEL = "savedmodel"
    LITERT = "litert"
    ONNX = "onnx"

    @property
    def file(self) -> str:
        """The model's file in the folder of a version, next to the SavedModel."""
        return _FILES[self]

    @property
    def packages(self) -> Sequence[str]:
        """The modules that convert to the format and run it; the extra of its name has them."""
        return _PACKAGES[self]


_FILES = {Format.LITERT: "model.tflite", Format.ONNX: "model.onnx"}
_PACKAGES: Mapping[Format, Sequence[str]] = {
    Format.SAVEDMODEL: (),
    Format.LITERT: ("ai_edge_litert",),
    Format.ONNX: ("onnx", "onnxruntime", "tf2onnx"),
}

#: Integers of 8 bits for weights and activations, scaled by the values of real records.
INT8 = "int8"


#: Seconds within which the check of a training must start, and end.
_CHECK_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class CheckArguments(Validated):
    """Check whether a training and its later steps could end, without waiting for its data set.

    ``job`` describes the training. ``prepare`` are the arguments of ``PlanArguments`` for data that
    are not prepared yet: the training is tried on the first records of their source. Where it is
    empty, it is tried on those of the data set that the training names. ``evaluations`` and
    ``exports`` are the arguments of later steps that take its model, which are tried, too.
    """

    TITLE: ClassVar = "check"

    job: Mapping[str, Any]
    prepare: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    exports: Sequence[Mapping[str, Any]] = ()


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


_Rule = Annotated[
    Mapping[str, Any], Limits(form="a rule, as at_least, no_worse and others make it")
]


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(Validated):
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
    """

    TITLE: ClassVar = "evaluate"

    model: str
    data: str
    split: str = "test"
    model_format: Format | None = None
    batch_size: Count = 256
    thresholds: Mapping[str, float] = field(default_factory=dict)
    gate: Sequence[_Rule] = ()
    baseline: str = SERVING
    first_run: Choice | None = None
    group: str | None = None
    leakage: Choice = Choice.ACCEPT
    on_fail: Annotated[str, Limits(choices=("fail", "skip"))] = "fail"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_format and not self.model.rstrip("/").rpartition("/")[2].isdigit():
            raise SpecError(
                "evaluate with model_format judges an exported version: pass what export returned, "
                f"got {self.model!r}"
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
class ExportArguments(Validated):
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
    """

    TITLE: ClassVar = "export"

    model: str
    data: str
    split: str = "test"
    records: Count | None = 64
    keras_file: bool = True
    formats: Sequence[Format] = ()
    quantize: Annotated[str, Limits(choices=(INT8,))] | None = None
    format_tolerance: Annotated[float, Limits(minimum=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantize and not self.other_formats:
            raise SpecError(
                f"quantize of export is {self.quantize!r}, and the SavedModel is not quantized: "
                f"name '{Format.LITERT}' or '{Format.ONNX}' in formats too"
            )

    @property
    def other_formats(self) -> list[Format]:
        """The formats besides the SavedModel, which every export has."""
        return [each for each in Format if each in self.formats and each != Format.SAVEDMODEL]


#: The strategies whose replicas are separate, and measure their own part of the time of a step.
_WITH_STRAGGLERS = ("parameter_server", "multi_worker_mirrored")

#: The arguments of every module of aerotrain that a job may run.
ARGUMENTS: Mapping[str, type[Validated]] = {
    "aerotrain.data.prepare.plan": PlanArguments,
    "aerotrain.data.prepare.partition": PartitionArguments,
    "aerotrain.data.prepare.finalize": FinalizeArguments,
    "aerotrain.check": CheckArguments,
    "aerotrain.training.train": TrainArguments,
    "aerotrain.evaluation.evaluate": EvaluateArguments,
    "aerotrain.serving.export": ExportArguments,
    "aerotrain.serving.serve_check": ServeCheckArguments,
    "aerotrain.prediction.plan": PredictArguments,
    "aerotrain.prediction.partition": PartitionArguments,
    "aerotrain.prediction.finalize": FinalizeArguments,
}


def arguments_of(job: Job) -> Any:
    """The arguments of a job, checked also for its strategy; None if its module is the user's own.

    Raises:
        SpecError: they are not accepted; the message says what was expected.
    """
    if (owner := ARGUMENTS.get(job.module)) is None:
        return None
    arguments = owner.from_dict(job.arguments)
    check_strategy(arguments, job.strategy)
    slow = getattr(arguments, "stragglers", STRAGGLERS[0])
    if slow != STRAGGLERS[0] and job.strategy not in _WITH_STRAGGLERS:
        raise SpecError(
            f"stragglers is {slow!r}, and under {job.strategy!r} no replica can be found that is "
            f"slower than others; choose {' or '.join(_WITH_STRAGGLERS)}, or leave it out"
        )
    return arguments
