"""Variables on other machines, read and updated by a step in one message per machine.

A worker and a ps that exchange four variables and their gradients separately spend more time on
messages than on the values. So the small variables of a machine are packed together.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import tensorflow as tf

#: Variables up to this size are packed. For a larger one, the cost of a message is small, and of an
#: embedding table a step needs only a few rows.
PACKED_BYTES = 2**20


class PackedVariables:
    """The small ones of the Keras variables ``variables``, grouped by machine.

    ``counter``, an int64 variable, is packed with those of its machine.
    """

    def __init__(self, variables: Iterable[Any], counter: tf.Variable) -> None:
        small = [each for each in variables if _bytes(each) <= PACKED_BYTES]
        self._groups = [list(group) for _, group in groupby(sorted(small, key=_place), _place)]
        self._counter = counter
        self.variables = [each for group in self._groups for each in group]

    def fetched(self) -> tuple[tf.Tensor, dict[int, tf.Tensor]]:
        """The current counter, and the values of ``variables`` by the variable's ``id``."""
        values: dict[int, tf.Tensor] = {}
        count = None
        for group in self._groups:
            device, dtype = _place(group[0])
            with tf.device(device):
                parts = [tf.reshape(each._value, [-1]) for each in group]
                if count is None and device == self._counter.device and dtype == "float32":
                    parts.append(tf.bitcast(self._counter.read_value(), tf.float32))
                flat = tf.concat(parts, axis=0)
            if len(parts) > len(group):
                flat, bits = flat[:-2], flat[-2:]
                count = tf.bitcast(bits, tf.int64)
            values |= zip(map(id, group), _apart(flat, group), strict=True)
        return self._counter.read_value() if count is None else count, values

    def delivered(self, gradients: Mapping[int, Any]) -> dict[int, Any]:
        """``gradients`` by the variable's ``id``; those of ``variables`` on their machines."""
        arrived = dict(gradients)
        for group in self._groups:
            sent = [each for each in group if isinstance(gradients[id(each)], tf.Tensor)]
            if not sent:
                continue
            flat = tf.concat([tf.reshape(gradients[id(each)], [-1]) for each in sent], axis=0)
            with tf.device(_place(group[0])[0]):
                arrived |= zip(map(id, sent), _apart(flat, sent), strict=True)
        return arrived


def _apart(flat: tf.Tensor, variables: Sequence[Any]) -> list[tf.Tensor]:
    parts = tf.split(flat, [each.shape.num_elements() for each in variables])
    return [
        tf.reshape(*pair) for pair in zip(parts, (each.shape for each in variables), strict=True)
    ]


def _bytes(variable: Any) -> int:
    value = variable._value
    return int(value.shape.num_elements() * value.dtype.size)


def _place(variable: Any) -> tuple[str, str]:
    value = variable._value
    return value.device, value.dtype.name
