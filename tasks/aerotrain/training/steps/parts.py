"""Steps of which workers compute parts, and whose sum the chief applies: synchronous updates.

A worker writes the gradients of its part of a batch into a row of variables that are on the
machines of the weights. When each part has a row, the chief adds these rows up, and applies the
sum. A row is not read before it is complete, and what a worker writes too late is never read. So a
part may be computed again by another worker, and counts once.
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.internals import keras3
from aerotrain.training.steps.remote import PACKED_BYTES, RemoteStep, bytes_of
from aerotrain.training.steps.state import MetricValues, kept_by_layers, seed_of
from aerotrain.training.steps.step import Counts, StepResult, first_bad, updated


class Rows:
    """Rows of values of one shape, of ``dtype``, at ``device``."""

    def __init__(self, shape: Any, dtype: tf.DType, device: str, count: int) -> None:
        self._device = device
        with tf.device(device):
            self._rows = tf.Variable(tf.zeros([count, *shape], dtype), trainable=False)

    def write(self, row: tf.Tensor, _number: tf.Tensor, value: Any) -> None:
        """Replace a row."""
        with tf.device(self._device):
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._rows.handle,
                indices=row,
                updates=tf.convert_to_tensor(value, self._rows.dtype),
            )

    def sum(self, rows: tf.Tensor, _numbers: tf.Tensor) -> tf.Tensor:
        """The sum of ``rows``, in their order."""
        with tf.device(self._device):
            return tf.reduce_sum(self._rows.sparse_read(rows), 0)

    def mean(self, rows: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """The mean of ``rows`` by their weights; of integers, which count calls, the first row."""
        with tf.device(self._device):
            values = self._rows.sparse_read(rows)
            if not values.dtype.is_floating:
                return values[0]
            return tf.tensordot(tf.cast(weights, values.dtype), values, 1)

    def drop(self, _numbers: tf.Tensor) -> None:
        """Rows that are not read are replaced later."""


class Slices:
    """The same for gradients in slices, ``example`` one of them: as many as a part has.

    They are kept by the number of an execution, because TensorFlow cannot send a worker the handle
    of a variable without a fixed shape: the worker would abort.
    """

    def __init__(self, example: tf.IndexedSlices, device: str) -> None:
        self._device, self._shape = device, tf.get_static_value(example.dense_shape)
        self._dtypes = [example.values.dtype, example.indices.dtype]
        self._inner = [example.values.shape[1:], []]
        self._name = uuid4().hex

    def write(self, _row: tf.Tensor, number: tf.Tensor, value: tf.IndexedSlices) -> None:
        with tf.device(self._device):
            tf.raw_ops.MapStage(
                key=number,
                indices=[0, 1],
                values=[value.values, value.indices],
                dtypes=self._dtypes,
                shared_name=self._name,
            )

    def sum(self, _rows: tf.Tensor, numbers: tf.Tensor) -> tf.IndexedSlices:
        with tf.device(self._device):
            taken = [self._taken(each) for each in tf.unstack(numbers)]
            values, indices = (tf.concat(each, 0) for each in zip(*taken, strict=True))
            return tf.IndexedSlices(values, indices, tf.constant(self._shape))

    def drop(self, numbers: tf.Tensor) -> None:
        """Forget what executions have written whose part another one has done."""

        def body(place: tf.Tensor) -> tf.Tensor:
            with tf.device(self._device), tf.control_dependencies(self._taken(numbers[place])):
                return place + 1

        count = tf.size(numbers)
        tf.while_loop(lambda place: place < count, body, [tf.constant(0)], parallel_iterations=1)

    def _taken(self, number: tf.Tensor) -> list[tf.Tensor]:
        taken = tf.raw_ops.MapUnstage(
            key=number, indices=[0, 1], dtypes=self._dtypes, shared_name=self._name
        )
        return [
            tf.ensure_shape(value, [None, *inner])
            for value, inner in zip(taken, self._inner, strict=True)
        ]


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
        self._gradients = [
            _rows_of(example, each.device, rows)
            for example, each in zip(examples, step.weights, strict=True)
        ]
        self._values = [
            Rows(each.shape, tf.as_dtype(each.dtype), each.value.device, rows)
            for each in (*self._held, *self._states)
        ]

    def counts(self, weight: tf.Tensor, batch: Any) -> Counts:
        """What the losses of a part divide by."""
        counts: Counts = list(self._counts(weight, batch))
        return counts

    def compute(
        self,
        row: tf.Tensor,
        number: tf.Tensor,
        part: tf.Tensor,
        totals: Sequence[tf.Tensor],
        sums: MetricValues,
        element: tuple[tf.Tensor, Any],
    ) -> StepResult:
        """Write what a part of a batch adds to a step into ``row``.

        ``number`` is that of this execution, and ``part`` that of the part.
        """
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
                rows.write(row, number, arrived[id(each)])
        for held, value in zip(self._values, step.held(), strict=True):
            held.write(row, number, value)
        bad = first_bad(last, [loss], step.number)
        return [*sums[:-1], bad], step.computing(batch, gradients)

    def apply(
        self, rows: tf.Tensor, numbers: tf.Tensor, weights: tf.Tensor, dropped: tf.Tensor
    ) -> tf.Tensor:
        """Apply what ``rows`` have, one for each part, as ``numbers`` have written them.

        Forget what those in ``dropped`` have written. Returns the first bad step, as the last of
        the ``MetricValues``.
        """
        step = self._step
        with tf.device(step.counter.device):
            written = [each for each in self._gradients if each is not None]
            for each in written:
                each.drop(dropped)
            sums = iter([each.sum(rows, numbers) for each in written])
            gradients = [each if each is None else next(sums) for each in self._gradients]
            values = [each.mean(rows, weights) for each in self._values]
            done = step.counter.assign_add(1, read_value=True)
            pairs = zip(gradients, step.model.trainable_weights, strict=True)
            step.model.optimizer.apply_gradients(pairs)
            for variable, value in zip((*self._held, *self._states), values, strict=True):
                variable.value.assign(value)
            finite = updated(step.weights, gradients)
            return first_bad(tf.zeros([2], tf.float64), finite, done)

    def _of_part(self, seed: tf.Tensor) -> tf.Tensor:
        """Other random numbers for each part."""
        return seed if self._part is None else seed_of(self._part, seed)


def _rows_of(example: Any, device: str, count: int) -> Rows | Slices | None:
    """Where gradients like ``example`` are kept; None if a weight has none."""
    if example is None:
        return None
    if isinstance(example, tf.IndexedSlices):
        return Slices(example, device)
    return Rows(example.shape, example.dtype, device, count)
