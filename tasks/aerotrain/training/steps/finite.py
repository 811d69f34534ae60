"""Finds the first step with a value that is not finite: a loss, or a weight after its update.

A bad weight need not show in the loss, for example where it passes a comparison. A bad gradient
need not spoil a weight: it may be clipped, or skipped by an optimizer that scales losses. So the
weights are what is checked, and of each only what the step has updated.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import tensorflow as tf


def first_bad(known: tf.Tensor, values: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """``known``, the last of ``MetricValues``, with ``step`` if it is the first bad one."""
    found = tf.stack([tf.cast(step, known.dtype), tf.ones([], known.dtype)])
    finite = [tf.reduce_all(tf.math.is_finite(each)) for each in values]
    bad = tf.logical_not(tf.reduce_all(tf.stack(finite)))
    return tf.where(tf.logical_and(bad, tf.equal(known[1], 0)), found, known)


def updated(weights: Sequence[tf.Variable], gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Numbers that are finite if all is that ``gradients`` have updated in ``weights``.

    There is one number for each device that holds weights, so that it takes one message.
    """
    pairs = [
        (weight, gradient)
        for weight, gradient in zip(weights, gradients, strict=True)
        if gradient is not None and weight.dtype.is_floating
    ]
    sums = []
    for device, group in groupby(sorted(pairs, key=_device), _device):
        with tf.device(device):
            sums.append(tf.add_n([_sum(*pair) for pair in group]))
    return sums


def _sum(weight: tf.Variable, gradient: Any) -> tf.Tensor:
    """A sum is finite if its terms are; it reads them only once."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.gather(weight, gradient.indices)
    else:
        rows = tf.convert_to_tensor(weight)
    # The sum of a large float16 weight would not be finite.
    return tf.reduce_sum(tf.cast(rows, tf.float32) if rows.dtype.size < 4 else rows)


def _device(pair: tuple[tf.Variable, Any]) -> str:
    return str(pair[0].device)
