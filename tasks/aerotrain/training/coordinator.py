"""The workers of a training whose variables are on parameter servers: they come and go.

A thread for each worker waits until its server answers, connects to it, and runs one piece of work
after another on it, until the worker is lost or leaves. Then it waits for the next server at that
address. So a training begins with the workers that are there, and goes on with each as soon as it
comes. TensorFlow's own ``ClusterCoordinator`` needs all workers at its start, and connects to none
that comes back while another one is away.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from aerotrain.contract.environment import Cluster
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.training.background.services import answers, has_ended, wait_for_answer
from aerotrain.training.context import StrategyDistribution
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.internals import tensorflow2
from aerotrain.training.step_runner import StepRunner

#: Seconds between two questions whether a server is there.
_SECONDS_BETWEEN_LOOKS = 0.2

#: How often in a row the work of a worker may fail although all servers answer, by such an error: a
#: connection between two of them may break.
_FAILURES = 3
_OF_CONNECTIONS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


class ServedDistribution(StrategyDistribution):
    """The distribution of a chief whose ``cluster`` has parameter servers and workers.

    It is connected to those ``workers``.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, cluster: Cluster, workers: Iterable[int]
    ) -> None:
        super().__init__(strategy)
        self.cluster = cluster
        self.workers = frozenset(workers)


def connected(cluster: Cluster) -> ServedDistribution:
    """Connect to all parameter servers, and to the workers that are there, at least one."""
    for address in cluster[Role.PS]:
        wait_for_answer(address, math.inf)
    workers = dict(enumerate(cluster[Role.WORKER]))
    while not (there := {each: at for each, at in workers.items() if answers(at)}):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    spec = tf.train.ClusterSpec({**cluster, Role.WORKER: there})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type=Role.CHIEF, task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    tensorflow2.replace_coordinator(strategy, len(cluster[Role.WORKER]))
    return ServedDistribution(strategy, cluster, there)


class Work(Protocol):
    """What workers do. All methods are called with the coordinator's lock held."""

    def take(self, worker: int) -> Any | None:
        """The next piece for that worker; None if there is none for now."""

    def finish(self, worker: int, piece: Any, result: Any) -> bool:
        """Take the result of a piece; False if the worker is about to leave."""

    def give_back(self, worker: int, pieces: Sequence[Any], *, is_lost: bool) -> None:
        """Take back pieces that were not done; a lost worker may have begun the first one."""


class Coordinator:
    """Has the workers of ``distribution`` do ``work``.

    ``prepare`` is called when that worker has been connected. Its result is passed to ``run``, with
    the index of the worker, the piece of work, and the next one, if the worker has one already.
    Both run operations on the worker.
    """

    def __init__(
        self,
        distribution: ServedDistribution,
        work: Work,
        prepare: Callable[[int], Any],
        run: Callable[[int, Any, Any, Any | None], Any],
    ) -> None:
        self._strategy = distribution.strategy
        self._workers = distribution.cluster[Role.WORKER]
        self._ps = distribution.cluster[Role.PS]
        self._work = work
        self._prepare = prepare
        self._run = run
        #: Held while work is taken, finished or given back, and notified afterwards.
        self.changed = threading.Condition()
        #: The pieces of each worker: the one that runs, and the next one.
        self._held: list[list[Any]] = [[] for _ in self._workers]
        #: Workers that are connected, or wait for that; of the former, some have done nothing yet.
        self._connected, self._waiting = set(distribution.workers), set[int]()
        self._unused = set(distribution.workers)
        self._may_take = self._is_closed = False
        self._error: BaseException | None = None
        for worker in range(len(self._workers)):
            threading.Thread(
                target=self._serve_safely, args=[worker], name=_name(worker), daemon=True
            ).start()

    @property
    def workers(self) -> int:
        """The number of workers that are connected."""
        return len(self._connected)

    def go_on(self) -> None:
        """Let workers take work."""
        with self.changed:
            self._may_take = True
            self.changed.notify_all()

    def hold(self) -> bool:
        """Let no worker take more work; whether none has any."""
        with self.changed:
            self._may_take = False
            return not any(self._held)

    def wait_for(self, is_there: Callable[[], Any]) -> None:
        """Return when ``is_there``, called with the lock held, is true.

        Only in the thread that also creates functions: it connects workers that come meanwhile,
        and a function that was created at that moment might reach some workers only.

        Raises:
            OpError: the work failed for a reason that is not a lost worker.
        """
        while True:
            with self.changed:
                if self._error is not None:
                    raise self._error
                if is_there():
                    return
                if not self._waiting:
                    self.changed.wait()
                coming = frozenset(self._waiting)
            if coming:
                self._connect(coming)

    def close(self) -> None:
        """End the threads when they have no work."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()

    def _serve_safely(self, worker: int) -> None:
        try:
            self._serve(worker)
        except BaseException as error:  # noqa: BLE001 -- raised in the main thread
            self._fail(error)

    def _serve(self, worker: int) -> None:
        """Let one server after another at the worker's address do work."""
        address, failures = self._workers[worker], 0
        while not self._is_closed:
            if not answers(address):
                with self.changed:
                    self._connected.discard(worker)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                continue
            try:
                with tensorflow2.on_worker(self._strategy, worker):
                    self._wait_until_connected(worker)
                    tensorflow2.make_tables(self._strategy, worker)
                    prepared = self._prepare(worker)
                    while self._do_next(worker, prepared):
                        failures = 0
                while not self._is_closed and answers(address):  # it is about to leave
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
            except tf.errors.OpError as error:
                failures += 1
                if not self._is_lost(worker, error, failures):
                    raise
                self._lose(worker)

    def _wait_until_connected(self, worker: int) -> None:
        with self.changed:
            if worker in self._unused:  # as the strategy has connected it
                self._unused.remove(worker)
                return
            self._connected.discard(worker)
            self._waiting.add(worker)
            self.changed.notify_all()
            self.changed.wait_for(lambda: worker in self._connected or self._is_closed)

    def _connect(self, workers: frozenset[int]) -> None:
        """Connect to these workers. TensorFlow would wait for others that have ended meanwhile.

        Later, if one does not answer: left out, it would still run what others then run, too.
        """
        with self.changed:
            known = self._connected | workers
        there = [each for each in known if not has_ended(self._workers[each])]
        if not all(answers(self._workers[each]) for each in there):
            return
        with self.changed:
            self._connected.intersection_update(there)
        tensorflow2.connect({each: self._workers[each] for each in there})
        with self.changed:
            self._waiting -= workers
            self._connected = set(there) | workers
            self.changed.notify_all()
        for each in sorted(workers):
            print(f"{_name(each)} takes part", flush=True)

    def _do_next(self, worker: int, prepared: Any) -> bool:
        """Do the next piece of work; False if the worker is about to leave, or this is closed."""
        held = self._held[worker]
        with self.changed:
            while not held:
                if self._is_closed:
                    return False
                if not self._take(worker):
                    self.changed.wait()
            if len(held) == 1:
                self._take(worker)
        result = self._run(worker, prepared, held[0], held[1] if len(held) > 1 else None)
        with self.changed:
            stays = self._work.finish(worker, held.pop(0), result)
            if held and not (stays and self._may_take):
                self._work.give_back(worker, held, is_lost=False)
                held.clear()
            self.changed.notify_all()
        return stays

    def _take(self, worker: int) -> bool:
        piece = self._work.take(worker) if self._may_take else None
        if piece is not None:
            self._held[worker].append(piece)
        return piece is not None

    def _is_lost(self, worker: int, error: tf.errors.OpError, failures: int) -> bool:
        """Whether the error is about a worker that others can stand in for."""
        if not all(map(answers, self._ps)):
            return False
        is_there = worker in self._connected and answers(self._workers[worker])
        if not is_there or tensorflow2.is_of_lost_worker(error):
            return True
        return isinstance(error, _OF_CONNECTIONS) and failures <= _FAILURES

    def _lose(self, worker: int) -> None:
        with self.changed:
            if held := self._held[worker]:
                self._work.give_back(worker, held, is_lost=True)
                held.clear()
            self.changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self._error = self._error or error
            self._held[:] = [[] for _ in self._held]
            self.changed.notify_all()


class LeasingStepRunner(StepRunner):
    """Runs steps on the workers of a ``Coordinator``, which it creates, by leases of batches.

    ``start`` is the number of steps done.
    """

    _coordinator: Coordinator

    def __init__(self, pipeline: InputPipeline, start: int) -> None:
        self._pipeline, self._start = pipeline, start
        self._book = pipeline.book(start, None)

    def is_alone(self) -> bool:
        return not self._coordinator.workers

    def position(self) -> dict[str, Any]:
        return self._book.to_dict()

    def restore(self, position: Mapping[str, Any]) -> None:
        if position:
            self._book = self._pipeline.book(self._start, position)

    def close(self) -> None:
        self._coordinator.close()


def _name(worker: int) -> str:
    return str(ReplicaName(Role.WORKER, worker))
