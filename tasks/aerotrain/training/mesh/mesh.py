"""The mesh of devices over which DTensor divides batches and the model's variables.

Every process of the job runs the same program, and its devices hold its own parts.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import BATCH_AXIS, MODEL_AXIS, TrainArguments
from aerotrain.training.mesh.layouts import LayoutMap, host, replicated


class Mesh:
    """The ``Distribution`` of a mesh: its devices, and the layouts of variables on it."""

    def __init__(self, devices: dtensor.Mesh, layouts: LayoutMap) -> None:
        self.devices = devices
        self.layouts = layouts
        self.has_peers = dtensor.num_clients() > 1
        self._is_preempted = 0.0
        self._any_preempted = False

    def scope(self) -> AbstractContextManager[None]:
        return self.layouts.scope()

    def sum(self, values: tf.Tensor) -> Any:
        """The sum of ``values`` over the devices of all processes; all of them must call this."""
        layout = dtensor.Layout(
            [*self.devices.dim_names, *[dtensor.UNSHARDED] * values.ndim], self.devices
        )
        part = tf.reshape(values, [1] * len(self.devices.dim_names) + values.shape.as_list())
        parts = dtensor.pack([part] * self.devices.num_local_devices(), layout)
        with dtensor.default_mesh(self.devices):
            total = tf.reduce_sum(parts, axis=list(range(len(self.devices.dim_names))))
        return host(total)

    def local(self, variable: tf.Variable) -> Sequence[tf.Tensor]:
        value = variable.read_value()
        return list(dtensor.unpack(value)) if dtensor.is_dtensor(value) else [value]

    def clock(self) -> float:
        """The chief's clock in seconds; also tells all processes whether one was preempted."""
        if not self.has_peers:
            return time.monotonic()
        own = [time.monotonic() if dtensor.client_id() == 0 else 0.0, self._is_preempted]
        clock, preempted = self.sum(tf.constant(own, tf.float64))
        self._any_preempted = bool(preempted > 0)
        return float(clock) / self.devices.num_local_devices()

    def any_preempted(self, own: bool) -> bool:
        """Whether any process had been preempted when ``clock`` was last read.

        ``own`` is whether this process is preempted now; the next reading sends it to the others.
        """
        self._is_preempted = float(own)
        return self._any_preempted if self.has_peers else own

    def on_mesh(self, batch: tf.Tensor) -> tf.Tensor:
        """A batch that is whole in this process, with its examples divided over the mesh.

        A batch that cannot be divided, such as the last of an epoch, is computed whole on every
        device.
        """
        layout = replicated(self.devices, batch.ndim)
        if batch.shape[0] % self.devices.dim_size(BATCH_AXIS) == 0:
            layout = dtensor.Layout.batch_sharded(self.devices, BATCH_AXIS, batch.ndim)
        return dtensor.relayout(batch, layout)


def mesh_of(arguments: TrainArguments) -> Mesh:
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
    return Mesh(mesh, LayoutMap(mesh, arguments.layout))


def _sizes(arguments: TrainArguments, devices: int) -> Mapping[str, int]:
    if arguments.mesh:
        return {axis: arguments.mesh.get(axis, 1) for axis in (BATCH_AXIS, MODEL_AXIS)}
    if arguments.layout:
        return {BATCH_AXIS: 1, MODEL_AXIS: devices}
    return {BATCH_AXIS: devices, MODEL_AXIS: 1}


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
