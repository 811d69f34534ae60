"""Steps of parameter servers with asynchronous updates: each worker trains on its own batches."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import counted
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.training.coordinator import Coordinator, LeasingStepRunner, ServedDistribution
from aerotrain.training.departure import is_leaving, release
from aerotrain.training.input.leases import Lease
from aerotrain.training.input.shuffle_windows import PART, next_of, send_lease, skip
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.step_runner import (
    ExecutionSize,
    Spent,
    Step,
    StepsRun,
    here,
    looped,
    never,
)
from aerotrain.training.steps.state import MetricValues
from aerotrain.training.steps.step import StepResult, read_after

#: Steps that a closure unrolls in each turn of its loop. In every turn a worker and the ps exchange
#: messages to agree that the loop continues. But each worker must optimize the graph of all of
#: them, so they are not unrolled for a model of many weights, which takes longer than a message.
UNROLLED = 5
FEW_WEIGHTS = 40

#: What is sent to a worker for an execution: the rows of leases, how many batches of earlier ones
#: it leaves out, the number of the lease that it runs, and how many batches that has.
_LEASES = (tf.TensorSpec([None, PART], tf.int64), *[tf.TensorSpec([], tf.int64)] * 3)


@dataclass(frozen=True)
class _Result:
    """Steps that a worker has done; of those that it was lost with, the sums are unknown."""

    steps: int
    sums: MetricValues | None = None
    spent: tuple[Spent, ...] = ()


class AsynchronousStepRunner(LeasingStepRunner):
    """Leases batches to workers, in executions that are as long as the arguments say.

    Where they adapt, each worker's speed decides. ``counter`` adds the steps in flight to those
    that are done.
    """

    def __init__(
        self,
        distribution: ServedDistribution,
        step: Step,
        counter: tf.Variable,
        pipeline: InputPipeline,
        start: int,
    ) -> None:
        super().__init__(pipeline, start)
        workers = len(distribution.cluster[Role.WORKER])
        self._zero = step.metrics.zero
        self._counter, self._done = counter, start
        self._left = 0  # steps that workers may take now
        self._results: deque[_Result] = deque()
        self._holds = False
        self._sizes = [ExecutionSize.of(pipeline.arguments) for _ in range(workers)]
        #: Steps that each worker has begun: what the ps know, and what is known here. A variable
        #: for each worker, as an index into a common one would be sent to the ps in each step.
        with tf.device(counter.device):
            self._progress = [tf.Variable(np.int64(0), trainable=False) for _ in range(workers)]
        self._begun = [0] * workers
        #: The number of the last lease that was sent to each worker, and how many batches of such
        #: leases it has not run and will not.
        self._sent, self._stale = [-1] * workers, [0] * workers
        self._begin = [here(each) for each in self._zero]
        # Of its own, because workers still have the queue of an earlier chief.
        queue = uuid4().hex
        # AutoGraph would rewrite all functions that make the data set, which takes two seconds in
        # each restart of the chief. It still rewrites the user's.
        make = tf.function(lambda: iter(pipeline.leased(queue)), autograph=False)
        self._make = make.get_concrete_function()
        weights = step.metrics.model.trainable_weights
        self._execute = _leased_execution(
            distribution.strategy,
            step,
            UNROLLED if len(weights) <= FEW_WEIGHTS else 1,
            queue,
        ).get_concrete_function(
            self._make.structured_outputs, self._progress[0], *_LEASES, self._begin
        )
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
        spent: tuple[Spent, ...] = ()
        if done and seconds:
            spent = (Spent(done, seconds, waiting, computing or None, worker),)
            self._sizes[worker].measured(seconds / done)
        self._return(piece, done)
        self._results.append(_Result(done, sums, spent))
        if leaves:
            self._book.leave(worker)
        return not leaves

    def give_back(self, worker: int, pieces: Sequence[Lease], *, is_lost: bool) -> None:
        done = 0
        if is_lost:
            begun = int(self._progress[worker].numpy())
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
            if piece.number <= self._sent[worker]:
                self._stale[worker] += piece.batches
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
        self._sent[worker], self._stale[worker] = -1, 0
        return self._make()

    def _run(self, worker: int, batches: Any, own: Lease, following: Lease | None) -> Any:
        sent = [each for each in (own, following) if each and each.number > self._sent[worker]]
        self._sent[worker] = max(each.number for each in (*sent, own))
        rows = [row for each in sent for row in self._pipeline.rows(each)]
        sent_rows = here(np.array(rows, np.int64).reshape(-1, PART))
        numbers = [here(np.int64(each)) for each in (self._stale[worker], own.number, own.batches)]
        self._stale[worker] = 0
        progress = self._progress[worker]
        returned = self._execute(batches, progress, sent_rows, *numbers, self._begin)
        *result, leaves = tf.nest.map_structure(lambda each: each.numpy(), returned)
        if leaves:
            release()
        return [*result, leaves]


def _leased_execution(
    strategy: tf.distribute.Strategy, step: Step, unrolled: int, queue: str
) -> Any:
    """The same of one lease on a worker, after it was sent leases by ``queue``.

    It adds the steps that it begins to ``progress``. It also returns how many it has done, and
    whether the worker is about to leave, so that they are fewer.
    """

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def execute(
        batches: Any,
        progress: tf.Variable,
        sent: tf.Tensor,
        stale: tf.Tensor,
        number: tf.Tensor,
        steps: tf.Tensor,
        sums: MetricValues,
    ) -> Any:
        def counted_step(sums: MetricValues, batch: Any) -> StepResult:
            with tf.device(progress.device):
                progress.assign_add(1)
            return step(sums, batch)

        send_lease(queue, sent)
        skip(batches, stale)
        # Traced once, and not for each time that it is unrolled.
        traced = counted_step if unrolled == 1 else tf.function(counted_step, autograph=False)
        sums, times, done = looped(
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
