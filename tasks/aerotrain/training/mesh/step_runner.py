"""The step runner of a mesh; every process of the mesh runs the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from aerotrain.contract.errors import FinalError
from aerotrain.contract.steps import BATCH_AXIS, TrainArguments
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.mesh.layouts import host, replicated
from aerotrain.training.mesh.mesh import MeshStrategy
from aerotrain.training.mesh.step import MeshStep
from aerotrain.training.model.strategy_checks import check_divisible
from aerotrain.training.step_runner import StepsRun, Told, nobody
from aerotrain.training.steps.step import MetricValues

#: The most steps in one execution. DTensor has no loops, so each step is compiled separately.
_UNROLLED = 4


def run_on_mesh(
    strategy: MeshStrategy, step: MeshStep, pipeline: InputPipeline, start: int
) -> "MeshStepRunner":
    """The step runner of a job under ``dtensor``.

    Raises:
        FinalError: a layout names no variable, or an argument is not possible on a mesh.
    """
    strategy.layouts.check_used()
    _refuse_arguments(pipeline.arguments)
    check_divisible(pipeline.job.strategy, pipeline.arguments, strategy.mesh.dim_size(BATCH_AXIS))
    return MeshStepRunner(
        strategy, step, pipeline.local(start), pipeline.arguments.steps_per_execution
    )


def _refuse_arguments(arguments: TrainArguments) -> None:
    several = dtensor.num_clients() > 1
    for name, asked, instead in (
        (
            "gradient_accumulation_steps",
            arguments.gradient_accumulation_steps > 1,
            "lower batch_size",
        ),
        ("jit_compile", arguments.jit_compile, "DTensor compiles its steps in its own way"),
        ("gradient_dtype", arguments.gradient_dtype != "float32", "use mixed_bfloat16"),
        ("checkpoint_interval", arguments.checkpoint_interval is None and several, "give a number"),
        ("validate", arguments.validate and several, "ask for an evaluator, which is a replica"),
    ):
        if asked:
            raise FinalError(
                f"{name}={getattr(arguments, name)!r} cannot be under 'dtensor'; leave it out "
                f"({instead}), or choose 'multi_worker_mirrored'"
            )


class MeshStepRunner:
    """Runs steps on the mesh. Each process reads every batch, and keeps its part of it."""

    def __init__(
        self, strategy: MeshStrategy, step: MeshStep, dataset: tf.data.Dataset, per_execution: int
    ) -> None:
        self._strategy = strategy
        self._counter = step.counter
        self._zero = step.metrics.zero
        self._execute = tf.function(step, autograph=False)
        self._batches = iter(dataset)
        self._per_execution = min(per_execution, _UNROLLED)

    def run(
        self, steps: int, sums: MetricValues | None = None, told: Told = nobody
    ) -> Iterator[StepsRun]:
        mesh = self._strategy.mesh
        begin = self._zero if sums is None else [np.asarray(each) for each in sums]
        sums = [dtensor.relayout(tf.constant(each), replicated(mesh, each.ndim)) for each in begin]
        done = 0
        for batches in self._executions(steps):
            before = int(self._counter.numpy())
            first = dtensor.relayout(tf.constant(before + 1, tf.int64), replicated(mesh, 0))
            with dtensor.default_mesh(mesh):
                sums = self._execute(sums, first, batches)
            self._counter.assign(before + len(batches))
            done += len(batches)
            yield StepsRun(done, [host(each) for each in sums], self._strategy.agreed(told()))

    def _executions(self, steps: int) -> Iterator[list[Any]]:
        """The batches of ``steps`` steps, in full lists of one shape, or in lists of one batch.

        Lists of any other length would each be compiled separately.
        """
        held: list[Any] = []
        for number in range(1, steps + 1):
            held.append(next(self._batches))
            alike = _length(held[-1]) == _length(held[0])
            if alike and len(held) < self._per_execution and number < steps:
                continue
            whole = alike and len(held) == self._per_execution
            for batches in [held] if whole else [[each] for each in held]:
                yield [tf.nest.map_structure(self._strategy.on_mesh, each) for each in batches]
            held = []

    def wait_until_idle(self) -> None:
        """Do nothing: an execution returns when its steps are done."""


def _length(batch: Any) -> int:
    return int(tf.nest.flatten(batch)[0].shape[0])
