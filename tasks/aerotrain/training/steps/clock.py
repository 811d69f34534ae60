"""The clock of a step, read in its graph."""

from typing import Any

import tensorflow as tf


def read_after(*values: Any) -> tf.Tensor:
    """The time in seconds, float64, when all ``values`` are computed; None among them is ignored.

    Within one function, later calls are read later. It is 0 where the time cannot be measured: see
    ``_is_unknown``.
    """
    if _is_unknown():
        return tf.zeros([], tf.float64)
    known = [each for each in tf.nest.flatten(values, expand_composites=True) if each is not None]
    with tf.control_dependencies(known):
        return tf.timestamp()


def _is_unknown() -> bool:
    """Whether operations are only enqueued, or belong to one of several replicas of this process.

    GPUs run operations later, and the programs of a TPU have no clock. The graph of a process
    has all of its replicas, whose clocks TensorFlow would read in the order in which it traces
    them. So one replica would wait with a collective operation for the end of another one's.
    """
    if tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"):
        return True
    strategy = tf.distribute.get_strategy()
    is_one_of_several = strategy.num_replicas_in_sync > 1
    return (
        is_one_of_several
        and not tf.distribute.in_cross_replica_context()
        and len(strategy.extended.worker_devices) > 1
    )
