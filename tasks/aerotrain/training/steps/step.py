"""One training step of a compiled Keras model, and the sums of its metrics.

The step does what ``keras.Model.train_step`` does, in the same order, so that one replica computes
the losses of ``fit``. It differs in two places, both because of ``tf.distribute``:

* The metrics are tensors that a step takes and returns, not variables: concurrent updates of
  variables on a parameter server get lost, and under other strategies each variable would need
  its own reduction. The sums of several executions can be added.
* The steps are counted in a separate variable. Keras counts ``optimizer.iterations`` by
  reading, adding and writing, which loses counts when two workers do it at once.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.losses.loss import unscale_loss_for_distribution

from aerotrain.training.steps.fused import fuse
from aerotrain.training.steps.results import numbers

#: The state of every metric of a model, in the order of ``MetricState.variables``, followed by the
#: value that ``MetricState.bad_step`` reads.
MetricValues = Sequence[tf.Tensor]


class MetricState:
    """The model's metrics, including the mean loss, as values instead of variables."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        metrics = dict.fromkeys([*model._get_own_metrics(), *model.metrics])
        compiled = model._compile_metrics
        by_batch = getattr(model._compile_loss, "metrics", ())
        #: Each single metric, including those of ``compile``.
        self.metrics: list[Any] = [
            metric for each in metrics for metric in (each.metrics if each is compiled else [each])
        ]
        tracked = [model._loss_tracker, compiled, *by_batch]
        #: Whether the model or its layers have metrics that they update while they are called.
        self.in_call = any(each not in tracked for each in metrics)
        self.variables = [variable for metric in metrics for variable in metric.variables]
        #: The variables of per-output loss metrics, which count each batch once.
        self.by_batch = {id(variable) for metric in by_batch for variable in metric.variables}
        states = [np.asarray(each) for metric in metrics for each in metric.stateless_reset_state()]
        self.zero: list[np.ndarray[Any, Any]] = [*states, np.zeros(2)]

    def scope(self, sums: MetricValues) -> "MetricScope":
        """A scope in which the metrics read and update ``sums`` instead of their variables."""
        return MetricScope(self.pairs(sums))

    def pairs(self, sums: MetricValues) -> list[tuple[Any, tf.Tensor]]:
        """Each of the metrics' variables with its value."""
        return list(zip(self.variables, sums, strict=False))

    def of(self, scope: keras.StatelessScope) -> list[tf.Tensor]:
        """The sums that the metrics left in ``scope``, in the shapes of their variables."""
        return [
            tf.ensure_shape(scope.get_current_value(variable), variable.shape)
            for variable in self.variables
        ]

    def of_piece(
        self, before: MetricValues, after: MetricValues, share: tf.Tensor
    ) -> list[tf.Tensor]:
        """Scale what a microbatch added to ``before``, in ``after``, to its share of the batch.

        ``share`` is the weight of the microbatch's loss; with a share of 0, ``before`` is returned.
        """
        part = share / tf.distribute.get_strategy().num_replicas_in_sync
        counted = []
        for variable, old, new in zip(self.variables, before, after, strict=False):
            if id(variable) in self.by_batch:
                # Keras counts an update as one, but the microbatches of a batch count as one
                # together.
                new = old + (new - old) * tf.cast(part, new.dtype)
            counted.append(tf.where(share > 0, new, old))
        return counted

    def results(self, sums: MetricValues) -> dict[str, float]:
        """The results of ``sums``: a number per metric, under the name that ``fit`` gives it.

        The result of a metric with several numbers, such as one per class, is their mean.
        """
        with self.scope(sums):
            return numbers(self.model.get_metrics_result())

    def names(self) -> list[str]:
        """The names of what is logged for each epoch."""
        return list(self.results(self.zero))

    def measured_names(self) -> list[str] | None:
        """The names of what ``evaluate`` measures; None if the model has its own ``test_step``."""
        if type(self.model).test_step is not keras.Model.test_step:
            return None
        return list(MetricState.results(self, self.zero))

    def begin_of(self, metric: Any) -> list[np.ndarray[Any, Any]]:
        """The state of ``metric`` at the start of an epoch."""
        return [np.asarray(each) for each in metric.stateless_reset_state()]

    def updated(
        self, metric: Any, states: Sequence[Any], arguments: Sequence[Any]
    ) -> list[np.ndarray[Any, Any]]:
        """``states`` after an update with ``arguments``, outside of any step."""
        values = [tf.constant(each) for each in states]
        after = metric.stateless_update_state(values, *arguments)
        return [np.asarray(each) for each in after]

    def bad_step(self, sums: MetricValues) -> int | None:
        """The first step whose loss was not finite, or None.

        Replicas that compute one step together each add the number of their own first bad step, and
        one to the count. A bad value on one replica reaches all by the next step, because they
        share their gradients. So the mean, rounded down, is the first bad step of all.
        """
        numbers, replicas = np.asarray(sums[-1])
        return int(numbers // replicas) if replicas else None


class MetricScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """Captures assignments to some variables, and applies all other assignments.

    Layers that are called in it update their own state as usual, such as the statistics of batch
    normalization.
    """

    #: Values by the ``id`` of a weight that the model uses instead of the weight.
    fetched: Mapping[int, tf.Tensor] = MappingProxyType({})

    def __init__(self, state: list[tuple[Any, Any]]) -> None:
        super().__init__(state, collect_losses=True)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if id(variable) in self.state_mapping:
            super().add_update(update)
        else:
            variable._direct_assign(value)


class TrainStep:
    """One step of one replica, to be called through ``strategy.run``.

    ``counter`` is an int64 variable that holds the number of steps done.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable) -> None:
        self.metrics = MetricState(model)
        self.model = model
        self._counter = counter
        fuse(getattr(model.optimizer, "inner_optimizer", model.optimizer))
        if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
            # It counts the steps that were not skipped. Keras adds by reading and writing, which
            # loses counts when two workers do it at once; TensorFlow's add does not.
            count = model.optimizer.inner_optimizer._iterations
            count.assign_add = lambda value: count._value.assign_add(value)

    def __call__(self, sums: MetricValues, batch: Any) -> list[tf.Tensor]:
        """Train on one batch of ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.

        Returns ``sums`` with this batch added.
        """
        gradients, loss, sums = self.compute(sums, batch)
        done = self.apply(gradients)
        return [*sums[:-1], first_bad(sums[-1], loss, done)]

    def compute(
        self, sums: MetricValues, batch: Any, share: tf.Tensor | None = None
    ) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        """The gradients of one batch, its loss, and ``sums`` with the batch added.

        ``share`` is the weight of the loss in its step, 1 by default. A batch with a share of 0
        does not change the sums.
        """
        model = self.model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        scope = self._scope(sums)
        with tf.GradientTape() as tape:
            tape.watch(list(scope.fetched.values()))
            y_pred = self._forward(x, scope)
            # In a stateless scope, models see no losses of their layers unless these are passed in.
            model._losses_override = self._added_losses(scope)
            with scope:
                loss = model._compute_loss(x, y, y_pred, weight, training=True)
                whole = unscale_loss_for_distribution(loss)
                model._loss_tracker.update_state(whole, sample_weight=_length(x))
            model._losses_override = []
            counted = loss if share is None else loss * tf.cast(share, loss.dtype)
            scaled = model.optimizer.scale_loss(counted)
        gradients = _gradients(tape, scaled, model.trainable_weights, scope.fetched)
        with scope:
            model.compute_metrics(x, y, y_pred, sample_weight=weight)
        added = self.metrics.of(scope)
        if share is not None:
            added = self.metrics.of_piece(sums, added, share)
        return gradients, loss, [*added, sums[-1]]

    def _scope(self, sums: MetricValues) -> MetricScope:
        return self.metrics.scope(sums)

    def _added_losses(self, scope: MetricScope) -> list[tf.Tensor]:
        return [*scope.losses, *self.model.losses]

    def _forward(self, x: Any, scope: MetricScope) -> Any:
        with scope if self.metrics.in_call else nullcontext():
            return self._called(x)

    def _called(self, x: Any) -> Any:
        model = self.model
        return model(x, training=True) if model._call_has_training_arg else model(x)

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Apply ``gradients`` with the optimizer; return the number of steps done."""
        optimizer = self.model.optimizer
        done = self._counter.assign_add(1, read_value=True)
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            # Schedules and Adam's bias correction read this. Another worker may set it between here
            # and there. Under an asynchronous strategy it is thus off by at most the steps in
            # flight, but never falls behind permanently.
            optimizer._iterations.assign(done - 1)
        optimizer.apply_gradients(zip(gradients, self.model.trainable_weights, strict=True))
        return done


def first_bad(known: tf.Tensor, loss: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """``known``, the last of ``MetricValues``, with ``step`` if its loss is the first bad one."""
    found = tf.stack([tf.cast(step, known.dtype), tf.ones([], known.dtype)])
    bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(loss)))
    return tf.where(tf.logical_and(bad, tf.equal(known[1], 0)), found, known)


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


def _length(x: Any) -> tf.Tensor:
    """The number of examples in the batch ``x``."""
    return tf.shape(tf.nest.flatten(x)[0])[0]
