"""Steps of parameter servers with synchronous updates: parts of each batch, in any worker's hands.

The chief divides a batch into parts, which the workers compute, and applies their sum, as one
device would. With more workers than parts, the others compute a part once more that is not done
yet, and what is done first counts. So a step waits for no worker that is lost or slow, as long as
there are others, and the result does not depend on which worker did what. See Chen et al.,
Revisiting Distributed Synchronous SGD, https://arxiv.org/abs/1604.00981
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import tensorflow as tf

from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.training.coordinator import Coordinator, LeasingStepRunner, ServedDistribution
from aerotrain.training.departure import is_leaving, release
from aerotrain.training.input.leases import Lease
from aerotrain.training.input.shuffle_windows import PART, next_of, send_lease
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.step_runner import ExecutionSize, Spent, StepsRun, here, never
from aerotrain.training.steps.parts import PartStep
from aerotrain.training.steps.remote import RemoteStep
from aerotrain.training.steps.state import MetricValues
from aerotrain.training.steps.step import read_after

_INT = tf.TensorSpec([], tf.int64)


@dataclass(frozen=True, eq=False)
class _Part:
    """One execution of a part of the batch of ``lease``: its ``number``, and the row it writes.

    With ``totals`` it computes gradients, and without them what the totals are made of.
    """

    step: int
    part: int
    number: int
    row: int
    lease: Lease
    totals: Sequence[Any] | None


class SynchronousStepRunner(LeasingStepRunner):
    """Runs steps in ``parts`` parts, after ``start`` steps."""

    def __init__(
        self,
        distribution: ServedDistribution,
        step: RemoteStep,
        pipeline: InputPipeline,
        parts: int,
        start: int,
    ) -> None:
        super().__init__(pipeline, start)
        workers = len(distribution.cluster[Role.WORKER])
        self._parts = parts
        self._size = ExecutionSize.of(pipeline.arguments)
        self._zero = step.metrics.zero
        self._begin = [here(each) for each in self._zero]
        queue = uuid4().hex
        make = tf.function(lambda: iter(pipeline.parts(queue, parts)), autograph=False)
        self._make = make.get_concrete_function()
        batches = self._make.structured_outputs
        with distribution.scope():
            self._step = PartStep(step, parts + workers, batches.element_spec[1])
        self._trace(distribution.strategy, queue, batches)
        self._attempts = count(1)
        self._free_rows = list(range(parts + workers))
        self._dropped: list[int] = []  # executions of which nothing will be read
        self._number = 0  # of the step, from 1
        self._totals: Sequence[Any] | None = None
        #: What is to be done, is running, and is done of the step.
        self._waiting: list[int] = []
        self._running: dict[int, _Part] = {}  # by worker
        self._results: dict[int, tuple[_Part, Any]] = {}  # by part
        self._lease: Lease | None = None
        self._coordinator = Coordinator(distribution, self, lambda _: self._make(), self._run)

    def _trace(self, strategy: tf.distribute.Strategy, queue: str, batches: Any) -> None:
        step = self._step

        def computed(
            batches: Any,
            sent: tf.Tensor,
            number: tf.Tensor,
            row: tf.Tensor,
            totals: Sequence[tf.Tensor],
            sums: MetricValues,
        ) -> Any:
            begun = read_after(number)
            send_lease(queue, sent)
            element = next_of(batches, number)
            waiting = read_after(element) - begun
            part = number % self._parts
            given = (row, number, part, totals, sums, element)
            sums, computing = strategy.run(step.compute, args=given)
            seconds = read_after(sums) - begun
            return sums, tf.stack([waiting, computing, seconds]), is_leaving(number)

        def counted(batches: Any, sent: tf.Tensor, number: tf.Tensor) -> Any:
            send_lease(queue, sent)
            element = next_of(batches, number)
            return strategy.run(step.counts, args=element), is_leaving(number)

        def applied(*of_parts: tf.Tensor) -> Any:
            return strategy.run(step.apply, args=of_parts)

        lease = (batches, tf.TensorSpec([None, PART], tf.int64), _INT)
        compute = tf.function(computed, autograph=False)
        self._compute = compute.get_concrete_function(*lease, _INT, step.totals_spec, self._begin)
        self._count = None
        if step.totals_spec:
            self._count = tf.function(counted, autograph=False).get_concrete_function(*lease)
        self._apply = tf.function(applied, autograph=False).get_concrete_function(
            *[tf.TensorSpec([self._parts], tf.int64)] * 2,
            tf.TensorSpec([self._parts], tf.float32),
            tf.TensorSpec([None], tf.int64),
        )

    def run(
        self, steps: int, sums: MetricValues | None = None, is_preempted: Callable[[], bool] = never
    ) -> Iterator[StepsRun]:
        sums = self._zero if sums is None else sums
        done = 0
        while done < steps:
            size = min(self._size.steps, steps - done)
            begun = time.perf_counter()
            spent: list[Any] = []
            for _ in range(size):
                added, times = self._run_step()
                sums = [sum_ + more for sum_, more in zip(sums, added, strict=True)]
                spent.append(times)
            done += size
            seconds = time.perf_counter() - begun
            self._size.measured(seconds / size)
            waiting, computing = np.sum(spent, axis=0)[:2]
            yield StepsRun(
                done,
                sums,
                is_preempted(),
                Spent(size, seconds, float(waiting), float(computing) or None),
            )

    def _run_step(self) -> tuple[MetricValues, Any]:
        """Run the next step; its sums, and the times of its slowest part."""
        if self._book.has_ended:
            self._book.next_epoch()
        self._lease = self._book.take(0, 1)
        assert self._lease is not None, "no other step is running"
        self._number += 1
        totals: Sequence[Any] | None = []
        if self._count is not None:
            counts = [each for [each] in self._all_parts(None)]
            totals = [np.sum(each, axis=0) for each in zip(*counts, strict=True)]
        done = self._all_parts(totals)
        with self._coordinator.changed:
            chosen = [self._results[part][0] for part in range(self._parts)]
            dropped, self._dropped = self._dropped, []
        bad = self._apply(
            tf.constant([each.row for each in chosen], tf.int64),
            tf.constant([each.number for each in chosen], tf.int64),
            tf.constant(self._weights(), tf.float32),
            tf.constant(dropped, tf.int64),
        )
        self._book.finish(self._lease)
        sums = [np.sum(each, axis=0) for each in zip(*(sums for sums, _ in done), strict=True)]
        sums[-1] = sums[-1] + bad.numpy()
        return sums, max((times for _, times in done), key=lambda each: float(each[2]))

    def _all_parts(self, totals: Sequence[Any] | None) -> list[Any]:
        """Have all parts computed; their results."""
        with self._coordinator.changed:
            self._totals = totals
            self._free_rows += [part.row for part, _ in self._results.values()]
            self._results.clear()
            self._waiting = list(range(self._parts))
        self._coordinator.go_on()
        self._coordinator.wait_for(lambda: len(self._results) == self._parts)
        return [self._results[part][1] for part in range(self._parts)]

    def _weights(self) -> list[float]:
        """The parts of the records that the parts of the batch have, as ``MicrobatchSpec``."""
        assert self._lease is not None
        records = sum(each.records for each in self._lease.parts)
        ends = [part * records // self._parts for part in range(self._parts + 1)]
        return [(end - begin) / records for begin, end in pairwise(ends)]

    def take(self, worker: int) -> _Part | None:
        if worker in self._running or self._lease is None:
            return None
        if self._waiting:
            part = self._waiting.pop(0)
        else:  # a worker more than there are parts: a part that the fewest compute
            running = [each.part for each in self._running.values() if self._is_needed(each)]
            spare = self._coordinator.workers - self._parts
            if not running or len(running) - len(set(running)) >= spare:
                return None
            part = min(running, key=lambda each: (running.count(each), each))
        taken = self._running[worker] = _Part(
            step=self._number,
            part=part,
            number=next(self._attempts) * self._parts + part,
            row=self._free_rows.pop(),
            lease=self._lease,
            totals=self._totals,
        )
        return taken

    def finish(self, worker: int, piece: _Part, result: Any) -> bool:
        *of_part, leaves = result
        del self._running[worker]
        if self._is_needed(piece):
            self._results[piece.part] = (piece, of_part)
        else:
            self._free_rows.append(piece.row)
            if piece.totals is not None:
                self._dropped.append(piece.number)
        return not leaves

    def give_back(self, worker: int, pieces: Sequence[_Part], *, is_lost: bool) -> None:
        for piece in pieces:
            del self._running[worker]
            self._free_rows.append(piece.row)
            others = [each.part for each in self._running.values() if self._is_needed(each)]
            if self._is_needed(piece) and piece.part not in others:
                self._waiting.append(piece.part)
        if is_lost:
            print(f"{ReplicaName(Role.WORKER, worker)} was lost: others get its part", flush=True)

    def _is_needed(self, piece: _Part) -> bool:
        """Whether a part is of the present step, and was not done yet."""
        is_present = piece.step == self._number and piece.totals is self._totals
        return is_present and piece.part not in self._results

    def _run(self, worker: int, batches: Any, piece: _Part, _: Any) -> Any:
        rows = np.array(piece.lease.rows(), np.int64)
        rows[:, 0] = piece.number
        given = (batches, here(rows), here(np.int64(piece.number)))
        if piece.totals is None:
            assert self._count is not None
            returned = self._count(*given)
        else:
            totals = [here(each) for each in piece.totals]
            returned = self._compute(*given, here(np.int64(piece.row)), totals, self._begin)
        *result, leaves = tf.nest.map_structure(lambda each: each.numpy(), returned)
        if leaves:
            release()
        return [*result, leaves]
