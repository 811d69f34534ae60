"""The strategies by name, and how TensorFlow builds and runs each.

The other half of the table, the replicas of each strategy, is ``aerotrain.contract.strategy``.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain.training.asynchronous import AsynchronousStepRunner
from aerotrain.training.background.services import wait_for_answer
from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.context import Distribution, StrategyDistribution
from aerotrain.training.coordinator import ServedDistribution, connected
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.internals import keras3
from aerotrain.training.internals.tensorflow2 import local_collectives
from aerotrain.training.mesh.checkpoints import MeshCheckpoints
from aerotrain.training.mesh.mesh import mesh_of
from aerotrain.training.mesh.step import MeshStep, run_on_mesh
from aerotrain.training.model.checks import (
    check_asynchronous,
    check_divisible,
    check_exchanged,
    check_fixed_batch,
    warn_of_metrics,
)
from aerotrain.training.model.code import check_classes
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.model.whole_batches import check_sharing, warn_of_layer_state
from aerotrain.training.step_runner import LocalStepRunner, Step, StepRunner
from aerotrain.training.steps.custom import CustomStep, ReplicatedCustomStep
from aerotrain.training.steps.microbatches import MicrobatchStep
from aerotrain.training.steps.remote import RemoteStep
from aerotrain.training.steps.state import (
    aggregate_in_center,
    seed_by_replica,
    synchronize_batch_norm,
)
from aerotrain.training.steps.step import TrainStep, inner
from aerotrain.training.steps.updates import lock_updates
from aerotrain.training.synchronous import SynchronousStepRunner

#: Seconds for which servers are awaited that do not listen yet.
_LISTENING = 10.0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one strategy is built, and how its steps are run.

    ``step_runner`` takes what ``build`` has built, and the number of the first step. ``io_device``
    is the device that reads and writes checkpoints for all others.
    """

    build: Callable[[TrainArguments], Distribution]
    step_runner: Callable[[Any, Any, InputPipeline, int], StepRunner]
    step: Callable[[keras.Model, tf.Variable, Any], Any] = KERAS.step
    io_device: str | None = None
    checkpoints: type[Checkpoints] = Checkpoints


def create_model(
    strategy: str,
    engine: Engine,
    distribution: Distribution,
    pipeline: InputPipeline,
) -> tuple[keras.Model, tf.Variable, Any]:
    """The model with all variables, the counter of its steps, and its step.

    ``strategy`` is that of the training, which ``engine`` builds, or stands for in a check.

    Raises:
        FinalError: the model cannot be trained under ``strategy``; the message says why.
    """
    arguments = pipeline.arguments
    with distribution.recording():
        KERAS.seed(arguments.seed)
        model = pipeline.code.build(arguments.all_hparams, pipeline.spec, arguments.dtype_policy)
        check_asynchronous(strategy, model)
        counter = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="aerotrain_step",
        )
        step = engine.step(model, counter, pipeline.spec)
        warn_of_metrics(model)
    if arguments.class_weight and (batch := pipeline.sample()) is not None:
        check_classes(arguments.class_weight, model, batch)
    return model, counter, step


def _devices() -> list[str]:
    """This machine's GPUs, or its CPUs if it has none: one, unless TensorFlow divides it."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in devices]


def _central_storage(_arguments: TrainArguments) -> Distribution:
    devices = _devices()
    # Several GPUs share variables on the CPU; a single device holds them itself.
    center = devices[0] if len(devices) == 1 else "/device:CPU:0"
    return StrategyDistribution(tf.distribute.experimental.CentralStorageStrategy(devices, center))


def _multi_worker_mirrored(arguments: TrainArguments) -> Distribution:
    if arguments.communication == "nccl" and not tf.config.list_physical_devices("GPU"):
        raise FinalError(
            "communication 'nccl' of 'multi_worker_mirrored' joins GPUs, and this machine has "
            "none; use 'auto' or 'ring'"
        )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation(
            arguments.communication.upper()
        ),
    )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if not resolver.cluster_spec().jobs:  # a check, whose devices stand for all processes
        return StrategyDistribution(local_collectives(_devices(), options))
    if resolver.task_type != Role.CHIEF:
        _wait_until_listening(resolver.cluster_spec().job_tasks(Role.CHIEF))
    return StrategyDistribution(tf.distribute.MultiWorkerMirroredStrategy(resolver, options))


def _parameter_server(_arguments: TrainArguments) -> Distribution:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return connected(resolver.cluster_spec().as_dict())


def _wait_until_listening(addresses: Iterable[str]) -> None:
    """Wait until the servers at ``host:port`` answer, but for some seconds only."""
    until = time.monotonic() + _LISTENING
    for address in addresses:
        wait_for_answer(address, until - time.monotonic())


def _check_steps(step: TrainStep, pipeline: InputPipeline, start: int, replicas: int) -> None:
    """Check that ``replicas`` replicas can share the steps; in the scope of their strategy.

    Values are compared in the first step of a training only, and not after a restart.

    Raises:
        FinalError: they cannot; the message names the reason and an alternative.
    """
    strategy, arguments = pipeline.job.strategy, pipeline.arguments
    check_divisible(strategy, arguments, replicas)
    pieces = replicas * arguments.gradient_accumulation_steps
    check_fixed_batch(step.model, arguments, pipeline.schedule.records, pieces)
    served = strategy == "parameter_server"
    if served and arguments.jit_compile:
        raise FinalError(
            "jit_compile cannot be under 'parameter_server', since XLA reads no variables of "
            "other processes; leave it out, or choose a synchronous strategy"
        )
    cuts = pieces > 1
    if cuts or arguments.jit_compile:
        check_exchanged(strategy, step.model, arguments, replicas)
    if cuts and isinstance(step.model, keras.Model):
        synchronized = arguments.synchronized_batch_norm
        warn_of_layer_state(strategy, step.model, synchronized=synchronized)
    asynchronous = served and not arguments.is_synchronous
    if (cuts or asynchronous) and start == 0 and not keras3.fixed_batch(step.model):
        batch = pipeline.sample()
        if batch is not None:
            check_sharing(strategy, step, batch, adds=replicas > 1 or asynchronous, cuts=cuts)


def _local_step_runner(
    distribution: StrategyDistribution, step: TrainStep, pipeline: InputPipeline, start: int
) -> StepRunner:
    arguments = pipeline.arguments
    size, adapts = arguments.steps_of_execution, arguments.steps_per_execution is None
    replicas = distribution.strategy.num_replicas_in_sync
    with distribution.scope():
        _check_steps(step, pipeline, start, replicas)
    if replicas > 1:
        seed_by_replica(step.model)
        if arguments.synchronized_batch_norm:
            synchronize_batch_norm(step.model)
    if replicas == arguments.gradient_accumulation_steps == 1 and not arguments.jit_compile:
        return LocalStepRunner(distribution, step, pipeline.local(start), size, adapts=adapts)
    shared: Step
    if isinstance(step, CustomStep):
        shared = ReplicatedCustomStep(step)
    else:
        shared = MicrobatchStep(
            step,
            replicas=replicas,
            gradient_dtype=arguments.gradient_dtype,
            jit_compile=arguments.jit_compile,
        )
    dataset = distribution.strategy.distribute_datasets_from_function(
        pipeline.in_microbatches(start)
    )
    return LocalStepRunner(distribution, shared, dataset, size, adapts=adapts)


def _central_step_runner(
    distribution: StrategyDistribution, step: TrainStep, pipeline: InputPipeline, start: int
) -> StepRunner:
    several = distribution.strategy.num_replicas_in_sync > 1
    if several and pipeline.arguments.jit_compile and step.model.non_trainable_variables:
        raise FinalError(
            "jit_compile cannot be under 'central_storage' where layers have state of their own, "
            f"such as {step.model.non_trainable_variables[0].path}, which the replicas agree on; "
            "leave it out, or choose 'mirrored'"
        )
    if several:
        aggregate_in_center(step.model)
    return _local_step_runner(distribution, step, pipeline, start)


def _remote_step(model: keras.Model, counter: tf.Variable, batch: Any) -> TrainStep:
    lock_updates(inner(model.optimizer))
    if isinstance(model, keras.Model):
        return RemoteStep(model, counter)
    return KERAS.step(model, counter, batch)


def _coordinator_step_runner(
    distribution: ServedDistribution, step: TrainStep, pipeline: InputPipeline, start: int
) -> StepRunner:
    arguments = pipeline.arguments
    if arguments.is_synchronous:
        parts = arguments.parts(pipeline.job.count(Role.WORKER))
        _check_steps(step, pipeline, start, parts // arguments.gradient_accumulation_steps)
        assert isinstance(step, RemoteStep), "others are refused: see check_job"
        return SynchronousStepRunner(distribution, step, pipeline, parts, start)
    _check_steps(step, pipeline, start, replicas=1)
    runner_step: Step = step
    if arguments.gradient_accumulation_steps > 1:
        runner_step = MicrobatchStep(step, replicas=1, gradient_dtype="float32", jit_compile=False)
    return AsynchronousStepRunner(distribution, runner_step, step.counter, pipeline, start)


def _tpu(arguments: TrainArguments) -> Distribution:
    """The TPU ``arguments.tpu``: ``local``, ``grpc://host:port``, or its name in the cloud.

    Raises:
        FinalError: there is no such TPU, or it does not answer.
    """
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=arguments.tpu)
        address = resolver.master().removeprefix("grpc://")
        # TensorFlow itself would wait forever for a TPU that does not answer.
        if address and not wait_for_answer(address, _LISTENING):
            raise TimeoutError(f"no answer within {_LISTENING:g} s")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return StrategyDistribution(tf.distribute.TPUStrategy(resolver))
    except (tf.errors.OpError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].partition(" Failed in")[0]
        raise FinalError(
            f"strategy 'tpu' found no TPU at {arguments.tpu!r} ({reason}); name one that this "
            "machine can reach, as 'local' or grpc://host:port, or choose another strategy"
        ) from error


ENGINES: Mapping[str, Engine] = {
    "one_device": Engine(
        build=lambda _: StrategyDistribution(tf.distribute.OneDeviceStrategy(_devices()[0])),
        step_runner=_local_step_runner,
    ),
    "mirrored": Engine(
        build=lambda _: StrategyDistribution(tf.distribute.MirroredStrategy(_devices())),
        step_runner=_local_step_runner,
    ),
    "central_storage": Engine(build=_central_storage, step_runner=_central_step_runner),
    "multi_worker_mirrored": Engine(build=_multi_worker_mirrored, step_runner=_local_step_runner),
    "parameter_server": Engine(
        build=_parameter_server,
        step_runner=_coordinator_step_runner,
        step=_remote_step,
        io_device="/job:chief/replica:0/task:0/device:CPU:0",
    ),
    "dtensor": Engine(
        build=mesh_of,
        step_runner=run_on_mesh,
        step=MeshStep,
        checkpoints=MeshCheckpoints,
    ),
    "tpu": Engine(build=_tpu, step_runner=_local_step_runner),
}
