"""The clock of a step, read in its graph."""

from typing import Any

import tensorflow as tf


def read_after(*values: Any) -> tf.Tensor:
    """The time in seconds, float64, when all ``values`` are computed; None among them is ignored.

    Within one function, later calls are read later. It is 0 where operations are only enqueued, so
    that a clock would say nothing of them: on GPUs, and on a TPU, whose programs have no clock.
    """
    if tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"):
        return tf.zeros([], tf.float64)
    known = [each for each in tf.nest.flatten(values, expand_composites=True) if each is not None]
    with tf.control_dependencies(known):
        return tf.timestamp()
