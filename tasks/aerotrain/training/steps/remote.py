"""One training step of a worker whose variables are on parameter servers.

A worker and a ps that exchange four variables and their gradients separately spend more time on
messages than on the values. So the small variables of a machine are packed together, and read and
updated in one message. Of large tables, only the rows that a batch looks up are fetched.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3
from aerotrain.training.steps.state import MetricScope, MetricState, MetricValues, kept_by_layers
from aerotrain.training.steps.step import TrainStep, computed_at, inner
from aerotrain.training.steps.updates import fuse

#: Variables up to this size are packed. For a larger one, the cost of a message is small, and of an
#: embedding table a step needs only a few rows.
PACKED_BYTES = 2**20


class RemoteStep(TrainStep):
    """The step of ``TrainStep``, in few messages.

    It starts with one message that fetches all small weights, and ends with one that sends their
    gradients to the ps, where the optimizer runs.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable) -> None:
        super().__init__(model, counter)
        # On a ps every operation is costly, and concurrent updates change results more than
        # rounding.
        fuse(inner(model.optimizer), least=0)
        keras3.count_atomically(inner(model.optimizer))
        kept = kept_by_layers(model)
        self.packed = PackedVariables([*model.trainable_weights, *kept], counter)
        self.hold([])
        packed = {id(each) for each in self.packed.variables}
        for weight in model.trainable_weights:
            if id(weight) not in packed:
                keras3.gather_by_rows(weight)

    def computing(self, batch: Any, gradients: Sequence[Any]) -> tf.Tensor:
        begun = computed_at(batch, self._fetched)
        return computed_at(gradients) - begun

    def hold(self, variables: Iterable[Any]) -> None:
        """Let ``compute`` only return what is assigned to these variables, as ``held``."""
        self._held = {id(each): each for each in variables}

    def held(self) -> list[tf.Tensor]:
        """The values of these variables after what ``compute`` has computed last."""
        return [self._last.value_of(each) for each in self._held.values()]

    def _scope(self, sums: MetricValues) -> MetricScope:
        scope = self._last = FetchedScope(self.metrics, sums, self.packed, self._held)
        self.number = scope.count + 1
        self._fetched = [scope.count, *scope.fetched.values()]
        return scope

    def apply(self, gradients: Sequence[Any]) -> tf.Tensor:
        weights = self.model.trainable_weights
        ids = [id(each) for each in weights]
        arrived = self.packed.delivered(dict(zip(ids, gradients, strict=True)))
        with tf.device(self.counter.device):
            super().apply([arrived[each] for each in ids])
        # Reading the counter's present value would take one more message.
        return self.number


class PackedVariables:
    """The small ones of the Keras variables ``variables``, grouped by machine.

    ``counter``, an int64 variable, is packed with those of its machine.
    """

    def __init__(self, variables: Iterable[Any], counter: tf.Variable) -> None:
        small = [each for each in variables if bytes_of(each.value) <= PACKED_BYTES]
        self._groups = [list(group) for _, group in groupby(sorted(small, key=_place), _place)]
        self.counter = counter
        self.variables = [each for group in self._groups for each in group]

    def fetched(self) -> tuple[tf.Tensor, dict[int, tf.Tensor]]:
        """The current counter, and the values of ``variables`` by the variable's ``id``."""
        values: dict[int, tf.Tensor] = {}
        count = None
        for group in self._groups:
            device, dtype = _place(group[0])
            with tf.device(device):
                parts = [tf.reshape(each.value, [-1]) for each in group]
                if count is None and device == self.counter.device and dtype == "float32":
                    parts.append(tf.bitcast(self.counter.read_value(), tf.float32))
                flat = tf.concat(parts, axis=0)
            if len(parts) > len(group):
                flat, bits = flat[:-2], flat[-2:]
                count = tf.bitcast(bits, tf.int64)
            values |= zip(map(id, group), _apart(flat, group), strict=True)
        return self.counter.read_value() if count is None else count, values

    def delivered(self, gradients: Mapping[int, Any]) -> dict[int, Any]:
        """``gradients`` by the variable's ``id``; those of ``variables`` on their machines."""
        arrived = dict(gradients)
        for group in self._groups:
            sent = [each for each in group if isinstance(gradients.get(id(each)), tf.Tensor)]
            if not sent:
                continue
            flat = tf.concat([tf.reshape(gradients[id(each)], [-1]) for each in sent], axis=0)
            with tf.device(_place(group[0])[0]):
                arrived |= zip(map(id, sent), _apart(flat, sent), strict=True)
        return arrived


class FetchedScope(MetricScope):
    """A scope in which variables have the values that were fetched at the start of the step.

    What is assigned to those of ``held``, by ``id``, is kept in the scope.
    """

    def __init__(
        self,
        metrics: MetricState,
        sums: MetricValues,
        packed: PackedVariables,
        held: Mapping[int, Any],
    ) -> None:
        self.count, self.fetched = packed.fetched()
        self._held = held
        weights = [(each, self.fetched[id(each)]) for each in packed.variables]
        super().__init__([*metrics.pairs(sums), *weights])

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if id(variable) in self._held:
            keras.StatelessScope.add_update(self, update)
            return
        if id(variable) in self.fetched:
            # What a layer assigns is added: other workers may have updated the variable meanwhile.
            before = self.get_current_value(variable)
            value = tf.stop_gradient(tf.cast(value, before.dtype))
            keras3.add_directly(variable, value - before)
        super().add_update((variable, value))

    def value_of(self, variable: Any) -> tf.Tensor:
        """The value that a variable has in this scope."""
        known = self.get_current_value(variable)
        value = keras3.direct_value(variable) if known is None else known
        return tf.cast(tf.stop_gradient(tf.convert_to_tensor(value)), variable.dtype)


def _apart(flat: tf.Tensor, variables: Sequence[Any]) -> list[tf.Tensor]:
    parts = tf.split(flat, [each.shape.num_elements() for each in variables])
    return [
        tf.reshape(*pair) for pair in zip(parts, (each.shape for each in variables), strict=True)
    ]


def bytes_of(variable: tf.Variable) -> float:
    """The size of a value; infinite if its shape is not fixed."""
    elements = variable.shape.num_elements()
    return math.inf if elements is None else elements * variable.dtype.size


def _place(variable: Any) -> tuple[str, str]:
    value = variable.value
    return value.device, value.dtype.name
