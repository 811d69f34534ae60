"""Step runners: steps run in this process, or as closures of a coordinator."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self
from uuid import uuid4

import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import counted
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.training.context import StrategyDistribution
from aerotrain.training.coordinator import Coordinator, ServedDistribution
from aerotrain.training.departure import ask_to_leave, is_leaving, release
from aerotrain.training.input.leases import Lease
from aerotrain.training.input.shuffle_windows import PART, next_of, send_lease
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.internals import tensorflow2
from aerotrain.training.steps.state import LayerState, MetricState, MetricValues, kept_by_layers
from aerotrain.training.steps.step import StepResult, read_after, unmeasured

#: Steps that a closure unrolls in each turn of its loop. In every turn a worker and the ps exchange
#: messages to agree that the loop continues. But each worker must optimize the graph of all of
#: them, so they are not unrolled for a model of many weights, which takes longer than a message.
UNROLLED = 5
FEW_WEIGHTS = 40

#: What is sent to a worker for an execution: the rows of leases, and the number of the lease that
#: it runs, of the batches of that, and of the worker.
_LEASES = (tf.TensorSpec([None, PART], tf.int64), *[tf.TensorSpec([], tf.int64)] * 3)

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
    spent: Spent | None = None


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
    def of(cls, arguments: TrainArguments, *, adapts: bool = True) -> Self:
        """The size by the arguments of a training, which adapts unless they say it."""
        own = arguments.steps_per_execution is None
        return cls(arguments.steps_of_execution, adapts=adapts and own)

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

    def _spent(self, steps: int, seconds: float, measured: Any) -> Spent | None:
        """The time of an execution; None of the first, in which TensorFlow traces and compiles.

        The wait for batches is what tf.data has measured, for the clock of a graph would take a
        considerable part of a small model's step.
        """
        traces, self._traces = self._traces, False
        between = tensorflow2.seconds_between_elements(self._batches)
        if traces or between is None:
            return None
        waiting = max(0.0, seconds - between * steps)
        computing = float(measured) if self._exchanges else 0.0
        return Spent(steps, seconds, waiting, computing or None)

    def close(self) -> None:
        """Release the data set in a thread, because that may take a minute (``batches.untuned``).

        It cannot be untuned: what tf.data measures for its tuning is the wait for input.
        """
        last = [self._batches]
        del self._batches
        threading.Thread(target=last.clear, name="release", daemon=True).start()


@dataclass(frozen=True)
class _Result:
    """Steps that a worker has done; of those that it was lost with, the sums are unknown."""

    steps: int
    sums: MetricValues | None = None
    spent: Spent | None = None


class CoordinatorStepRunner(StepRunner):
    """Leases batches to workers, in executions that are as long as the arguments say.

    Where they adapt, each worker's speed decides. ``start`` is the number of steps done, to which
    ``counter`` adds those in flight.
    """

    def __init__(
        self,
        distribution: ServedDistribution,
        step: Step,
        counter: tf.Variable,
        pipeline: InputPipeline,
        start: int,
    ) -> None:
        workers = len(distribution.cluster[Role.WORKER])
        self._zero = step.metrics.zero
        self._counter, self._done = counter, start
        self._pipeline, self._book = pipeline, pipeline.book(start, None)
        self._left = 0  # steps that workers may take now
        self._results: deque[_Result] = deque()
        self._holds = False
        self._sizes = [ExecutionSize.of(pipeline.arguments) for _ in range(workers)]
        #: Steps that each worker has begun: what the ps know, and what is known here.
        with tf.device(counter.device):
            self._progress = tf.Variable(np.zeros(workers, np.int64), trainable=False)
        self._begun = [0] * workers
        self._replaced: set[int] = set()
        #: The number of the last lease that was sent to each worker.
        self._sent = [-1] * workers
        self._begin = [here(each) for each in self._zero]
        # Of its own, because workers still have the queue of an earlier chief.
        queue = uuid4().hex
        # AutoGraph would rewrite all functions that make the data set, which takes two seconds in
        # each restart of the chief. It still rewrites the user's.
        make = tf.function(lambda: iter(pipeline.leased(queue, start)), autograph=False)
        self._make = make.get_concrete_function()
        weights = step.metrics.model.trainable_weights
        self._execute = _leased_execution(
            distribution.strategy,
            step,
            UNROLLED if len(weights) <= FEW_WEIGHTS else 1,
            self._progress,
            queue,
        ).get_concrete_function(self._make.structured_outputs, *_LEASES, self._begin)
        self._coordinator = Coordinator(distribution, self, self._prepare, self._run)

    def run(
        self, steps: int, sums: MetricValues | None = None, is_preempted: Callable[[], bool] = never
    ) -> Iterator[StepsRun]:
        sums = self._zero if sums is None else sums
        done, self._left, self._holds = 0, steps, False
        while done < steps:
            ran = self._next_result()
            done += ran.steps
            if ran.sums is not None:
                sums = [sum_ + more for sum_, more in zip(sums, ran.sums, strict=True)]
            if ran.steps or self._holds:
                yield StepsRun(done, sums, is_preempted(), ran.spent)

    def is_alone(self) -> bool:
        return not self._coordinator.workers

    def comes_to_rest(self) -> bool:
        with self._coordinator.changed:
            rests = self._coordinator.hold() and not self._results
            self._holds = not rests
        if rests:
            self._correct_counter()
        return rests

    def wait_until_idle(self) -> None:
        self._coordinator.wait_for(self._coordinator.hold)
        self._results.clear()
        self._correct_counter()

    def replace(self, worker: int) -> None:
        """Let another process take the place of a worker."""
        self._replaced.add(worker)

    def close(self) -> None:
        self._coordinator.close()

    def position(self) -> dict[str, Any]:
        return self._book.to_dict()

    def restore(self, position: Mapping[str, Any]) -> None:
        if position:
            self._book = self._pipeline.book(self._done, position)

    def take(self, worker: int) -> Lease | None:
        if not self._left:
            return None
        if self._book.has_ended:
            self._book.next_epoch()
        piece = self._book.take(worker, min(self._left, self._sizes[worker].steps))
        self._left -= piece.batches if piece else 0
        return piece

    def finish(self, worker: int, piece: Lease, result: Any) -> bool:
        sums, times, steps, leaves = result
        done = int(steps)
        waiting, computing, seconds = (float(each) for each in times)
        self._begun[worker] += done
        spent = None
        if done and seconds:
            spent = Spent(done, seconds, waiting, computing or None, worker)
            self._sizes[worker].measured(seconds / done)
        self._return(piece, done)
        self._results.append(_Result(done, sums, spent))
        if leaves:
            self._book.leave(worker)
        return not leaves

    def give_back(self, worker: int, pieces: Sequence[Lease], *, is_lost: bool) -> None:
        done = 0
        if is_lost:
            begun = int(self._progress.numpy()[worker])
            # Of the last one, it is unknown how much of its update has reached the ps.
            done = max(0, begun - self._begun[worker] - 1)
            self._begun[worker] = begun
            self._results.append(_Result(done))
            print(
                f"{ReplicaName(Role.WORKER, worker)} was lost: others get its batches"
                + (f"; the metrics leave out {counted(done, 'step')} of it" if done else ""),
                flush=True,
            )
        for piece in pieces:
            self._return(piece, done)
            done = 0
        if is_lost:
            self._book.leave(worker)

    def _return(self, piece: Lease, done: int) -> None:
        """Take back what was not done of a piece."""
        self._book.give_back(piece, done)
        self._left += piece.batches - done
        self._done += done

    def _next_result(self) -> _Result:
        if not self._holds:
            self._coordinator.go_on()
        self._coordinator.wait_for(lambda: self._results)
        return self._results.popleft()

    def _correct_counter(self) -> None:
        """Count a step once of which a lost worker had run a part, too."""
        if int(self._counter.numpy()) != self._done:
            self._counter.assign(self._done)

    def _prepare(self, worker: int) -> Any:
        self._sent[worker] = -1
        return self._make()

    def _run(self, worker: int, batches: Any, own: Lease, following: Lease | None) -> Any:
        sent = [each for each in (own, following) if each and each.number > self._sent[worker]]
        self._sent[worker] = max(each.number for each in (*sent, own))
        rows = np.array([row for each in sent for row in each.rows()], np.int64).reshape(-1, PART)
        numbers = (here(np.int64(each)) for each in (own.number, own.batches, worker))
        if worker in self._replaced:
            self._replaced.remove(worker)
            ask_to_leave()
        returned = self._execute(batches, here(rows), *numbers, self._begin)
        *result, leaves = tf.nest.map_structure(lambda each: each.numpy(), returned)
        if leaves:
            release()
        return [*result, leaves]


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
        sums, times, _ = _looped(strategy, step, lambda: next(batches), steps, sums, clock)
        return sums, times

    return execute


def _leased_execution(
    strategy: tf.distribute.Strategy,
    step: Step,
    unrolled: int,
    progress: tf.Variable,
    queue: str,
) -> Any:
    """The same of one lease on a worker, after it was sent leases by ``queue``.

    It adds the steps that it begins to ``progress``. It also returns how many it has done, and
    whether the worker is about to leave, so that they are fewer.
    """

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def execute(
        batches: Any,
        sent: tf.Tensor,
        number: tf.Tensor,
        steps: tf.Tensor,
        worker: tf.Tensor,
        sums: MetricValues,
    ) -> Any:
        def counted_step(sums: MetricValues, batch: Any) -> StepResult:
            tf.raw_ops.ResourceScatterAdd(
                resource=progress.handle, indices=worker, updates=tf.ones([], tf.int64)
            )
            return step(sums, batch)

        send_lease(queue, sent)
        # Traced once, and not for each time that it is unrolled.
        traced = counted_step if unrolled == 1 else tf.function(counted_step, autograph=False)
        sums, times, done = _looped(
            strategy,
            traced,
            lambda: next_of(batches, number),
            steps,
            sums,
            read_after,
            unrolled,
            lambda done: ~is_leaving(done),
        )
        return sums, times, done, is_leaving(done)

    return execute


def _looped(
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

    def looped(many: int, *before: Any) -> Any:
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
        state = looped(unrolled, *state)
    done, sums, parts = looped(1, *state)
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
