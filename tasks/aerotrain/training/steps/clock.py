"""The clock of a step, read in its graph."""

from typing import Any

import tensorflow as tf

from aerotrain.training.internals import tensorflow2


def read_after(*values: Any) -> tf.Tensor:
    """The time in seconds, float64, when this machine has all ``values``; None is ignored.

    Within one function, later calls are read later. It is 0 if operations are deterministic, as
    none reads a clock then.
    """
    if tensorflow2.is_deterministic():
        return unmeasured()
    known = [each for each in tf.nest.flatten(values, expand_composites=True) if each is not None]
    with tf.control_dependencies(known):
        return tf.timestamp()


def unmeasured(*_values: Any) -> tf.Tensor:
    """The clock of what is not measured: it is always 0."""
    return tf.zeros([], tf.float64)


def computed_at(*values: Any) -> tf.Tensor:
    """The same for what the replica of this context computes; 0 where that is not known.

    It is not known of GPUs, which run operations later than they are enqueued, nor of a TPU, whose
    programs have no clock. Nor is it of several replicas in one process: their clocks are read in
    the order in which TensorFlow traces the replicas, so that one would wait, with a collective
    operation, for the end of another one's.
    """
    if tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"):
        return unmeasured()
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1 and len(strategy.extended.worker_devices) > 1:
        return unmeasured()
    return read_after(*values)
