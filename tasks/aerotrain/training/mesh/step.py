"""Training steps of a compiled Keras model whose variables are on a mesh, and their runner."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import BATCH_AXIS, TrainArguments
from aerotrain.training.input.batches import untuned
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.internals import keras3, tensorflow2
from aerotrain.training.mesh.mesh import Mesh, host, replicated
from aerotrain.training.model.checks import check_divisible, check_fixed_batch, check_unconditional
from aerotrain.training.step_runner import Spent, StepRunner, StepsRun, never
from aerotrain.training.steps.custom import has_custom_step
from aerotrain.training.steps.state import MetricScope, MetricValues
from aerotrain.training.steps.step import TrainStep, first_bad

#: The most steps in one execution. DTensor has no loops, so each step is compiled separately.
_UNROLLED = 4


class MeshStep(TrainStep):
    """Training steps that read every variable once before, and write it once after all else.

    Inside DTensor's functions a read does not wait for the previous write, so an optimizer that
    updates its moments and then reads them sometimes gets the old values.

    ``_batch`` is the spec that other steps trace a model's own step with; it is not used here.

    Raises:
        FinalError: the model needs what is not possible on a mesh.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable, _batch: Any = None) -> None:
        if has_custom_step(model):
            raise FinalError(
                f"{type(model).__name__} has a train_step of its own, which writes its variables "
                "in an order that 'dtensor' does not keep; override compute_loss instead of "
                "train_step, or choose 'one_device' or 'mirrored'"
            )
        check_unconditional("dtensor", model)
        super().__init__(model, counter, fused=False)
        self.counter = counter
        metrics = {id(each) for each in self.metrics.variables}
        self._weights = [each for each in model.variables if id(each) not in metrics]
        self._slots = list(model.optimizer.variables)

    def train(self, sums: MetricValues, first: tf.Tensor, batches: Sequence[Any]) -> MetricValues:
        """Train on each of ``batches`` in turn, and return ``sums`` with them added.

        ``first`` is the number of the first of these steps, counted from 1.
        """
        optimizer, trainable = self.model.optimizer, self.model.trainable_weights
        variables = [*self._weights, *self._slots]
        before = {id(each): each.value.read_value() for each in variables}
        #: The values of variables by their ``id``.
        self._values = dict(before)
        for index, batch in enumerate(batches):
            gradients, loss, sums = self.compute(sums, batch)
            slots = [self._values[id(each)] for each in self._slots]
            trained = [self._values[id(each)] for each in trainable]
            trained, slots = keras3.stateless_apply(optimizer, slots, gradients, trained)
            self._values |= {
                id(each): self._mesh_scope.get_current_value(each) for each in self._weights
            }
            self._values |= zip(map(id, trainable), trained, strict=True)
            self._values |= zip(map(id, self._slots), slots, strict=True)
            sums = [*sums[:-1], first_bad(sums[-1], [loss, *trained], first + index)]
        for variable in variables:
            if (new := self._values[id(variable)]) is not before[id(variable)]:
                variable.value.assign(new)
        return sums

    def _scope(self, sums: MetricValues) -> MetricScope:
        state = [(each, self._values[id(each)]) for each in [*self._weights, *self._slots]]
        self._mesh_scope = _MeshScope([*self.metrics.pairs(sums), *state])
        trainable = map(id, self.model.trainable_weights)
        self._mesh_scope.fetched = {each: self._values[each] for each in trainable}
        return self._mesh_scope


class _MeshScope(MetricScope):
    """A scope in which no gradient passes through what a layer assigns, as through a variable."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        super().add_update((variable, tf.stop_gradient(value)))


class MeshStepRunner(StepRunner):
    """Runs steps on the mesh. Each process reads every batch, and keeps its part of it."""

    def __init__(
        self, mesh: Mesh, step: MeshStep, dataset: tf.data.Dataset, per_execution: int
    ) -> None:
        self._mesh = mesh
        self._counter = step.counter
        self._zero = step.metrics.zero
        self._execute = tf.function(step.train, autograph=False)
        self._batches = iter(untuned(dataset))
        self._per_execution = min(per_execution, _UNROLLED)
        #: The lengths of lists of batches, and the sizes of these, that were compiled.
        self._compiled: set[tuple[int, int]] = set()

    def run(
        self, steps: int, sums: MetricValues | None = None, is_preempted: Callable[[], bool] = never
    ) -> Iterator[StepsRun]:
        mesh = self._mesh.devices
        begin = self._zero if sums is None else [np.asarray(each) for each in sums]
        sums = [dtensor.relayout(tf.constant(each), replicated(mesh, each.ndim)) for each in begin]
        done = 0
        begun = time.monotonic()
        for batches, waiting in self._executions(steps):
            before = int(self._counter.numpy())
            first = dtensor.relayout(tf.constant(before + 1, tf.int64), replicated(mesh, 0))
            kind = (len(batches), _rows(batches[0]))
            self.compiles = kind not in self._compiled
            with dtensor.default_mesh(mesh):
                sums = self._execute(sums, first, batches)
            self._compiled.add(kind)
            self._counter.assign(before + len(batches))
            done += len(batches)
            preempted = self._mesh.any_preempted(is_preempted())
            spent = (Spent(len(batches), time.monotonic() - begun, waiting),)
            yield StepsRun(done, [host(each) for each in sums], preempted, spent)
            begun = time.monotonic()

    def wait_until_idle(self) -> None:
        tensorflow2.wait_for_operations()

    def _executions(self, steps: int) -> Iterator[tuple[list[Any], float]]:
        """The batches of ``steps`` steps, in full lists of one shape, or in lists of one batch.

        Lists of any other length would each be compiled separately. Each comes with the seconds
        that it was waited for.
        """
        held: list[Any] = []
        waiting = 0.0
        for number in range(1, steps + 1):
            begun = time.monotonic()
            held.append(next(self._batches))
            waiting += time.monotonic() - begun
            alike = _rows(held[-1]) == _rows(held[0])
            if alike and len(held) < self._per_execution and number < steps:
                continue
            whole = alike and len(held) == self._per_execution
            for batches in [held] if whole else [[each] for each in held]:
                yield [tf.nest.map_structure(self._mesh.on_mesh, each) for each in batches], waiting
                waiting = 0.0
            held = []


def run_on_mesh(mesh: Mesh, step: MeshStep, pipeline: InputPipeline, start: int) -> MeshStepRunner:
    """The step runner of a job under ``dtensor``.

    Raises:
        FinalError: a layout names no variable, or an argument is not possible on a mesh.
    """
    mesh.check_used()
    _check_arguments(pipeline.arguments)
    check_divisible(pipeline.job.strategy, pipeline.arguments, mesh.devices.dim_size(BATCH_AXIS))
    check_fixed_batch(step.model, pipeline.arguments, pipeline.schedule.records)
    return MeshStepRunner(mesh, step, pipeline.local(start), pipeline.arguments.steps_of_execution)


def _check_arguments(arguments: TrainArguments) -> None:
    several = dtensor.num_clients() > 1
    for name, asked, instead in (
        (
            "gradient_accumulation_steps",
            arguments.gradient_accumulation_steps > 1,
            "lower batch_size",
        ),
        ("jit_compile", arguments.jit_compile, "DTensor compiles its steps in its own way"),
        ("gradient_dtype", arguments.gradient_dtype != "float32", "use mixed_bfloat16"),
        ("validate", arguments.validate and several, "ask for an evaluator, which is a replica"),
    ):
        if asked:
            raise FinalError(
                f"{name}={getattr(arguments, name)!r} cannot be under 'dtensor'; leave it out "
                f"({instead}), or choose 'multi_worker_mirrored'"
            )


def _rows(batch: Any) -> int:
    return int(tf.nest.flatten(batch)[0].shape[0])
