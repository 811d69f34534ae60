"""Step runners: how the steps of a training are run, and the one that runs them in this process."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf

from aerotrain.contract.training import TrainArguments
from aerotrain.training.context import StrategyDistribution
from aerotrain.training.internals import tensorflow2
from aerotrain.training.steps.state import LayerState, MetricState, MetricValues, kept_by_layers
from aerotrain.training.steps.step import StepResult, unmeasured

#: Seconds that an execution may take where ``steps_per_execution`` is not set. Between two of them
#: progress is reported, a preemption is noticed, and checkpoints are saved.
EXECUTION_SECONDS = 2.0


@dataclass(frozen=True)
class Spent:
    """How long a number of steps of one replica took, in seconds.

    ``input`` is the wait for their batches. ``computing`` is None where it includes the exchange
    with other replicas, or where there is none. ``worker`` is the index of the coordinator's worker
    that ran them, and None for this process.
    """

    steps: int
    seconds: float
    input: float
    computing: float | None = None
    worker: int | None = None


@dataclass(frozen=True)
class StepsRun:
    """The result of a run so far: the number of steps done, and the sums of their metrics.

    ``preempted`` is whether any of the replicas that compute together was preempted, and ``spent``
    the time of the last execution.
    """

    steps: int
    sums: MetricValues
    preempted: bool = False
    spent: tuple[Spent, ...] = ()


def never() -> bool:
    """Not preempted."""
    return False


class ExecutionSize:
    """The most steps in the next execution: ``most``, or as many as take ``EXECUTION_SECONDS``.

    The latter if it ``adapts``; then there is one step in an execution until steps were measured.
    """

    def __init__(self, most: int, *, adapts: bool) -> None:
        self._most = most
        self._adapts = adapts
        self.steps = 1 if adapts else most

    @classmethod
    def of(cls, arguments: TrainArguments) -> Self:
        """The size by the arguments of a training, which adapts unless they say it."""
        return cls(arguments.steps_of_execution, adapts=arguments.steps_per_execution is None)

    def measured(self, seconds: float) -> None:
        """Take note of the seconds that a step takes; 0 if that is unknown."""
        if self._adapts and seconds:
            self.steps = min(self._most, max(1, int(EXECUTION_SECONDS / seconds)))


class Step(Protocol):
    """The step of one replica: a function of the sums and an element of the data set."""

    metrics: MetricState

    def __call__(self, sums: MetricValues, batch: Any, /) -> StepResult: ...


class StepRunner(ABC):
    """Runs training steps under one strategy."""

    #: Whether the execution that runs now is of a kind that must be traced and compiled first; not
    #: where one trace is for all batches.
    compiles = False

    def is_alone(self) -> bool:
        """Whether steps wait for any worker to come."""
        return False

    @abstractmethod
    def run(
        self, steps: int, sums: MetricValues | None = None, is_preempted: Callable[[], bool] = never
    ) -> Iterator[StepsRun]:
        """Run ``steps`` steps, and yield the result so far after each execution.

        ``sums`` are those of earlier steps of the same epoch, if any. ``is_preempted`` is about
        this replica.
        """

    def comes_to_rest(self) -> bool:
        """Whether no step is in flight, so that the variables can be saved.

        If some are, ``run`` starts no more, until this was true after one of its results.
        """
        return True

    def wait_until_idle(self) -> None:  # noqa: B027 -- most executions return when they are done
        """Wait until no step is in flight; results that ``run`` has not yielded are dropped."""

    def position(self) -> dict[str, Any]:
        """What a checkpoint keeps of the order of batches, besides the number of steps."""
        return {}

    def restore(self, position: Mapping[str, Any]) -> None:  # noqa: B027
        """Continue after what ``position`` has returned; it is empty without a checkpoint."""

    def close(self) -> None:  # noqa: B027 -- most data sets are released with the runner
        """Release the data set; no further step is run."""


class LocalStepRunner(StepRunner):
    """Runs steps in this process, up to ``per_execution`` of them in one execution.

    If that ``adapts``, slow steps are fewer. Not where replicas join the state of layers at the end
    of an execution: its last bits would depend on the speed of the machine.
    """

    def __init__(
        self,
        distribution: StrategyDistribution,
        step: Step,
        dataset: tf.data.Dataset,
        per_execution: int,
        *,
        adapts: bool = False,
    ) -> None:
        self._has_peers = distribution.has_peers
        strategy = distribution.strategy
        self._replicas = strategy.num_replicas_in_sync
        self._exchanges = self._replicas > 1
        joins = self._exchanges and bool(kept_by_layers(step.metrics.model))
        self._size = ExecutionSize(per_execution, adapts=adapts and not joins)
        self._step_seconds = 0.0  # of this process, in the last execution
        if self._exchanges:
            self._execute = _replicated_execution(strategy, step, self._has_peers)
        else:
            self._execute = _execution(strategy, step, unmeasured)
        self._zero = step.metrics.zero
        self._traces = True
        self._batches = iter(dataset)

    def run(
        self, steps: int, sums: MetricValues | None = None, is_preempted: Callable[[], bool] = never
    ) -> Iterator[StepsRun]:
        sums = self._zero if sums is None else sums
        done = 0
        while done < steps:
            size = min(self._size.steps, steps - done)
            done += size
            begun = time.perf_counter()
            arguments = (self._batches, np.int64(size), sums)
            if self._has_peers:  # which must agree on the size of the next execution
                own = np.array([is_preempted(), self._step_seconds], np.float32)
                sums, measured, total = self._execute(*arguments, own)
                preempted, step_seconds = bool(total[0] > 0), float(total[1]) / self._replicas
            else:
                sums, measured = self._execute(*arguments)
                preempted, step_seconds = is_preempted(), 0.0
            np.asarray(sums[-1])  # a GPU may still compute
            seconds = time.perf_counter() - begun
            self._step_seconds = 0.0 if self._traces else seconds / size
            self._size.measured(step_seconds if self._has_peers else self._step_seconds)
            spent = self._spent(size, seconds, measured)
            yield StepsRun(done, sums, preempted, spent)

    def _spent(self, steps: int, seconds: float, measured: Any) -> tuple[Spent, ...]:
        """The time of an execution; none of the first, in which TensorFlow traces and compiles.

        The wait for batches is what tf.data has measured, for the clock of a graph would take a
        considerable part of a small model's step.
        """
        traces, self._traces = self._traces, False
        between = tensorflow2.seconds_between_elements(self._batches)
        if traces or between is None:
            return ()
        waiting = max(0.0, seconds - between * steps)
        computing = float(measured) if self._exchanges else 0.0
        return (Spent(steps, seconds, waiting, computing or None),)

    def close(self) -> None:
        """Release the data set in a thread, because that may take a minute (``batches.untuned``).

        It cannot be untuned: what tf.data measures for its tuning is the wait for input.
        """
        last = [self._batches]
        del self._batches
        threading.Thread(target=last.clear, name="release", daemon=True).start()


def here(number: Any) -> tf.Tensor:
    """A number as a tensor on this machine, for a worker.

    TensorFlow would place it on the worker, and block all Python threads until the worker answers:
    an unresponsive worker would make the chief unresponsive, too.
    """
    with tf.device("CPU:0"):
        return tf.constant(number)


def _execution(
    strategy: tf.distribute.Strategy, step: Step, clock: Callable[..., tf.Tensor]
) -> Callable[..., Any]:
    """A compiled function of (iterator, number of steps, sums) that returns the new sums.

    It also returns times in seconds by ``clock``, float64: of waiting for batches, of computing,
    and the whole.
    """

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def execute(batches: Any, steps: tf.Tensor, sums: MetricValues) -> Any:
        sums, times, _ = looped(strategy, step, lambda: next(batches), steps, sums, clock)
        return sums, times

    return execute


def looped(
    strategy: tf.distribute.Strategy,
    step: Callable[..., StepResult],
    next_batch: Callable[[], Any],
    steps: tf.Tensor,
    sums: MetricValues,
    clock: Callable[..., tf.Tensor],
    unrolled: int = 1,
    goes_on: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tuple[MetricValues, tf.Tensor, tf.Tensor]:
    """The sums after ``steps`` steps, the times, and the number of steps that were done.

    The main loop runs ``unrolled`` steps per turn, and ends where it no longer ``goes_on``.
    """

    def turns(many: int, *before: Any) -> Any:
        def is_next(done: tf.Tensor, *_: Any) -> tf.Tensor:
            fits = done + many <= steps
            return fits if goes_on is None else fits & goes_on(done)

        def body(done: tf.Tensor, sums: MetricValues, parts: tf.Tensor) -> Any:
            for _ in range(many):
                requested = clock(parts)
                batch = next_batch()
                waiting = clock(batch) - requested
                sums, computing = strategy.run(step, args=(sums, batch))
                parts += tf.stack([waiting, computing])
            return done + many, sums, parts

        # One at a time: otherwise TensorFlow would start steps before earlier ones have ended.
        return tf.while_loop(is_next, body, before, parallel_iterations=1)

    begun = clock(steps)
    state = (tf.zeros_like(steps), sums, tf.zeros([2], tf.float64))
    if unrolled > 1:
        state = turns(unrolled, *state)
    done, sums, parts = turns(1, *state)
    return sums, tf.concat([parts, [clock(sums) - begun]], axis=0), done


def _replicated_execution(
    strategy: tf.distribute.Strategy, step: Step, has_peers: bool
) -> Callable[..., Any]:
    """The same for several replicas: each adds up its own sums, which are reduced at the end.

    Instead of times, it returns for how many seconds this process computed, as the mean of its
    replicas. With peers, it takes more numbers, and also returns their sums over all replicas.
    """

    state = LayerState(step.metrics.model)

    def zero() -> list[tf.Tensor]:
        return [tf.constant(each) for each in step.metrics.zero]

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def execute(batches: Any, steps: tf.Tensor, sums: MetricValues, *own: tf.Tensor) -> Any:
        def body(done: tf.Tensor, sums: MetricValues, seconds: tf.Tensor) -> Any:
            sums, computing = strategy.run(step, args=(sums, next(batches)))
            own = strategy.experimental_local_results(computing)
            return done + 1, sums, seconds + tf.reduce_mean(tf.stack(own))

        before = strategy.run(state.read)
        begin = (tf.zeros_like(steps), strategy.run(zero), tf.zeros([], tf.float64))
        _, added, seconds = tf.while_loop(
            lambda done, *_: done < steps, body, begin, parallel_iterations=1
        )
        strategy.run(state.join, args=(before,))
        total = [strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None) for each in added]
        sums = [sum_ + more for sum_, more in zip(sums, total, strict=True)]
        if not has_peers:
            return sums, seconds
        numbers = strategy.run(lambda: tf.identity(own[0]))
        return sums, seconds, strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)

    return execute
