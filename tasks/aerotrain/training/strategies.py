"""The strategies by name, and how TensorFlow builds and drives each.

The other half of the table, which replicas each one needs, is ``aerotrain.contract.strategy``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from aerotrain.contract.job import Role
from aerotrain.training.drive import CoordinatorDrive, Drive, LocalDrive
from aerotrain.training.feed import Feed
from aerotrain.training.step import TrainStep


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one strategy is built, and how its steps are driven.

    ``drive`` takes the number of the step that training begins with. ``io_device`` is the
    device that reads and writes checkpoints for all others.
    """

    build: Callable[[], tf.distribute.Strategy]
    drive: Callable[[tf.distribute.Strategy, TrainStep, Feed, int], Drive]
    io_device: str | None = None


def _one_device() -> tf.distribute.Strategy:
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/device:{kind}:0")


def _drive_here(strategy: tf.distribute.Strategy, step: TrainStep, feed: Feed, start: int) -> Drive:
    return LocalDrive(strategy, step, feed.local(start), feed.arguments.steps_per_execution)


def _parameter_server() -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def _drive_workers(
    strategy: tf.distribute.Strategy, step: TrainStep, feed: Feed, _start: int
) -> Drive:
    workers = feed.job.count(Role.WORKER)
    return CoordinatorDrive(
        strategy, step, feed.remote, feed.arguments.steps_per_execution, workers
    )


ENGINES: Mapping[str, Engine] = {
    "one_device": Engine(build=_one_device, drive=_drive_here),
    "parameter_server": Engine(
        build=_parameter_server,
        drive=_drive_workers,
        io_device="/job:chief/replica:0/task:0/device:CPU:0",
    ),
}
