"""The mesh of devices over which DTensor divides batches and the model's variables.

Every process of the job runs the same program, and its devices hold its own parts. ``MeshStrategy``
implements on a mesh what the loop uses of a ``tf.distribute.Strategy``.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from aerotrain.contract.errors import FinalError
from aerotrain.contract.steps import BATCH_AXIS, MODEL_AXIS, TrainArguments
from aerotrain.training.mesh.layouts import LayoutMap, host, replicated


class MeshStrategy:
    """The mesh, the layouts of variables on it, and its processes."""

    def __init__(self, mesh: dtensor.Mesh, layouts: LayoutMap) -> None:
        self.mesh = mesh
        self.layouts = layouts
        #: The loop's "replicas" are processes here, because the loop runs once per process.
        self.num_replicas_in_sync = dtensor.num_clients()
        self._told = 0.0
        self._agreed = False

    @property
    def extended(self) -> "MeshStrategy":
        """The internal interface of ``tf.distribute.Strategy.extended``."""
        return self

    def _in_multi_worker_mode(self) -> bool:
        return self.num_replicas_in_sync > 1

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A scope in which variables, including those of Keras, are created on the mesh."""
        with self.layouts.scope():
            yield

    def run(self, function: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        """Call ``function`` once in each process."""
        return function(*args)

    def reduce(self, _operation: Any, value: tf.Tensor, axis: None) -> tf.Tensor:
        """The sum of ``value`` over the devices of all processes; all of them must call this."""
        layout = dtensor.Layout(
            [*self.mesh.dim_names, *[dtensor.UNSHARDED] * value.ndim], self.mesh
        )
        part = tf.reshape(value, [1] * len(self.mesh.dim_names) + value.shape.as_list())
        parts = dtensor.pack([part] * self.mesh.num_local_devices(), layout)
        with dtensor.default_mesh(self.mesh):
            total = tf.reduce_sum(parts, axis=list(range(len(self.mesh.dim_names))))
        return tf.constant(host(total))

    def agreed(self, told: bool) -> bool:
        """Whether any process had been preempted when the chief's clock was last read.

        ``told`` is whether this process is preempted now; the next reading sends it to the others.
        """
        self._told = float(told)
        return told if not self._in_multi_worker_mode() else self._agreed

    def read_clock(self) -> float:
        """The chief's clock in seconds; every process must call this."""
        own = [time.monotonic() if dtensor.client_id() == 0 else 0.0, self._told]
        clock, told = self.reduce(None, tf.constant(own, tf.float64), axis=None).numpy()
        self._agreed = told > 0
        return float(clock) / self.mesh.num_local_devices()

    def on_mesh(self, batch: tf.Tensor) -> tf.Tensor:
        """A batch that is whole in this process, with its examples divided over the mesh.

        A batch that cannot be divided, such as the last of an epoch, is computed whole on every
        device.
        """
        layout = replicated(self.mesh, batch.ndim)
        if batch.shape[0] % self.mesh.dim_size(BATCH_AXIS) == 0:
            layout = dtensor.Layout.batch_sharded(self.mesh, BATCH_AXIS, batch.ndim)
        return dtensor.relayout(batch, layout)


def mesh_strategy(arguments: TrainArguments) -> MeshStrategy:
    """Join the other processes of the cluster, if any, and create the mesh.

    Raises:
        FinalError: the mesh does not fit the devices of these processes.
    """
    processes = dtensor.num_clients()
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    sizes = _sizes(arguments, processes * _present(kind))
    devices = math.prod(sizes.values())
    if devices % processes:
        raise FinalError(
            f"a mesh of {devices} devices cannot be shared by the {processes} processes of "
            f"'dtensor', the chief and its workers; give it {processes} devices or a multiple"
        )
    _offer(kind, devices // processes)
    if processes > 1:
        dtensor.initialize_accelerator_system(kind)
        mesh = dtensor.create_distributed_mesh(list(sizes.items()), device_type=kind)
    else:
        mesh = dtensor.create_mesh(list(sizes.items()), device_type=kind)
    return MeshStrategy(mesh, LayoutMap(mesh, arguments.layout))


def chiefs_clock(strategy: MeshStrategy) -> Callable[[], float]:
    """The chief's clock, in seconds, in every process; they must read it together."""
    if not strategy._in_multi_worker_mode():
        return time.monotonic

    return strategy.read_clock


def _sizes(arguments: TrainArguments, devices: int) -> Mapping[str, int]:
    if arguments.mesh:
        return {axis: arguments.mesh.get(axis, 1) for axis in (BATCH_AXIS, MODEL_AXIS)}
    along_model = bool(arguments.layout)
    return (
        {BATCH_AXIS: 1, MODEL_AXIS: devices}
        if along_model
        else {
            BATCH_AXIS: devices,
            MODEL_AXIS: 1,
        }
    )


def _present(kind: str) -> int:
    """The number of devices of this process: GPUs, or CPUs if TensorFlow divides its CPU."""
    physical = tf.config.list_physical_devices(kind)
    if kind == "GPU":
        return len(physical)
    return len(tf.config.get_logical_device_configuration(physical[0]) or [None])


def _offer(kind: str, devices: int) -> None:
    """Configure as many devices as this process's part of the mesh needs."""
    present = _present(kind)
    if present == devices:
        return
    if kind == "GPU":
        raise FinalError(
            f"the mesh of 'dtensor' takes {devices} GPUs of each process, and this one has "
            f"{present}; change the sizes of the mesh's axes, or the number of workers"
        )
    [cpu, *_] = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * devices
        )
    except RuntimeError as error:
        raise FinalError(
            f"the mesh of 'dtensor' takes {devices} CPU devices of this process, and TensorFlow "
            f"has begun with {present}; let the user's module make no tensors when imported"
        ) from error
