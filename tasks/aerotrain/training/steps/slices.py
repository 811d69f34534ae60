"""Gradients in slices, such as those of embeddings, added up over replicas.

Such a gradient has one slice per lookup of a row. The sum of two has the slices of both, as the
gradient of the joined batches would. Slices of one row are not added up here, because Keras's Adam
squares each slice and ``clipnorm`` measures each, so that the resulting weights would differ.

TensorFlow adds them up, too, but fails if lengths change from step to step: within one call of a
function a collective has one shape, for all steps of its loop. The last batch of an epoch, or
lookups that depend on the data, have other lengths. So slices are sent in messages of a few sizes
here, each by its own collective.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import tensorflow as tf

from aerotrain.training.internals import tensorflow2

#: Bytes of a message. The slices of a replica are padded to the smallest size that holds those of
#: all replicas. Each size is traced, which takes up to a second at the start of training, so there
#: are few: steps of 8, which limit padding to 8 times the slices. The smallest takes hardly longer
#: than an empty message. Messages in a loop would need no great sizes, but TensorFlow matches
#: collectives of several devices in one process by the name of their loop, which differs between
#: the devices.
SIZES = (2**13, 2**16, 2**19, 2**22, 2**25, 2**28)

#: The beginning of the error of a step with more slices than that.
TOO_MANY = "the gradient of an embedding has more than"

AllGather = Callable[[tf.Tensor], tf.Tensor]


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
    all_gather = tensorflow2.collective_all_gather(context)
    if all_gather is None:
        # A reduction within one process accepts another shape in each step.
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients)))
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
    own: Sequence[tf.IndexedSlices], lengths: tf.Tensor, all_gather: AllGather
) -> list[tf.IndexedSlices]:
    """The sums of gradients of one kind, whose numbers of slices are ``lengths``."""
    dtype, width = _kind(own[0])
    values, indices = _exchanged(
        tf.concat([tf.reshape(each.values, [-1, width]) for each in own], axis=0),
        tf.concat([tf.cast(each.indices, tf.int64) for each in own], axis=0),
        tf.reduce_max(tf.reduce_sum(lengths, axis=1)),
        [max(1, size // (tf.as_dtype(dtype).size * width)) for size in SIZES],
        lengths.shape[0],
        all_gather,
    )
    ends = tf.cumsum(lengths, axis=1)
    begins = ends - lengths
    size = tf.shape(indices)[1]
    sums = []
    for place, each in enumerate(own):
        mine = tf.sequence_mask(ends[:, place], size) & ~tf.sequence_mask(begins[:, place], size)
        shape = tf.concat([[-1], tf.shape(each.values)[1:]], axis=0)
        sums.append(
            tf.IndexedSlices(
                tf.reshape(tf.boolean_mask(values, mine), shape),
                tf.cast(tf.boolean_mask(indices, mine), each.indices.dtype),
                each.dense_shape,
            )
        )
    return sums


def _exchanged(
    values: tf.Tensor,
    indices: tf.Tensor,
    most: tf.Tensor,
    sizes: Sequence[int],
    replicas: int,
    all_gather: AllGather,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The values ``(replicas, rows, width)`` and indices ``(replicas, rows)`` of all replicas.

    ``values`` ``(slices, width)`` and ``indices`` ``(slices,)`` are of this replica, and ``most``
    is the greatest number of slices of a replica. There are as many rows as the smallest of
    ``sizes`` that is not less; those without a slice are padding.
    """

    def message(size: int) -> tuple[tf.Tensor, tf.Tensor]:
        missing = size - tf.shape(indices)[0]
        all_values = all_gather(tf.pad(values, [[0, missing], [0, 0]]))
        all_indices = all_gather(tf.pad(indices, [[0, missing]]))
        return (
            tf.reshape(all_values, [replicas, size, values.shape[1]]),
            tf.reshape(all_indices, [replicas, size]),
        )

    most_allowed = tf.debugging.assert_less_equal(
        most,
        tf.constant(sizes[-1], tf.int64),
        f"{TOO_MANY} {sizes[-1]} slices of {values.shape[1]} "
        "numbers in one step of a replica; use smaller batches",
    )
    with tf.control_dependencies([most_allowed]):
        too_small = tf.math.count_nonzero(most > sizes[:-1], dtype=tf.int32)
    return tf.switch_case(too_small, [partial(message, size) for size in sizes])
