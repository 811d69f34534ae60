"""One training step of a compiled Keras model.

The step does what ``keras.Model.train_step`` does, in the same order, so that one replica computes
the losses of ``fit``. It differs in two places, both because of ``tf.distribute``: metrics are
values (``metric_state``), and the steps are counted in a separate variable, whatever callbacks
assign to ``optimizer.iterations``.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3
from aerotrain.training.steps.clock import unmeasured
from aerotrain.training.steps.finite import first_bad, updated
from aerotrain.training.steps.metric_state import MetricScope, MetricState, MetricValues
from aerotrain.training.steps.sharing import Counting, Counts, Microbatch
from aerotrain.training.steps.updates import fuse

#: What a step returns: the sums with its batch added, and for how many seconds this replica
#: computed, without waiting for its batch, for weights or for other replicas.
StepResult = tuple[list[tf.Tensor], tf.Tensor]


class TrainStep:
    """One step of one replica, to be called through ``strategy.run``.

    ``counter`` is an int64 variable that holds the number of steps done.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable) -> None:
        self.metrics = MetricState(model)
        self.model = model
        self._counter = counter
        fuse(inner(model.optimizer))

    def __call__(self, sums: MetricValues, batch: Any) -> StepResult:
        """Train on one batch of ``x``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        gradients, loss, sums = self.compute(sums, batch)
        done = self.apply(gradients)
        values = [loss, *updated(self.weights, gradients)]
        bad = first_bad(sums[-1], values, done)
        return [*sums[:-1], bad], self._computing(batch, gradients)

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
        change the sums. ``totals`` are those of ``sharing.Microbatch``.
        """
        if weight is None:
            return self._compute(sums, batch)
        part = Microbatch(weight, counts_all=self.counts_all, totals=totals)
        with keras3.sharing(part):
            gradients, loss, (*added, bad) = self._compute(sums, batch, weight)
        kept = [tf.where(weight > 0, new, old) for new, old in zip(added, sums[:-1], strict=True)]
        return gradients, loss, [*kept, bad]

    def counts(self, weight: tf.Tensor, batch: Any) -> Counts:
        """What the losses of a microbatch divide by, where that is not its number of records."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        counting = Counting(weight, counts_all=self.counts_all)
        # What layers and metrics assign in the scope is not kept.
        with keras.StatelessScope(), keras3.sharing(counting):
            y_pred = keras3.call(self.model, x, training=False)
            # In place of regularizers, which have no counts.
            none = [tf.zeros([])]
            keras3.compute_loss(self.model, x, y, y_pred, sample_weight, none)
        return counting.counts

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

    def _compute(
        self, sums: MetricValues, batch: Any, weight: tf.Tensor | None = None
    ) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        scope = self._scope(sums)
        with tf.GradientTape() as tape:
            tape.watch([each for each in scope.fetched.values() if each.dtype.is_floating])
            y_pred = self._forward(x, scope)
            added_losses = self._added_losses(scope)
            with scope:
                loss = keras3.compute_loss(model, x, y, y_pred, sample_weight, added_losses)
                keras3.track_loss(model, loss, length(x))
            counted = loss if weight is None else loss * tf.cast(weight, loss.dtype)
            scaled = model.optimizer.scale_loss(counted)
        gradients = _gradients(tape, scaled, model.trainable_weights, scope.fetched)
        with scope, keras3.measuring():
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return gradients, loss, [*self.metrics.of(scope), sums[-1]]

    def _computing(self, _batch: Any, _gradients: Sequence[Any]) -> tf.Tensor:
        """The seconds of computing; not measured where a replica waits only for its batch."""
        return unmeasured()

    def _scope(self, sums: MetricValues) -> MetricScope:
        return self.metrics.scope(sums)

    def _added_losses(self, scope: MetricScope) -> list[tf.Tensor]:
        return [*scope.losses, *self.model.losses]

    def _forward(self, x: Any, scope: MetricScope) -> Any:
        with scope if self.metrics.in_call else nullcontext():
            return keras3.call(self.model, x, training=True)

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Apply ``gradients`` with the optimizer; return the number of steps done."""
        done = self._counter.assign_add(1, read_value=True)
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
