"""One step that several replicas compute together, each on microbatches of one global batch.

Each microbatch comes with its weight in the batch (``sharing``), as the last batch of an epoch may
be divided unevenly. The sum of the gradients over all microbatches is then the gradient of the
global batch, as one replica would compute it. Clipping, weight decay and the optimizer use that
sum, never a part of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3
from aerotrain.training.steps.clock import computed_at
from aerotrain.training.steps.finite import first_bad, updated
from aerotrain.training.steps.metric_state import MetricValues
from aerotrain.training.steps.sharing import totals_of
from aerotrain.training.steps.slices import joined, summed
from aerotrain.training.steps.step import StepResult, TrainStep, inner

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
            with tf.control_dependencies([*losses, *_tensors(total or ())]):
                gradients, loss, sums = self._compute(
                    sums, tf.nest.map_structure(_now, batch), weight, totals
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
        own = [each for each in gradients if each is not None]
        sent = [tf.cast(each, self._dtype) if _shrinks(each, self._dtype) else each for each in own]
        received = iter(summed(sent))
        return [each if each is None else tf.cast(next(received), each.dtype) for each in gradients]


def _now(value: tf.Tensor) -> tf.Tensor:
    """``value``, after its control dependencies."""
    return tf.identity(value)


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        return joined(one, other)
    return one if other is None else tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def _shrinks(gradient: Any, dtype: tf.DType) -> bool:
    return bool(dtype.size < gradient.dtype.size)


def _tensors(gradients: Gradients) -> list[tf.Tensor]:
    present = [each for each in gradients if each is not None]
    return tf.nest.flatten(present, expand_composites=True)
