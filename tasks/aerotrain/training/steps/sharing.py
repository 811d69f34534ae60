"""A microbatch as a part of its batch, which several replicas, or one after another, compute.

Its loss is multiplied by its weight, the part of the batch's records that it has. So a mean over
records, a regularizer, and whatever else a user adds count once in the sum over all microbatches.
A loss that divides by something else, such as the number of steps that are not masked or the
weights of examples, is divided by that of the whole batch.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

#: What each loss of a microbatch divides by, in the order of their computation.
Counts = list[tf.Tensor]


class Microbatch:
    """One microbatch, for ``keras3.sharing``; its ``weight`` is a scalar.

    ``totals`` are the counts of the whole batch. Without them, each is added up over replicas
    where the loss is computed. ``counts_all`` is for losses that may be means over something else
    than records without a mask, such as selected values.
    """

    def __init__(
        self, weight: tf.Tensor, *, counts_all: bool, totals: Sequence[tf.Tensor] | None = None
    ) -> None:
        self.weight = weight
        self._counts_all = counts_all
        self._totals = totals
        self._number = 0

    def of_batch(
        self, loss: tf.Tensor, reduction: str, count: Callable[[], tf.Tensor], *, by_records: bool
    ) -> tf.Tensor:
        weight = tf.cast(self.weight, loss.dtype)
        if reduction == "sum":
            return tf.math.divide_no_nan(loss, weight)
        if by_records and not self._counts_all:
            return loss
        own = counted(count(), weight)
        total = self._total(own)
        return loss * tf.math.divide_no_nan(own, weight * total)

    def _total(self, own: tf.Tensor) -> tf.Tensor:
        if self._totals is None:
            replica = tf.distribute.get_replica_context()
            return tf.stop_gradient(replica.all_reduce(tf.distribute.ReduceOp.SUM, own))
        self._number += 1
        return self._totals[self._number - 1]


class Counting(Microbatch):
    """Takes the counts of a microbatch, for the ``totals`` of its batch."""

    def __init__(self, weight: tf.Tensor, *, counts_all: bool) -> None:
        super().__init__(weight, counts_all=counts_all)
        self.counts: Counts = []

    def _total(self, own: tf.Tensor) -> tf.Tensor:
        self.counts.append(own)
        return own


def counted(count: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """``count``; 0 for a microbatch that has a weight of 0, as it has no record of its own."""
    return tf.stop_gradient(tf.where(weight > 0, count, tf.zeros_like(count)))


def totals_of(counts: Sequence[Counts]) -> Counts:
    """The counts of a batch, from those of this replica's microbatches, which all replicas call."""
    own = [tf.add_n(each) for each in zip(*counts, strict=True)]
    replica = tf.distribute.get_replica_context()
    if not own or replica.num_replicas_in_sync == 1:
        return own
    return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, own))
