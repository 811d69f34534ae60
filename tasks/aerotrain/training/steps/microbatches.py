"""One step that several replicas compute together, each on microbatches of one global batch.

Each microbatch comes with its weight in the batch (``step.Microbatch``), as the last batch of an
epoch may be divided unevenly. The sum of the gradients over all microbatches is then the gradient
of the global batch, as one replica would compute it. Clipping, weight decay and the optimizer use
that sum, never a part of it.

Some gradients come in slices, such as those of embeddings: one per lookup of a row. The sum of two
has the slices of both, as the gradient of the joined batches would. Slices of one row are not added
up here, because Keras's Adam squares each slice and ``clipnorm`` measures each, so that the
resulting weights would differ. TensorFlow adds them up, too, but fails if lengths change from step
to step: within one call of a function a collective has one shape, for all steps of its loop. The
last batch of an epoch, or lookups that depend on the data, have other lengths. So slices are sent
in messages of a few sizes here, each by its own collective.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3, tensorflow2
from aerotrain.training.steps.state import MetricValues
from aerotrain.training.steps.step import (
    StepResult,
    TrainStep,
    computed_at,
    first_bad,
    inner,
    totals_of,
    updated,
)

#: A gradient for each trainable weight: a tensor, slices of one, or None.
Gradients = Sequence[Any]


class MicrobatchStep:
    """``step`` on this replica's microbatches of a batch, to be called through ``strategy.run``.

    Gradients are exchanged in ``gradient_dtype``. With ``jit_compile``, XLA compiles the
    computation of each replica, but not the exchange, which it cannot compile.
    """

    def __init__(
        self, step: TrainStep, *, replicas: int, gradient_dtype: str, jit_compile: bool
    ) -> None:
        self.metrics = step.metrics
        self._step = step
        self._replicas = replicas
        self._dtype = tf.as_dtype(gradient_dtype)
        self._compute: Callable[..., Any] = step.compute
        self._counts = tf.function(step.counts, autograph=False)
        self._is_compiled = jit_compile
        if jit_compile:
            self._compute = tf.function(step.compute, jit_compile=True, autograph=False)
        if replicas > 1 and isinstance(step.model, keras.Model):  # tf_keras is asked otherwise
            # Keras would add up gradients after clipping each replica's own.
            keras3.exchange_gradients_by(inner(step.model.optimizer))

    def __call__(
        self, sums: MetricValues, microbatches: Sequence[tuple[tf.Tensor, Any]]
    ) -> StepResult:
        """Train on ``microbatches``, each a weight and a batch."""
        begun = computed_at(microbatches)
        totals = self._totals(microbatches)
        total: Gradients | None = None
        losses: list[tf.Tensor] = []
        for weight, batch in microbatches:
            # One after another, to limit memory to that of one microbatch.
            present = [each for each in total or () if each is not None]
            before = tf.nest.flatten(present, expand_composites=True)
            with tf.control_dependencies([*losses, *before]):
                gradients, loss, sums = self._compute(
                    sums, tf.nest.map_structure(tf.identity, batch), weight, totals
                )
            if total is None:
                total = gradients
            else:
                total = [_added(*pair) for pair in zip(total, gradients, strict=True)]
            losses.append(loss)
        computing = computed_at(total) - begun
        exchanged = self._exchanged(total or ())
        received = computed_at(exchanged)
        done = self._step.apply(exchanged)
        values = [*losses, *updated(self._step.weights, exchanged)]
        bad = first_bad(sums[-1], values, done)
        if self._replicas > 1:  # the optimizer is in this process, too
            computing += computed_at(bad) - received
        return [*sums[:-1], bad], computing

    def _totals(self, microbatches: Sequence[tuple[tf.Tensor, Any]]) -> Sequence[tf.Tensor] | None:
        """What the losses of the whole batch divide by; None if replicas find it as they compute.

        They cannot before they have all microbatches, nor within what XLA compiles.
        """
        if len(microbatches) == 1 and not self._is_compiled:
            return None
        # One trace, with what differs between the microbatches left open.
        spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, microbatches[0])
        if not self._counts.get_concrete_function(*spec).structured_outputs:
            return []
        return totals_of([self._counts(*each) for each in microbatches])

    def _exchanged(self, gradients: Gradients) -> Gradients:
        """The sum of each gradient over all replicas; None stays None."""
        if self._replicas == 1:
            return gradients
        sent = [
            tf.cast(each, self._dtype) if self._dtype.size < each.dtype.size else each
            for each in gradients
            if each is not None
        ]
        received = iter(summed(sent))
        return [each if each is None else tf.cast(next(received), each.dtype) for each in gradients]


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        return joined(one, other)
    return one if other is None else tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


#: Bytes of a message. The slices of a replica are padded to the smallest size that holds those of
#: all replicas. Each size is traced, which takes up to a second at the start of training, so there
#: are few: steps of 8, which limit padding to 8 times the slices. The smallest takes hardly longer
#: than an empty message. Messages in a loop would need no great sizes, but TensorFlow matches
#: collectives of several devices in one process by the name of their loop, which differs between
#: the devices.
SIZES = (2**13, 2**16, 2**19, 2**22, 2**25, 2**28)

#: Dense gradients are sent in about so many packs, of at least so many bytes. The last layers' are
#: sent while those of the first ones are computed, and a pack uses the link while another one is
#: added up between the two halves of its exchange.
PACKS, LEAST_PACK = 8, 2**19

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
    dense_sums = iter(_of_dense(context, dense) if dense else [])
    slices_sums = iter(_of_slices(context, slices) if slices else [])
    return [
        next(slices_sums if isinstance(each, tf.IndexedSlices) else dense_sums)
        for each in gradients
    ]


def _of_dense(context: Any, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    is_known = all(each.shape.is_fully_defined() for each in gradients)
    if tensorflow2.collective_all_gather(context) is None or not is_known:
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients)))
    width = max(each.dtype.size for each in gradients)
    lengths = [each.shape.num_elements() for each in gradients]
    most = max(LEAST_PACK // width, sum(lengths) // PACKS)
    counts = [max(1, -(-length // most)) for length in lengths]
    pieces: list[tf.Tensor] = []
    for each, length, count in zip(gradients, lengths, counts, strict=True):
        sizes = [length // count + (number < length % count) for number in range(count)]
        pieces += tf.split(tf.reshape(each, [-1]), sizes)
    # TensorFlow begins with the last ones, and a pack ends when it has more bytes than this.
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=most * width // 2)
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, pieces, options))
    return [
        tf.reshape(tf.concat([next(sums) for _ in range(count)], axis=0), each.shape)
        for each, count in zip(gradients, counts, strict=True)
    ]


def _of_slices(context: Any, gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    all_gather = tensorflow2.collective_all_gather(context)
    if all_gather is None:
        # A reduction within one process accepts another shape in each step.
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients)))
    # The number of slices of each gradient on each replica: ``(replicas, gradients)``, int64.
    replicas, number = context.num_replicas_in_sync, context.replica_id_in_sync_group
    own_lengths = tf.stack([tf.shape(each.indices, tf.int64)[0] for each in gradients])
    line = tf.one_hot(number, replicas, dtype=tf.int64)[:, tf.newaxis] * own_lengths
    lengths = context.all_reduce(tf.distribute.ReduceOp.SUM, line)
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
