"""The step ``check``: a small run of the pipeline's own steps, before any data is prepared.

The first records of the source are a data set in the scratch folder. The training's own functions
train on them for two epochs, and those of ``evaluate`` and ``export`` try the result. One process
does it: devices of other machines are virtual CPUs here, and servers of the cluster are threads.
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import tensorflow as tf

from aerotrain.contract.environment import cluster_of, tf_config
from aerotrain.contract.job import Job
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.replicas import CLUSTERED, ReplicaSpec, Role
from aerotrain.contract.steps import CheckArguments, EvaluateArguments, ExportArguments
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, VALIDATION_SPLIT, load_dataset, load_statistics
from aerotrain.evaluation.evaluate import evaluate
from aerotrain.evaluation.gate import Gate, has_metrics_of_records
from aerotrain.replica import Replica
from aerotrain.serving import export
from aerotrain.serving.formats import check_installed, convert
from aerotrain.supervisor.ports import reserved_addresses
from aerotrain.training import chief
from aerotrain.training.input.shards import split_of
from aerotrain.training.model import checks
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.servers import serve
from aerotrain.training.starting_point import resolve
from aerotrain.user_code import forget

#: The most virtual devices. Replicas that share a batch are alike, so two stand for more of them.
_LARGEST_MESH, _ALIKE = 8, 2

_EPOCHS = 2

#: A tolerance of any difference: the quantized form of a model that is hardly trained is far off.
_ANY = 1e30

#: Bytes of a checkpoint above which the export is left to its own task: it would be written and
#: read five times here.
_LARGE = 512 << 20


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How one process tries a training: on how many devices, and by which batches.

    ``replicas`` is the number of those that share a batch in the training itself. ``rest`` is the
    number of records after the last full batch of an epoch. ``runs`` is whether steps are run;
    otherwise the model is only built, because its layers may need devices that are not here.
    """

    devices: int
    replicas: int
    batch_size: int
    rest: int
    runs: bool

    @classmethod
    def of(cls, job: Job, arguments: TrainArguments, gpus: int, records: int | None) -> Self:
        """The trial of a training on so many ``records``, with ``gpus`` GPUs in each process."""
        replicas = max(1, gpus) if job.strategy not in ("one_device", "parameter_server") else 1
        if arguments.is_synchronous:
            replicas = arguments.parts(job.count(Role.WORKER))
            replicas //= arguments.gradient_accumulation_steps
        if job.rules.peers:
            replicas *= 1 + job.count(Role.WORKER)
        devices, batch_size = min(replicas, _ALIKE), arguments.batch_size
        if job.strategy == "dtensor":  # the mesh itself checks how batches are divided
            devices = math.prod(arguments.mesh.values()) if arguments.mesh else replicas
            replicas = 1
        else:
            batch_size = batch_size // replicas * devices
        pieces = devices * arguments.gradient_accumulation_steps
        uneven = (
            (records or 0)
            % arguments.batch_size
            % (replicas * arguments.gradient_accumulation_steps)
        )
        rest = pieces + (uneven > 0)
        divides = records is not None and records % arguments.batch_size == 0
        return cls(
            devices=devices,
            replicas=replicas,
            batch_size=batch_size,
            rest=0 if divides or rest >= batch_size else rest,
            runs=not gpus and job.strategy != "tpu",
        )

    def arguments(self, arguments: TrainArguments, data: str) -> TrainArguments:
        """The arguments of the small training on ``data``."""
        return replace(
            arguments,
            data=data,
            epochs=_EPOCHS,
            batch_size=self.batch_size,
            communication="auto",
            replicas_to_aggregate=self.devices if arguments.is_synchronous else None,
            keep=1,
        )

    def job(self, job: Job, arguments: TrainArguments, folder: Path) -> Job:
        """The small training, whose output goes to ``folder``: one replica of each role."""
        return replace(
            job,
            store=(folder / "store").as_uri(),
            strategy="one_device" if job.strategy == "tpu" else job.strategy,
            replicas=tuple(
                ReplicaSpec(role=each.role) for each in job.replicas if each.role in CLUSTERED
            ),
            arguments=asdict(arguments),
        )


def run(replica: Replica) -> None:
    """Check whether the run could train, evaluate and export its model.

    Raises:
        FinalError: it could not; the message is that of the step.
    """
    given = CheckArguments.from_dict(replica.job.arguments)
    job = Job.from_dict(given.job)
    arguments = TrainArguments.from_dict(job.arguments)
    gpus = len(tf.config.list_physical_devices("GPU")) or job.replica(Role.CHIEF).resources.gpu
    known = None if given.prepare else split_of(load_dataset(arguments.data), TRAIN_SPLIT).records
    trial = Trial.of(job, arguments, gpus, known)
    checks.check_job(job, arguments)
    if not checks.can_validate(job):  # the small training has none of the replicas that prevent it
        arguments = replace(arguments, validate=bool(arguments.validate))
    checks.check_divisible(job.strategy, arguments, trial.replicas)
    if trial.devices > _LARGEST_MESH:
        print(f"the model is not checked here: its mesh has {trial.devices} devices", flush=True)
        return
    _use_virtual_devices(trial.devices)  # before a module of the user uses TensorFlow
    folder = replica.scratch / "check"
    folder.mkdir()
    data = _first_records(given, arguments, trial.batch_size + trial.rest, folder)
    if arguments.start_from is not None:
        start = resolve(job, arguments.start_from)
        arguments = replace(arguments, start_from=start.model if start else None)
    tried = replace(
        replica,
        job=trial.job(job, trial.arguments(arguments, data), folder),
        scratch=folder,
        termination_log=None,
    )
    evaluations = [EvaluateArguments.from_dict(each) for each in given.evaluations]
    exports = [ExportArguments.from_dict(each) for each in given.exports]
    for each in exports:
        check_installed(each.other_formats)
    with chdir(folder):  # where callbacks may write
        done = _tried(tried, job, data, evaluations, exports, runs=trial.runs)
    print(f"the model of {arguments.model!r} {done} under {job.strategy!r}", flush=True)


def _first_records(
    given: CheckArguments, arguments: TrainArguments, records: int, folder: Path
) -> str:
    """The URL of a data set of the first records, of the source or of the training's data set.

    Raises:
        FinalError: the source is not described correctly, cannot be read, or has no valid record.
    """
    # Imported here, because the steps of a training do without it.
    from aerotrain.data.prepare.first_records import copy_first_records, write_first_records

    if not given.prepare:
        return copy_first_records(arguments.data, records, folder / "first-records")
    prepare = PlanArguments.from_dict(given.prepare)
    return write_first_records(prepare, records, folder / "first-records")


def _use_virtual_devices(count: int) -> None:
    """Divide this machine's CPU, and use no GPU, which may be busy with a training."""
    with suppress(RuntimeError):  # TensorFlow has begun, with the devices that it has
        tf.config.set_visible_devices([], "GPU")
        [cpu, *_] = tf.config.list_physical_devices("CPU")
        if count > 1:
            virtual = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(cpu, virtual)


def _tried(
    replica: Replica,
    job: Job,
    data: str,
    evaluations: list[EvaluateArguments],
    exports: list[ExportArguments],
    *,
    runs: bool,
) -> str:
    """Run the steps of the pipeline on ``data``, and return what was done.

    ``replica`` is the one of the small training, which stands for ``job``.
    """
    dataset = load_dataset(data)
    if job.count(Role.EVALUATOR):
        split_of(dataset, VALIDATION_SPLIT)
    if not runs:
        with chief.begun(replica) as (context, engine):
            chief.build(context, engine)
            if has_metrics_of_records(context.model):
                statistics, functions = load_statistics(data), context.pipeline.code.functions
                for each in evaluations:
                    Gate(context.model, each.rules, dataset.schema, statistics, functions)
        return "builds"
    with _cluster(replica) as member:
        url = chief.train(member)
    trained = ModelManifest.load(url)
    if replica.job.rules.ps and KERAS.name == "keras":  # tf_keras registers no class twice
        forget(trained.module)  # later steps import it without a cluster, which owns its tables
    if any(name.startswith("val_") for name in trained.metrics):
        checks.check_validation(job)
    for number, each in enumerate(evaluations):
        own = _in_folder(replica, f"evaluate-{number}")
        evaluate(own, replace(each, model=url, data=data), trained, dataset, None)
    checkpoint = sum(file.stat().st_size for file in Path("store").rglob("*") if file.is_file())
    if checkpoint > _LARGE:
        print(f"its export is not tried: a checkpoint has {checkpoint:,} bytes", flush=True)
        return "trains"
    for number, given in enumerate(exports):
        own = _in_folder(replica, f"export-{number}")
        _export(own, replace(given, model=url, data=data, keras_file=False))
    return " and ".join(["trains", *["is exported"] * bool(exports)])


def _in_folder(replica: Replica, name: str) -> Replica:
    (replica.scratch / name).mkdir()
    return replace(replica, scratch=replica.scratch / name)


def _export(replica: Replica, arguments: ExportArguments) -> None:
    """Export the model as ``export`` does, without publishing it."""
    saved, check = replica.scratch / "saved_model", replica.scratch / "check"
    export.write(replica, arguments, saved, check)
    calibration = replica.scratch / export.CALIBRATION if arguments.quantize else None
    convert(arguments.other_formats, saved, check, tolerance=_ANY, calibration=calibration)


@contextmanager
def _cluster(replica: Replica) -> Iterator[Replica]:
    """The chief of a cluster whose servers are threads of this process, where it needs any."""
    if not replica.job.rules.ps:
        yield replica
        return
    with reserved_addresses(replica.job) as (addresses, _):
        cluster = cluster_of(replica.job, addresses)
        for name in replica.job.names():
            if name != replica.name:
                member = replace(replica, name=name, cluster=cluster)
                threading.Thread(target=serve, args=(member,), daemon=True).start()
        # TensorFlow reads it when the strategy is built.
        os.environ["TF_CONFIG"] = tf_config(cluster, replica.name) or ""  # noqa: TID251 -- see above
        try:
            yield replace(replica, cluster=cluster)
        finally:
            del os.environ["TF_CONFIG"]  # noqa: TID251 -- see above
