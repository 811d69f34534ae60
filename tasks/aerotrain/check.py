"""The step ``check``: build the model of a training, and try a step of it, before data is prepared.

One process does it within seconds. It stands for all replicas of the training: devices of other
machines are virtual CPUs here, and every check that the training would make at its start is made
with the training's own strategy and options.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import tensorflow as tf

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError
from aerotrain.contract.formats import Format, formats_of
from aerotrain.contract.gate import Rule
from aerotrain.contract.job import Job
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.steps import CheckArguments
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.evaluation.gate import (
    check_rules,
    check_rules_of_batches,
    has_metrics_of_records,
)
from aerotrain.replica import Replica
from aerotrain.serving.formats.conversion import check_convertible, check_installed
from aerotrain.serving.servable import Servable
from aerotrain.training.error_messages import errors_translated
from aerotrain.training.hooks.hooks import callbacks_of, not_finite
from aerotrain.training.hooks.validation import VALIDATION_SPLIT
from aerotrain.training.input.batches import batch_spec, first_records
from aerotrain.training.input.record_files import RecordFiles
from aerotrain.training.input.shards import TRAIN_SPLIT, download, split_of
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.checks import (
    check_divisible,
    check_job,
    check_steps,
    check_validation,
)
from aerotrain.training.model.code import UserCode
from aerotrain.training.starting_point import resolve
from aerotrain.training.strategies import ENGINES, create_model

#: The strategy that stands for one of several processes, or of a device that is not here.
_STANDS_FOR = {
    "multi_worker_mirrored": "mirrored",
    "parameter_server": "one_device",
    "tpu": "one_device",
}

#: Records on which a converted model is tried.
_CONVERTED = 32

#: The most virtual devices. Replicas that share a batch are alike, so two stand for more of them.
_LARGEST_MESH, _ALIKE = 8, 2


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How one process tries a training: under which strategy, on how many devices.

    ``replicas`` is the number of those that share a batch in the training itself. ``runs`` is
    whether a step is run; otherwise the model is only built, because its layers may need devices
    that are not here.
    """

    strategy: str
    devices: int
    replicas: int
    runs: bool

    @classmethod
    def of(cls, job: Job, arguments: TrainArguments, gpus: int) -> Self:
        """The trial of a training whose processes have ``gpus`` GPUs each."""
        strategy = _STANDS_FOR.get(job.strategy, job.strategy)
        replicas = max(1, gpus)
        if job.rules.peers:
            replicas *= 1 + job.count(Role.WORKER)
        if job.strategy == "dtensor":
            devices = math.prod(arguments.mesh.values()) if arguments.mesh else replicas
            replicas = 1  # the mesh itself checks how batches are divided
        else:
            if strategy == "one_device":
                replicas = 1
            devices = min(replicas, _ALIKE)
        return cls(
            strategy=strategy,
            devices=devices,
            replicas=replicas,
            runs=not gpus and job.strategy != "tpu",
        )

    def batch_size(self, arguments: TrainArguments) -> int:
        """The size of a batch in which each replica gets what it gets in the training."""
        if self.strategy == "dtensor":
            return arguments.batch_size
        return arguments.batch_size // self.replicas * self.devices


def run(replica: Replica) -> None:
    """Check whether the training could begin.

    Raises:
        FinalError: it could not; the message is that of the training.
    """
    given = CheckArguments.of(replica.job.arguments)
    job = Job.from_dict(given.job)
    arguments = TrainArguments.of(job.arguments)
    gpus = len(tf.config.list_physical_devices("GPU")) or job.replica(Role.CHIEF).resources.gpu
    trial = Trial.of(job, arguments, gpus)
    check_job(job, arguments)
    check_divisible(job.strategy, arguments, trial.replicas)
    if trial.devices > _LARGEST_MESH:
        print(f"the model is not checked here: its mesh has {trial.devices} devices", flush=True)
        return
    if given.prepare:
        url = _first_records(given, trial.batch_size(arguments), replica)
        if url is None:
            return
        arguments = replace(arguments, data=url)
    _use_virtual_devices(trial.devices)
    # How many records a source has is unknown; a full batch divides as the batch size does.
    records = arguments.batch_size if given.prepare else None
    rules = [Rule.from_dict(each) for each in given.gate]
    _try(job, arguments, trial, replica, records, rules)
    for each in given.exports:
        _check_formats(formats_of("export", **each), each["quantize"], arguments, replica)


def _check_formats(
    formats: Sequence[Format], quantize: str | None, arguments: TrainArguments, replica: Replica
) -> None:
    """Convert the model, with the weights that it has before training."""
    check_installed(formats)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(arguments.model, arguments.data)
    files = download(arguments.data, dataset.splits[TRAIN_SPLIT].shards[:1], replica.scratch)
    with errors_translated(code, dataset, arguments.data, TRAIN_SPLIT, replica.scratch):
        spec = batch_spec(dataset.schema, code.transform)
        model = code.build(arguments.all_hparams, spec, arguments.dtype_policy)
        servable = Servable(model, code.transform, dataset.schema)
        check_convertible(
            servable,
            first_records(RecordFiles.of(files), _CONVERTED),
            formats,
            replica.scratch / "formats",
            quantized=quantize is not None,
        )


def _first_records(given: CheckArguments, records: int, replica: Replica) -> str | None:
    """The URL of a data set of the first records of the source; None if it cannot be read now.

    Raises:
        SpecError: the source is not described correctly.
    """
    # Imported here, because the steps of a training do without it.
    from aerotrain.data.prepare.first_records import write_first_records

    prepare = PlanArguments.of(given.prepare)
    try:
        url = write_first_records(prepare, records, replica.scratch / "first-records")
    except SpecError:
        raise
    except AerotrainError as error:
        print(f"the model is not checked here, for its source cannot be read: {error}", flush=True)
        return None
    if url is None:
        print("the model is not checked here, for its source has no valid record", flush=True)
    return url


def _use_virtual_devices(count: int) -> None:
    """Divide this machine's CPU, and use no GPU, which may be busy with a training."""
    with suppress(RuntimeError):  # TensorFlow has begun, with the devices that it has
        tf.config.set_visible_devices([], "GPU")
        [cpu, *_] = tf.config.list_physical_devices("CPU")
        if count > 1:
            virtual = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(cpu, virtual)


def _try(
    job: Job,
    arguments: TrainArguments,
    trial: Trial,
    replica: Replica,
    records: int | None,
    rules: Sequence[Rule],
) -> None:
    """Build the model and its step, make the checks of the training, and run the step once.

    ``records`` is the number of records of an epoch, if it is not that of the data set. The model
    and the data must have what ``rules`` name.
    """
    pipeline = _pipeline_of(job, arguments, trial, replica)
    engine = ENGINES[trial.strategy]
    translated = errors_translated(
        pipeline.code, pipeline.dataset, arguments.data, TRAIN_SPLIT, replica.scratch
    )
    with translated, pipeline.caching_shards():
        start = None if arguments.start_from is None else resolve(job, arguments.start_from)
        distribution = engine.build(pipeline.arguments)
        model, _, step = create_model(job.strategy, engine, distribution, pipeline)
        if start is not None:
            start.transfer_to(model).print(f"the training starts from {start.model}")
        if job.strategy != "dtensor":
            with distribution.scope():
                check_steps(
                    job.strategy,
                    step,
                    arguments,
                    pipeline.spec,
                    records=records or pipeline.schedule.records,
                    replicas=trial.replicas,
                )
        _check_validation(job, pipeline, callbacks_of(pipeline, step)[1])
        pipeline.code.reads.check(arguments.model, arguments.hparams)
        if has_metrics_of_records(model):
            compiled = step.metrics.measured_names() or []
            schema, functions = pipeline.dataset.schema, pipeline.code.functions
            check_rules(model, rules, compiled, schema, functions)
        else:
            check_rules_of_batches(rules)
        runs = trial.runs
        if runs or job.strategy == "dtensor":
            runner = engine.step_runner(distribution, step, pipeline, 0)
            for ran in runner.run(1) if runs else ():
                if step.metrics.bad_step(ran.sums) is not None:
                    raise not_finite(1, arguments.data)
    what = "builds and makes a step" if runs else "builds"
    print(f"the model of {arguments.model!r} {what} under {job.strategy!r}", flush=True)


def _pipeline_of(
    job: Job, arguments: TrainArguments, trial: Trial, replica: Replica
) -> InputPipeline:
    """The input pipeline of the trial, in which one process reads for all replicas."""
    tried = replace(
        arguments,
        batch_size=trial.batch_size(arguments),
        # The model may be built for batches of that size.
        hparams={"batch_size": arguments.batch_size, **arguments.hparams},
    )
    return InputPipeline(
        job=replace(
            job, strategy=trial.strategy, replicas=(ReplicaSpec(role=Role.CHIEF),), min_workers=None
        ),
        arguments=tried,
        dataset=load_dataset(arguments.data),
        code=UserCode.load(arguments.model, arguments.data).weighing(arguments.class_weight),
        scratch=replica.scratch,
    )


def _check_validation(job: Job, pipeline: InputPipeline, validates: bool) -> None:
    """Check that the validation split exists if the training measures it, and can be measured."""
    if validates:
        check_validation(job.strategy, has_peers=job.rules.peers and job.count(Role.WORKER) > 0)
    if validates or job.count(Role.EVALUATOR):
        try:
            split_of(pipeline.dataset, VALIDATION_SPLIT)
        except FinalError as error:
            raise FinalError(f"{error}; the training validates on it") from error
