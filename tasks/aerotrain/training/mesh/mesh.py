"""The mesh of devices over which DTensor divides batches and the model's variables.

Every process of the job runs the same program, and its devices hold its own parts.
"""

import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.experimental import dtensor

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.training import BATCH_AXIS, MODEL_AXIS, TrainArguments
from aerotrain.training.context import Distribution
from aerotrain.training.internals import keras3

#: A variable up to this size is initialized whole on each process and then divided, so that it has
#: the same initial values as under any other strategy. A larger one is initialized in parts, each
#: on its device and from its own seed: it never exists as a whole.
WHOLE_BYTES = 64 * 2**20


class MeshVariable(dtensor.DVariable):  # type: ignore[misc]  # TensorFlow has no types
    """A variable on a mesh that this process can read and write as a whole."""

    def assign(self, value: Any, *arguments: Any, **options: Any) -> Any:
        """Assign a value on the mesh, or one that is whole in every process."""
        if tf.executing_eagerly():
            value = tf.convert_to_tensor(value, self.dtype)
            if not dtensor.is_dtensor(value):
                value = dtensor.relayout(value, self.layout)
        return super().assign(value, *arguments, **options)

    def numpy(self) -> Any:
        """The whole value, as an array.

        Raises:
            FinalError: its parts are in several processes, which do not read it together.
        """
        if dtensor.num_clients() > 1 and not self.layout.is_fully_replicated():
            raise FinalError(
                f"no process of 'dtensor' holds the whole of {self.name}; look at it in a "
                "checkpoint, such as by an evaluator, rather than by validation or a callback"
            )
        return host(self.read_value())

    def _gather_saveables_for_checkpoint(self) -> Any:
        return self._saveables

    @cached_property
    def _saveables(self) -> Any:
        """What writes it to checkpoints, by key: made once, because that takes milliseconds."""
        made = super()._gather_saveables_for_checkpoint()
        return {key: cache(make) for key, make in made.items()}


def replicated(mesh: dtensor.Mesh, rank: int) -> dtensor.Layout:
    """The layout of a value that every device holds whole."""
    return dtensor.Layout.replicated(mesh, rank)


def host(value: tf.Tensor) -> Any:
    """The whole of a value on a mesh as an array; every process of the mesh must call this."""
    layout = dtensor.fetch_layout(value)
    return dtensor.relayout(value, replicated(layout.mesh, layout.rank)).numpy()


def whole_of(value: tf.Tensor) -> Callable[[], NDArray[Any]]:
    """The function that joins the shards of a value on a mesh of this process.

    It may be called while the variable that has the value is updated. A value without a mesh is its
    own only shard.
    """
    if not dtensor.is_dtensor(value):
        return value.numpy
    places = dtensor.fetch_layout(value).offset_to_shard()
    # Devices that hold the same part have the same place.
    shards = dict(zip(places, dtensor.unpack(value), strict=True))
    shape, dtype = value.shape, value.dtype.as_numpy_dtype

    def joined() -> NDArray[Any]:
        result = np.empty(shape, dtype)
        for place, shard in shards.items():
            region = zip(place, shard.shape, strict=True)
            result[tuple(slice(at * size, (at + 1) * size) for at, size in region)] = shard.numpy()
        return result

    return joined


def _path(initial: Any, name: str) -> str:
    if callable(initial):
        # Keras may create a variable late, outside the scope of its name. It then passes a function
        # whose closure contains the variable.
        owner = inspect.getclosurevars(initial).nonlocals.get("self")
        if isinstance(owner, keras.Variable):
            return str(owner.path)
    return "/".join(filter(None, [keras3.current_path(), name]))


def _spec(initial: Any, dtype: Any) -> tf.TensorSpec:
    if not callable(initial):
        return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial, dtype=dtype))
    # Traced, not run: the value may be too large for this process.
    [output] = tf.function(initial, autograph=False).get_concrete_function().outputs
    return tf.TensorSpec(output.shape, output.dtype)


def _placed(initial: Any, spec: tf.TensorSpec, layout: dtensor.Layout) -> tf.Tensor:
    whole = spec.shape.num_elements() * spec.dtype.size <= WHOLE_BYTES
    if callable(initial) and not whole:
        return dtensor.call_with_layout(tf.function(initial, autograph=False), layout)
    value = initial() if callable(initial) else tf.convert_to_tensor(initial, dtype=spec.dtype)
    return dtensor.relayout(value, layout)


class Mesh(Distribution):
    """The ``Distribution`` of a mesh: its devices, and the layouts of variables on it.

    ``rules`` maps patterns of a variable's path, such as ``dense/kernel``, to an axis of the mesh
    or None for each dimension. The first match decides. An optimizer's variables have the layout of
    the variable they belong to. Without a match, every device holds the whole variable.
    """

    def __init__(self, devices: dtensor.Mesh, rules: Mapping[str, Sequence[str | None]]) -> None:
        super().__init__(has_peers=dtensor.num_clients() > 1)
        self.devices = devices
        self._is_preempted = 0.0
        self._any_preempted = False
        self._rules = rules
        self._used: set[str] = set()
        self._made: dict[str, dtensor.Layout] = {}
        self._error: FinalError | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A scope in which variables, including those of Keras, are created on the mesh.

        Raises:
            FinalError: at the end of the scope, if a rule does not fit the variable that it names.
                Keras would wrap an error that is raised while it builds a model.
        """
        with tf.variable_creator_scope(self._create):
            yield
        if self._error is not None:
            raise self._error

    def check_used(self) -> None:
        """Check that each rule names at least one of the created variables.

        Raises:
            FinalError: a rule names none; the message contains the nearest path.
        """
        for pattern in self._rules:
            if pattern not in self._used:
                paths = list(self._made)
                raise FinalError(
                    f"the layout {pattern!r} of 'dtensor' names no variable"
                    f"{nearest(pattern, paths)}; the variables are {', '.join(paths[:20])}"
                )

    def _create(self, _next: Callable[..., Any], **options: Any) -> MeshVariable:
        initial = options["initial_value"]
        path = _path(initial, options["name"])
        spec = _spec(initial, options.get("dtype"))
        layout = self._of(path, spec.shape)
        self._made[path] = layout
        return MeshVariable(
            _placed(initial, spec, layout),
            dtype=spec.dtype,
            trainable=options.get("trainable"),
            name=options["name"],
        )

    def _of(self, path: str, shape: tf.TensorShape) -> dtensor.Layout:
        # Keras names the variables of an optimizer after the path of the model's variable.
        about = [known for known in self._made if f"/{known.replace('/', '_')}_" in f"{path}_"]
        if about and (layout := self._made[max(about, key=len)]).rank == shape.rank:
            return layout
        for pattern, axes in () if about else self._rules.items():
            if re.search(pattern, path):
                self._used.add(pattern)
                wrong = self._misfit(axes, shape)
                if wrong is None:
                    cut = [axis or dtensor.UNSHARDED for axis in axes]
                    return dtensor.Layout(cut, self.devices)
                self._error = self._error or FinalError(
                    f"the layout {pattern!r} of 'dtensor' does not fit the variable {path} of "
                    f"shape {tuple(shape)}: {wrong}"
                )
        return replicated(self.devices, shape.rank)

    def _misfit(self, axes: Sequence[str | None], shape: tf.TensorShape) -> str | None:
        if len(axes) != shape.rank:
            return f"it has {len(axes)} entries; give an axis or null for each dimension"
        for axis, size in zip(axes, shape, strict=True):
            parts = self.devices.dim_size(axis) if axis else 1
            if size % parts:
                return (
                    f"{size} cannot be cut into {parts} along {axis!r}; make it a multiple, or "
                    "cut another dimension"
                )
        return None

    def sum(self, values: tf.Tensor) -> Any:
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
    return Mesh(mesh, arguments.layout)


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
