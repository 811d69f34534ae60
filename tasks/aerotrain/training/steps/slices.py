"""Gradients in slices, such as those of embeddings, added up over replicas.

Such a gradient has one slice per lookup of a row. The sum of two has the slices of both, as the
gradient of the joined batches would. Slices of one row are not added up here, because Keras's Adam
squares each slice and ``clipnorm`` measures each, so that the resulting weights would differ.

TensorFlow adds them up, too, but fails if lengths change from step to step: within one call of a
function a collective has one shape, for all steps of its loop. The last batch of an epoch, or
lookups that depend on the data, have other lengths. So slices are sent in blocks of a few sizes
here, each by its own collective.

https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/cross_device_utils.py
has ``_all_gather``, which a launcher calls for one replica. There is no public way to call it
inside a condition.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce

#: Bytes of a block. Slices are sent in one block of the smallest size that fits those of all
#: replicas, or in several of the largest. Each size is traced, which takes up to a second at the
#: start of training.
BLOCKS = (2**12, 2**15, 2**18, 2**21)


def joined(one: tf.IndexedSlices, other: tf.IndexedSlices) -> tf.IndexedSlices:
    """The sum of two gradients of one variable."""
    return tf.IndexedSlices(
        tf.concat([one.values, other.values], axis=0),
        tf.concat([one.indices, other.indices], axis=0),
        one.dense_shape,
    )


def summed(gradients: Sequence[Any]) -> list[Any]:
    """The sum of each gradient, a tensor or slices, over all replicas.

    Each replica must call this, in its own context. Slices come in the order of the replicas.
    """
    context = tf.distribute.get_replica_context()
    slices = [each for each in gradients if isinstance(each, tf.IndexedSlices)]
    dense = [each for each in gradients if not isinstance(each, tf.IndexedSlices)]
    dense_sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, dense) if dense else [])
    slices_sums = iter(_of_slices(context, slices) if slices else [])
    return [
        next(slices_sums if isinstance(each, tf.IndexedSlices) else dense_sums)
        for each in gradients
    ]


def _of_slices(context: Any, gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    collectives = getattr(context.strategy.extended, "_cross_device_ops", None)
    if not isinstance(collectives, CollectiveAllReduce):
        # A reduction within one process accepts another shape in each step.
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients)))
    all_gather = collectives._launchers[context._replica_id]._all_gather
    lengths = _lengths(context, gradients)
    sums: list[Any] = list(gradients)
    order = sorted(range(len(gradients)), key=lambda place: _kind(gradients[place]))
    for _, group in groupby(order, lambda place: _kind(gradients[place])):
        places = list(group)
        own = [gradients[place] for place in places]
        for place, sum_ in zip(
            places, _gathered(own, tf.gather(lengths, places, axis=1), all_gather), strict=True
        ):
            sums[place] = sum_
    return sums


def _kind(gradient: tf.IndexedSlices) -> tuple[str, int]:
    """The dtype of a gradient and the numbers per slice; equal kinds are sent together."""
    return gradient.dtype.name, gradient.values.shape[1:].num_elements()


def _lengths(context: Any, gradients: Sequence[tf.IndexedSlices]) -> tf.Tensor:
    """The number of slices of each gradient on each replica: ``(replicas, gradients)``, int64."""
    own = tf.stack([tf.shape(each.indices, tf.int64)[0] for each in gradients])
    replicas = context.num_replicas_in_sync
    line = tf.one_hot(context.replica_id_in_sync_group, replicas, dtype=tf.int64)
    return context.all_reduce(tf.distribute.ReduceOp.SUM, line[:, tf.newaxis] * own)


def _gathered(
    own: Sequence[tf.IndexedSlices], lengths: tf.Tensor, all_gather: Callable[..., Any]
) -> list[tf.IndexedSlices]:
    """The sums of gradients of one kind, whose numbers of slices are ``lengths``."""
    dtype, width = _kind(own[0])
    values = tf.concat([tf.reshape(each.values, [-1, width]) for each in own], axis=0)
    indices = tf.concat([tf.cast(each.indices, tf.int64) for each in own], axis=0)
    *sizes, greatest = [max(1, size // (tf.as_dtype(dtype).size * width)) for size in BLOCKS]
    most = tf.reduce_max(tf.reduce_sum(lengths, axis=1))
    replicas = lengths.shape[0]

    def block(size: int, begin: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """``size`` rows of each replica, from row ``begin`` on."""
        rows = values[begin : begin + size], indices[begin : begin + size]
        missing = size - tf.shape(rows[1])[0]
        gathered = (
            all_gather(tf.pad(rows[0], [[0, missing], [0, 0]]), None),
            all_gather(tf.pad(rows[1], [[0, missing]]), None),
        )
        return (
            tf.reshape(gathered[0], [replicas, size, width]),
            tf.reshape(gathered[1], [replicas, size]),
        )

    def in_several() -> tuple[tf.Tensor, tf.Tensor]:
        first = block(greatest, tf.zeros([], tf.int64))

        def body(begin: tf.Tensor, *known: tf.Tensor) -> list[tf.Tensor]:
            more = zip(known, block(greatest, begin), strict=True)
            return [begin + greatest, *(tf.concat(pair, axis=1) for pair in more)]

        shapes = [[], [replicas, None, width], [replicas, None]]
        _, *all_blocks = tf.while_loop(
            lambda begin, *_: begin < most,
            body,
            [tf.constant(greatest, tf.int64), *first],
            shape_invariants=[tf.TensorShape(shape) for shape in shapes],
            parallel_iterations=1,
        )
        return tuple(all_blocks)

    in_one = [partial(block, size, tf.zeros([], tf.int64)) for size in sizes]
    fit_not = tf.math.count_nonzero(most > sizes, dtype=tf.int32)
    all_values, all_indices = tf.switch_case(fit_not, [*in_one, in_several])
    ends = tf.cumsum(lengths, axis=1)
    begins = ends - lengths
    size = tf.shape(all_indices)[1]
    sums = []
    for place, each in enumerate(own):
        mine = tf.sequence_mask(ends[:, place], size) & ~tf.sequence_mask(begins[:, place], size)
        shape = tf.concat([[-1], tf.shape(each.values)[1:]], axis=0)
        sums.append(
            tf.IndexedSlices(
                tf.reshape(tf.boolean_mask(all_values, mine), shape),
                tf.cast(tf.boolean_mask(all_indices, mine), each.indices.dtype),
                each.dense_shape,
            )
        )
    return sums
