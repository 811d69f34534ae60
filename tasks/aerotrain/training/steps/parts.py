"""Steps of which workers compute parts, and whose sum the chief applies: synchronous updates.

A worker writes the gradients of its part of a batch into a row of variables that are on the
machines of the weights. When each part has a row, the chief adds these rows up, and applies the
sum. A row is not read before it is complete, and what a worker writes too late is never read. So a
part may be computed again by another worker, and counts once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.internals import keras3
from aerotrain.training.steps.remote import PACKED_BYTES, RemoteStep, bytes_of
from aerotrain.training.steps.state import MetricValues, kept_by_layers
from aerotrain.training.steps.step import Counts, StepResult, first_bad, updated

#: The distance between the seeds of two parts.
_BETWEEN_SEEDS = 1_000_003


class Rows:
    """Rows of values like ``example``, one of which is dense or slices, at ``device``."""

    def __init__(self, example: Any, device: str, count: int) -> None:
        self._device = device
        self._is_dense = not isinstance(example, tf.IndexedSlices)
        with tf.device(device):
            if self._is_dense:
                zeros = tf.zeros([count, *example.shape], example.dtype)
                self._dense = tf.Variable(zeros, trainable=False)
                return
            shape = example.dense_shape
            self._shape = tf.constant(tf.get_static_value(shape))
            self._slices = [
                [_of_any_length(each) for each in (example.values, example.indices)]
                for _ in range(count)
            ]

    def write(self, row: tf.Tensor, value: Any) -> None:
        """Replace a row."""
        with tf.device(self._device):
            if self._is_dense:
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self._dense.handle,
                    indices=row,
                    updates=tf.convert_to_tensor(value, self._dense.dtype),
                )
                return
            given = (value.values, value.indices)
            tf.switch_case(
                tf.cast(row, tf.int32), [partial(_assign, each, given) for each in self._slices]
            )

    def read(self, rows: tf.Tensor, weights: tf.Tensor | None = None) -> Any:
        """The sum of ``rows``, in their order; each times its weight, if they have any."""
        with tf.device(self._device):
            if not self._is_dense:
                parts = [self._of_slices(each) for each in tf.unstack(rows)]
                values, indices = (tf.concat(each, 0) for each in zip(*parts, strict=True))
                return tf.IndexedSlices(values, indices, self._shape)
            each = self._dense.sparse_read(rows)
            if weights is None:
                return tf.reduce_sum(each, 0)
            if not each.dtype.is_floating:  # all parts count alike, as those of calls
                return each[0]
            return tf.tensordot(tf.cast(weights, each.dtype), each, 1)

    def _of_slices(self, row: tf.Tensor) -> Any:
        return tf.switch_case(
            tf.cast(row, tf.int32),
            [lambda own=own: [each.read_value() for each in own] for own in self._slices],
        )


def _of_any_length(value: tf.Tensor) -> tf.Variable:
    shape = [None, *value.shape[1:]]
    empty = tf.zeros([0, *value.shape[1:]], value.dtype)
    return tf.Variable(empty, trainable=False, shape=tf.TensorShape(shape))


def _assign(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> tf.Tensor:
    pairs = zip(variables, values, strict=True)
    done = [variable.assign(value, read_value=False) for variable, value in pairs]
    with tf.control_dependencies(done):
        return tf.zeros([])


class PartStep:
    """``step`` in parts: ``compute`` is called on workers, ``apply`` on the chief.

    ``rows`` is the number of rows, and ``spec`` that of the weight and the batch of a part. Both
    methods are called through ``strategy.run``.

    Raises:
        FinalError: layers keep more than workers can send with their gradients.
    """

    def __init__(self, step: RemoteStep, rows: int, spec: Any) -> None:
        self.metrics = step.metrics
        self._step = step
        self._held = kept_by_layers(step.model)
        for each in self._held:
            if bytes_of(each.value) > PACKED_BYTES:
                raise FinalError(
                    f"the layers assign to {each.path}, of more than {PACKED_BYTES} bytes, which "
                    "update='synchronous' cannot join; choose 'multi_worker_mirrored'"
                )
        generators = keras3.seed_generators(step.model)
        step.hold([*self._held, *(each.state for each in generators)])
        self._states = [each.state for each in generators]
        self._part: tf.Tensor | None = None
        for each in generators:
            keras3.change_seeds(each, self._of_part)
        #: What each loss divides by, as a specification; empty where that is the number of records.
        strategy = tf.distribute.get_strategy()
        self._counts = tf.function(step.counts, autograph=False)
        counted = self._counts.get_concrete_function(*spec).structured_outputs
        self.totals_spec = [tf.TensorSpec(each.shape, each.dtype) for each in counted]
        examples: list[Any] = []

        def look(weight: tf.Tensor, batch: Any) -> tf.Tensor:
            totals = [tf.zeros(each.shape, each.dtype) for each in self.totals_spec]
            gradients, _, _ = step.compute(self.metrics.zero, batch, weight, totals)
            examples[:] = gradients
            return tf.zeros([])

        tf.function(
            lambda *part: strategy.run(look, args=part), autograph=False
        ).get_concrete_function(*spec)
        devices = [each.device for each in step.weights]
        self._gradients = [
            None if example is None else Rows(example, device, rows)
            for example, device in zip(examples, devices, strict=True)
        ]
        self._values = [
            Rows(each.value, each.value.device, rows) for each in (*self._held, *self._states)
        ]

    def counts(self, weight: tf.Tensor, batch: Any) -> Counts:
        """What the losses of a part divide by."""
        counts: Counts = list(self._counts(weight, batch))
        return counts

    def compute(
        self,
        row: tf.Tensor,
        part: tf.Tensor,
        totals: Sequence[tf.Tensor],
        sums: MetricValues,
        element: tuple[tf.Tensor, Any],
    ) -> StepResult:
        """Write what a part of a batch adds to a step into ``row``; ``part`` is its number."""
        weight, batch = element
        self._part = part
        step, last = self._step, sums[-1]
        gradients, loss, sums = step.compute(sums, batch, weight, totals)
        self._part = None
        weights = step.model.trainable_weights
        known = dict(zip(map(id, weights), gradients, strict=True))
        arrived = step.packed.delivered(known)
        for rows, each in zip(self._gradients, weights, strict=True):
            if rows is not None:
                rows.write(row, arrived[id(each)])
        for rows, value in zip(self._values, step.held(), strict=True):
            rows.write(row, value)
        bad = first_bad(last, [loss], step.number)
        return [*sums[:-1], bad], step.computing(batch, gradients)

    def apply(self, rows: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Apply what ``rows`` have, one for each part; whether a weight is not finite then.

        The result is as the last of the ``MetricValues``.
        """
        step = self._step
        with tf.device(step.counter.device):
            gradients = [None if each is None else each.read(rows) for each in self._gradients]
            values = [each.read(rows, weights) for each in self._values]
            done = step.counter.assign_add(1, read_value=True)
            pairs = zip(gradients, step.model.trainable_weights, strict=True)
            step.model.optimizer.apply_gradients(pairs)
            for variable, value in zip((*self._held, *self._states), values, strict=True):
                variable.value.assign(value)
            finite = updated(step.weights, gradients)
            return first_bad(tf.zeros([2], tf.float64), finite, done)

    def _of_part(self, seed: tf.Tensor) -> tf.Tensor:
        """Other random numbers for each part."""
        if self._part is None:
            return seed
        number = tf.cast(self._part, seed.dtype) * _BETWEEN_SEEDS
        return seed + tf.stack([number, tf.zeros_like(number)])
