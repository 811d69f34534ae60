"""One training step of a compiled Keras model, and the sums that its metrics are made of.

The step does what ``keras.Model.train_step`` does, in the same order, so that one replica
computes the losses that ``fit`` would. It differs in two places, both for the sake of
``tf.distribute``:

* The metrics live in tensors that a step takes and returns, never in their variables:
  updates of variables on a parameter server get lost, and under other strategies each
  would need a reduction of its own. The sums of several executions can be added.
* The steps are counted in a variable of ours. Keras counts ``optimizer.iterations`` by
  reading, adding and writing, which loses counts when two workers do it at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

#: The state of every metric of a model, in the order of ``MetricSums.variables``.
Sums = Sequence[tf.Tensor]


class MetricSums:
    """The model's own metrics, the mean loss among them, as values instead of variables."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        metrics = model._get_own_metrics()
        self.variables = [variable for metric in metrics for variable in metric.variables]
        self.zero: list[np.ndarray[Any, Any]] = [
            np.asarray(value) for metric in metrics for value in metric.stateless_reset_state()
        ]

    def scope(self, sums: Sums) -> keras.StatelessScope:
        """A scope in which the metrics read and update ``sums`` instead of their variables."""
        return keras.StatelessScope(list(zip(self.variables, sums, strict=True)))

    def of(self, scope: keras.StatelessScope) -> list[tf.Tensor]:
        """The sums that the metrics left in ``scope``, of the shapes of their variables."""
        return [
            tf.ensure_shape(scope.get_current_value(variable), variable.shape)
            for variable in self.variables
        ]

    def results(self, sums: Sums) -> dict[str, float]:
        """What ``sums`` amount to: a number a metric, under the name that ``fit`` gives it.

        Of a metric with several numbers, such as one a class, it is their mean.
        """
        with self.scope(sums):
            results: Mapping[str, Any] = self._model.get_metrics_result()
        return {name: float(np.mean(value)) for name, value in results.items()}


class TrainStep:
    """One step of one replica, to be called through ``strategy.run``.

    ``counter`` is an int64 variable that holds the number of steps done.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable) -> None:
        self.metrics = MetricSums(model)
        self._model = model
        self._counter = counter

    def __call__(self, sums: Sums, batch: Any) -> list[tf.Tensor]:
        """Train on one batch of ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.

        Returns ``sums`` with this batch added.
        """
        model = self._model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        scope = self.metrics.scope(sums)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
            # In a stateless scope, models see no losses of their layers unless handed to them.
            model._losses_override = model.losses
            with scope:
                loss = model._compute_loss(x, y, y_pred, weight, training=True)
                model._loss_tracker.update_state(loss, sample_weight=_length(x))
            model._losses_override = []
            scaled = model.optimizer.scale_loss(loss)
        self._apply(tape.gradient(scaled, model.trainable_weights))
        with scope:
            model.compute_metrics(x, y, y_pred, sample_weight=weight)
        return self.metrics.of(scope)

    def _apply(self, gradients: Sequence[tf.Tensor]) -> None:
        optimizer = self._model.optimizer
        done = self._counter.assign_add(1, read_value=True)
        # Schedules and Adam's bias correction read this. Another worker may set it between
        # here and there, so under an asynchronous strategy it is off by at most the steps
        # that are in flight; what matters is that it never falls behind for good.
        optimizer._iterations.assign(done - 1)
        optimizer.apply_gradients(zip(gradients, self._model.trainable_weights, strict=True))


def _length(x: Any) -> tf.Tensor:
    """How many examples the batch ``x`` holds."""
    return tf.shape(tf.nest.flatten(x)[0])[0]
