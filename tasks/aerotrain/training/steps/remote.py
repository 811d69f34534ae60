"""One training step of a worker whose variables are on parameter servers."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.steps.compiled import inner
from aerotrain.training.steps.fused import fuse
from aerotrain.training.steps.packed_variables import PackedVariables
from aerotrain.training.steps.step import MetricScope, MetricState, MetricValues, TrainStep


class RemoteStep(TrainStep):
    """The step of ``TrainStep``, in few messages.

    It starts with one message that fetches all small weights, and ends with one that sends their
    gradients to the ps, where the optimizer runs. Of large tables, only the rows that a batch looks
    up are fetched.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable) -> None:
        super().__init__(model, counter)
        # On a ps every operation is costly, and concurrent updates change results more than
        # rounding.
        fuse(inner(model.optimizer), least=0)
        self._parcels = PackedVariables(model.trainable_weights, counter)
        together = {id(each) for each in self._parcels.variables}
        for weight in model.trainable_weights:
            if id(weight) not in together:
                # TensorFlow's gather calls it; without it, it would read the whole Keras variable.
                weight.sparse_read = weight._value.sparse_read

    def _scope(self, sums: MetricValues) -> MetricScope:
        scope = FetchedScope(self.metrics, sums, self._parcels)
        self._number = scope.count + 1
        return scope

    def _added_losses(self, scope: MetricScope) -> list[tf.Tensor]:
        regular = [
            each.regularizer(scope.fetched.get(id(each), each))
            for each in self.model.trainable_weights
            if each.regularizer is not None
        ]
        return [*scope.losses, *regular]

    def _forward(self, x: Any, scope: MetricScope) -> Any:
        with scope:
            return self._called(x)

    def apply(self, gradients: Sequence[Any]) -> tf.Tensor:
        weights = self.model.trainable_weights
        ids = [id(each) for each in weights]
        arrived = self._parcels.delivered(dict(zip(ids, gradients, strict=True)))
        with tf.device(self._counter.device):
            super().apply([arrived[each] for each in ids])
        # Reading the counter's present value would take one more message.
        return self._number


class FetchedScope(MetricScope):
    """A scope in which weights have the values that were fetched at the start of the step."""

    def __init__(self, metrics: MetricState, sums: MetricValues, packed: PackedVariables) -> None:
        self.count, self.fetched = packed.fetched()
        weights = [(each, self.fetched[id(each)]) for each in packed.variables]
        super().__init__([*metrics.pairs(sums), *weights])

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, _ = update
        if id(variable) in self.fetched:
            # A layer assigns to its own weight, so the fetched value is outdated.
            self.state_mapping.pop(id(variable), None)
        super().add_update(update)
