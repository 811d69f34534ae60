"""One training step of a compiled Keras model.

The step does what ``keras.Model.train_step`` does, in the same order, so that one replica computes
the losses of ``fit``. It differs in two places, both because of ``tf.distribute``: metrics are
values (``state``), and the steps are counted in a separate variable, whatever callbacks assign to
``optimizer.iterations``.

A microbatch is a part of a batch, which several replicas, or one after another, compute. Its loss
is multiplied by its weight, the part of the batch's records that it has. So a mean over records, a
regularizer, and whatever else a user adds count once in the sum over all microbatches. A loss that
divides by something else, such as the number of steps that are not masked or the weights of
examples, is divided by that of the whole batch.

Each step is checked for values that are not finite. A bad weight need not show in the loss, for
example where it passes a comparison. A bad gradient need not spoil a weight: it may be clipped, or
skipped by an optimizer that scales losses. So the weights are what is checked, and of each only
what the step has updated.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import groupby
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3, tensorflow2
from aerotrain.training.steps.state import MetricScope, MetricState, MetricValues
from aerotrain.training.steps.updates import fuse

#: What a step returns: the sums with its batch added, and for how many seconds this replica
#: computed, without waiting for its batch, for weights or for other replicas.
StepResult = tuple[list[tf.Tensor], tf.Tensor]

#: What each loss of a microbatch divides by, in the order of their computation.
Counts = list[tf.Tensor]


class TrainStep:
    """One step of one replica, to be called through ``strategy.run``.

    ``counter`` is an int64 variable that holds the number of steps done. With ``fused``, the
    optimizer updates large variables by one operation each.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable, *, fused: bool = True) -> None:
        self.metrics = MetricState(model)
        self.model = model
        self.counter = counter
        if fused:
            fuse(inner(model.optimizer))

    def __call__(self, sums: MetricValues, batch: Any) -> StepResult:
        """Train on one batch of ``x``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        gradients, loss, sums = self.compute(sums, batch)
        done = self.apply(gradients)
        values = [loss, *updated(self.weights, gradients)]
        bad = first_bad(sums[-1], values, done)
        return [*sums[:-1], bad], self.computing(batch, gradients)

    @property
    def weights(self) -> list[tf.Variable]:
        """The variables that ``apply`` updates, in the order of the gradients."""
        return [each.value for each in self.model.trainable_weights]

    def compute(
        self,
        sums: MetricValues,
        batch: Any,
        weight: tf.Tensor | None = None,
        totals: Sequence[tf.Tensor] | None = None,
    ) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        """The gradients of one batch, its loss, and ``sums`` with the batch added.

        A microbatch has a ``weight``, its part of the records of its batch; one of 0 does not
        change the sums. ``totals`` are those of ``Microbatch``.
        """
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        scope = self._scope(sums)
        # Layers are called in it if they read fetched weights, or update metrics.
        layers = scope if scope.fetched or self.metrics.in_call else nullcontext()
        part = None
        if weight is not None:
            part = Microbatch(weight, counts_all=self.counts_all, totals=totals)
        with keras3.sharing(part):
            with tf.GradientTape() as tape:
                tape.watch([each for each in scope.fetched.values() if each.dtype.is_floating])
                with layers:
                    y_pred = keras3.call(model, x, training=True)
                added_losses = [*scope.losses, *self._losses_of_weights(scope)]
                with scope:
                    loss = keras3.compute_loss(model, x, y, y_pred, sample_weight, added_losses)
                    keras3.track_loss(model, loss, length(x))
                counted = loss if weight is None else loss * tf.cast(weight, loss.dtype)
                scaled = model.optimizer.scale_loss(counted)
            gradients = _gradients(tape, scaled, model.trainable_weights, scope.fetched)
            with scope, keras3.measuring():
                model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        added = self.metrics.of(scope)
        if weight is not None:
            added = [tf.where(weight > 0, *pair) for pair in zip(added, sums[:-1], strict=True)]
        return gradients, loss, [*added, sums[-1]]

    def counts(self, weight: tf.Tensor, batch: Any) -> Counts:
        """What the losses of a microbatch divide by, where that is not its number of records."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        counts: Counts = []
        counting = Microbatch(weight, counts_all=self.counts_all, counts=counts)
        # What layers and metrics assign in the scope is not kept.
        with keras.StatelessScope(), keras3.sharing(counting):
            y_pred = keras3.call(self.model, x, training=False)
            # In place of regularizers, which have no counts.
            none = [tf.zeros([])]
            keras3.compute_loss(self.model, x, y, y_pred, sample_weight, none)
        return counts

    def measured(
        self, state: MetricValues, x: Any, y: Any, y_pred: Any, weight: Any
    ) -> Sequence[tf.Tensor]:
        """The metrics' state after a batch with these outputs, but for those of losses.

        Nothing else is changed.
        """
        scope = keras.StatelessScope(self.metrics.pairs(state))
        with scope, keras3.measuring():
            if self.metrics.in_call:
                keras3.call(self.model, x, training=False)
            self.model.compute_metrics(x, y, y_pred, sample_weight=weight)
        return self.metrics.of(scope)

    @cached_property
    def counts_all(self) -> bool:
        """Whether a loss of the user's own may be a mean over something else than records."""
        known = all(keras3.is_of_keras(each) for each in keras3.losses(self.model))
        return keras3.has_own_compute_loss(self.model) or not known

    def computing(self, _batch: Any, _gradients: Sequence[Any]) -> tf.Tensor:
        """The seconds of computing; not measured where a replica waits only for its batch."""
        return unmeasured()

    def _scope(self, sums: MetricValues) -> MetricScope:
        return self.metrics.scope(sums)

    def _losses_of_weights(self, scope: MetricScope) -> list[tf.Tensor]:
        """The losses that the layers have added outside of ``scope``, and those of regularizers."""
        if not scope.fetched:
            return list(self.model.losses)
        return [
            each.regularizer(scope.fetched.get(id(each), each))
            for each in self.model.trainable_weights
            if each.regularizer is not None
        ]

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Apply ``gradients`` with the optimizer; return the number of steps done."""
        done = self.counter.assign_add(1, read_value=True)
        pairs = zip(gradients, self.model.trainable_weights, strict=True)
        self.model.optimizer.apply_gradients(pairs)
        return done


def inner(optimizer: Any) -> Any:
    """The optimizer that updates the weights: the inner one of a loss-scaling optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def length(x: Any) -> tf.Tensor:
    """The number of examples in the batch ``x``."""
    return tf.shape(tf.nest.flatten(x)[0])[0]


def _gradients(
    tape: tf.GradientTape, loss: tf.Tensor, weights: Sequence[Any], fetched: Mapping[int, tf.Tensor]
) -> list[Any]:
    """The gradient of each weight: by its fetched value, directly, or the sum of both."""
    known = [each for each in weights if id(each) in fetched]
    values = [fetched[id(each)] for each in known]
    direct, by_value = tape.gradient(loss, [list(weights), values])
    also = dict(zip(map(id, known), by_value, strict=True))
    return [_sum(also.get(id(each)), own) for each, own in zip(weights, direct, strict=True)]


def _sum(one: Any, other: Any) -> Any:
    """The sum of two gradients, of which either may be None."""
    if one is None or other is None:
        return other if one is None else one
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


class Microbatch:
    """One microbatch, for ``keras3.sharing``; its ``weight`` is a scalar.

    ``totals`` are the counts of the whole batch. Without them, each is added up over replicas
    where the loss is computed. With ``counts``, those of this microbatch are added to it, for the
    totals of its batch. ``counts_all`` is for losses that may be means over something else than
    records without a mask, such as selected values.
    """

    def __init__(
        self,
        weight: tf.Tensor,
        *,
        counts_all: bool,
        totals: Sequence[tf.Tensor] | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.weight = weight
        self._counts_all = counts_all
        self._totals = None if totals is None else iter(totals)
        self._counts = counts

    def of_batch(
        self, loss: tf.Tensor, reduction: str, count: Callable[[], tf.Tensor], *, by_records: bool
    ) -> tf.Tensor:
        """``loss``, of a microbatch by Keras's ``reduction``, as it counts in that of its batch.

        It will be multiplied by ``weight``. ``count`` makes the number by which a mean was
        divided. With ``by_records``, that is the number of all values, and so in most cases the
        number of records times a constant.
        """
        weight = tf.cast(self.weight, loss.dtype)
        if reduction == "sum":
            return tf.math.divide_no_nan(loss, weight)
        if by_records and not self._counts_all:
            return loss
        counted = count()
        # A microbatch with a weight of 0 has no record of its own.
        own = tf.stop_gradient(tf.where(weight > 0, counted, tf.zeros_like(counted)))
        return loss * tf.math.divide_no_nan(own, weight * self._total(own))

    def _total(self, own: tf.Tensor) -> tf.Tensor:
        if self._counts is not None:
            self._counts.append(own)
            return own
        if self._totals is not None:
            return next(self._totals)
        replica = tf.distribute.get_replica_context()
        return tf.stop_gradient(replica.all_reduce(tf.distribute.ReduceOp.SUM, own))


def totals_of(counts: Sequence[Counts]) -> Counts:
    """The counts of a batch, from those of this replica's microbatches, which all replicas call."""
    own = [tf.add_n(each) for each in zip(*counts, strict=True)]
    replica = tf.distribute.get_replica_context()
    if not own or replica.num_replicas_in_sync == 1:
        return own
    return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, own))


def first_bad(known: tf.Tensor, values: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
    """``known``, the last of ``MetricValues``, with ``step`` if it is the first bad one."""
    finite = [tf.reduce_all(tf.math.is_finite(each)) for each in values]
    bad = tf.logical_not(tf.reduce_all(tf.stack(finite)))
    # Added, as ``tf.where`` crashes DTensor on a scalar: ``known`` is 0 until then.
    is_first = tf.cast(tf.logical_and(bad, tf.equal(known[1], 0)), known.dtype)
    return known + is_first * tf.stack([tf.cast(step, known.dtype), tf.ones([], known.dtype)])


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
            sums.append(tf.add_n([_sum_of_updated(*pair) for pair in group]))
    return sums


def _sum_of_updated(weight: tf.Variable, gradient: Any) -> tf.Tensor:
    """A sum is finite if its terms are; it reads them only once."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.gather(weight, gradient.indices)
    else:
        rows = tf.convert_to_tensor(weight)
    # The sum of a large float16 weight would not be finite.
    return tf.reduce_sum(tf.cast(rows, tf.float32) if rows.dtype.size < 4 else rows)


def _device(pair: tuple[tf.Variable, Any]) -> str:
    return str(pair[0].device)


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
