"""The strategies by name, and how TensorFlow builds and runs each.

The other half of the table, the replicas of each strategy, is ``aerotrain.contract.strategy``.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.training.checkpoints.checkpoints import Checkpoints, PeerCheckpoints
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.mesh.checkpoints import MeshCheckpoints, PeerMeshCheckpoints
from aerotrain.training.mesh.mesh import chiefs_clock, mesh_strategy
from aerotrain.training.mesh.step import MeshStep
from aerotrain.training.mesh.step_runner import run_on_mesh
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.model.strategy_checks import (
    check_additive_metrics,
    check_divisible,
    check_exchanged,
)
from aerotrain.training.step_runner import CoordinatorStepRunner, LocalStepRunner, Step, StepRunner
from aerotrain.training.steps.custom import CustomStepTogether, has_custom_step
from aerotrain.training.steps.microbatches import MicrobatchStep
from aerotrain.training.steps.remote import RemoteStep
from aerotrain.training.steps.step import TrainStep
from aerotrain.training.tpu import connect


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one strategy is built, and how its steps are run.

    ``step_runner`` takes the number of the first step. ``io_device`` is the device that reads and
    writes checkpoints for all others. ``clock`` decides when a checkpoint is due; if all processes
    must write, it is the chief's clock in every process.
    """

    build: Callable[[TrainArguments], tf.distribute.Strategy]
    step_runner: Callable[[tf.distribute.Strategy, Any, InputPipeline, int], StepRunner]
    step: Callable[[keras.Model, tf.Variable, Any], Any] = KERAS.step
    io_device: str | None = None
    checkpoints: type[Checkpoints] = Checkpoints
    peer_checkpoints: type[Checkpoints] = PeerCheckpoints
    clock: Callable[[tf.distribute.Strategy], Callable[[], float]] = lambda _: time.monotonic


def _devices() -> list[str]:
    """This machine's GPUs, or its CPUs if it has none: one, unless TensorFlow divides it."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in devices]


def _one_device(_arguments: TrainArguments) -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy(_devices()[0])


def _mirrored(_arguments: TrainArguments) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(_devices())


def _central_storage(_arguments: TrainArguments) -> tf.distribute.Strategy:
    devices = _devices()
    # Several GPUs share variables on the CPU; a single device holds them itself.
    center = devices[0] if len(devices) == 1 else "/device:CPU:0"
    return tf.distribute.experimental.CentralStorageStrategy(devices, center)


def _multi_worker_mirrored(arguments: TrainArguments) -> tf.distribute.Strategy:
    if arguments.communication == "nccl" and not tf.config.list_physical_devices("GPU"):
        raise FinalError(
            "communication 'nccl' of 'multi_worker_mirrored' joins GPUs, and this machine has "
            "none; use 'auto' or 'ring'"
        )
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=arguments.bytes_per_pack,
        implementation=tf.distribute.experimental.CommunicationImplementation(
            arguments.communication.upper()
        ),
    )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)


def _parameter_server(_arguments: TrainArguments) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def _drive_here(
    strategy: tf.distribute.Strategy, step: TrainStep, pipeline: InputPipeline, start: int
) -> StepRunner:
    arguments = pipeline.arguments
    replicas = strategy.num_replicas_in_sync
    check_divisible(pipeline.job.strategy, arguments, replicas)
    if replicas > 1:
        with strategy.scope():
            check_additive_metrics(pipeline.job.strategy, step, pipeline.spec)
    if replicas == arguments.gradient_accumulation_steps == 1 and not arguments.jit_compile:
        return LocalStepRunner(strategy, step, pipeline.local(start), arguments.steps_per_execution)
    # With input replicas, all batches are full.
    records = arguments.batch_size if pipeline.service else pipeline.schedule.records
    check_exchanged(pipeline.job.strategy, step.model, arguments, records, replicas)
    together: Step
    if has_custom_step(step.model):
        together = CustomStepTogether(step)
    else:
        together = MicrobatchStep(
            step,
            replicas=replicas,
            gradient_dtype=arguments.gradient_dtype,
            jit_compile=arguments.jit_compile,
        )
    dataset = strategy.distribute_datasets_from_function(pipeline.in_microbatches(start))
    return LocalStepRunner(strategy, together, dataset, arguments.steps_per_execution)


def _drive_around_center(
    strategy: tf.distribute.Strategy, step: TrainStep, pipeline: InputPipeline, start: int
) -> StepRunner:
    """Set how values that several replicas assign to one central variable are aggregated.

    Keras does not set this for state of layers. Statistics become the mean of the replicas' values.
    Seed states, which all replicas advance equally, are taken from the first replica.
    """
    several = strategy.num_replicas_in_sync > 1
    if several and pipeline.arguments.jit_compile and step.model.non_trainable_variables:
        raise FinalError(
            "jit_compile cannot be under 'central_storage' where layers have state of their own, "
            f"such as {step.model.non_trainable_variables[0].path}, which the replicas agree on; "
            "leave it out, or choose 'mirrored'"
        )
    for variable in [*step.model.non_trainable_variables, *step.model.optimizer.variables]:
        held = variable._value
        if several and held.aggregation == tf.VariableAggregation.NONE:
            mean = held.dtype.is_floating
            held._aggregation = (
                tf.VariableAggregation.MEAN if mean else tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
    return _drive_here(strategy, step, pipeline, start)


def _remote_step(model: keras.Model, counter: tf.Variable, batch: Any) -> TrainStep:
    if isinstance(model, keras.Model):
        return RemoteStep(model, counter)
    return KERAS.step(model, counter, batch)


def _drive_workers(
    strategy: tf.distribute.Strategy, step: TrainStep, pipeline: InputPipeline, start: int
) -> StepRunner:
    arguments, workers = pipeline.arguments, pipeline.job.count(Role.WORKER)
    check_divisible(pipeline.job.strategy, arguments, 1)
    check_additive_metrics(pipeline.job.strategy, step, pipeline.spec)
    if arguments.jit_compile:
        raise FinalError(
            "jit_compile cannot be under 'parameter_server', since XLA reads no variables of "
            "other processes; leave it out, or choose a synchronous strategy"
        )
    if arguments.gradient_accumulation_steps == 1:
        return CoordinatorStepRunner(
            strategy, step, lambda: pipeline.remote(start), arguments.steps_per_execution, workers
        )
    check_exchanged(pipeline.job.strategy, step.model, arguments, arguments.batch_size, 1)
    in_microbatches = MicrobatchStep(step, replicas=1, gradient_dtype="float32", jit_compile=False)
    return CoordinatorStepRunner(
        strategy,
        in_microbatches,
        lambda: pipeline.remote_in_microbatches(start),
        arguments.steps_per_execution,
        workers,
    )


def _tpu(arguments: TrainArguments) -> tf.distribute.Strategy:
    return connect(arguments.tpu, arguments.tpu_seconds)


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """A barrier for all replicas that compute together with this one.

    A process that ends closes the connections of the others, so none may end before the chief is
    done.
    """
    if strategy.extended._in_multi_worker_mode() and strategy.num_replicas_in_sync > 1:
        strategy.reduce(tf.distribute.ReduceOp.SUM, tf.ones([]), axis=None)


ENGINES: Mapping[str, Engine] = {
    "one_device": Engine(build=_one_device, step_runner=_drive_here),
    "mirrored": Engine(build=_mirrored, step_runner=_drive_here),
    "central_storage": Engine(build=_central_storage, step_runner=_drive_around_center),
    "multi_worker_mirrored": Engine(build=_multi_worker_mirrored, step_runner=_drive_here),
    "parameter_server": Engine(
        build=_parameter_server,
        step_runner=_drive_workers,
        step=_remote_step,
        io_device="/job:chief/replica:0/task:0/device:CPU:0",
    ),
    "dtensor": Engine(
        build=mesh_strategy,
        step_runner=run_on_mesh,
        step=MeshStep,
        checkpoints=MeshCheckpoints,
        peer_checkpoints=PeerMeshCheckpoints,
        clock=chiefs_clock,
    ),
    "tpu": Engine(build=_tpu, step_runner=_drive_here),
}
