"""Background services of a training: uploader, watchdog, and the writers of events and status.

The watchdog ends this replica when its training makes no progress, and names unresponsive peers.
TensorFlow waits a quarter of an hour for an unresponsive peer, and forever for a stopped one. A
launcher then restarts the replica from the last checkpoint.
"""

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.environment import Cluster
from aerotrain.contract.errors import ExitCode
from aerotrain.contract.event_log import EventType
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.lease import Lease
from aerotrain.replica import Replica, began
from aerotrain.store import Store, open_store
from aerotrain.training.background.writers import EventWriter, StatusWriter, Uploader

#: Seconds between two checks, and the length of a pause after which this process was itself
#: stopped.
_CHECK_SECONDS = 1.0
_STOPPED_SECONDS = 5.0

#: An execution may take this many times as long as others so far, if that exceeds the timeout.
_SLOWER = 3.0

#: The start of an HTTP/2 connection, with an empty SETTINGS frame. A running gRPC server answers
#: with its own. Of a stopped process, at most the kernel accepts the connection.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_ANSWER_SECONDS = 1.0
_SECONDS_BETWEEN_LOOKS = 0.02


@dataclass(kw_only=True)
class Watchdog:
    """Calls ``end`` when what is watched does not end within ``progress_timeout`` seconds.

    ``end`` gets the reason, and the names of the peers that do not answer.

    An execution may also take ``_SLOWER`` times as long as the longest before would take with the
    slowest steps. The first one, in which TensorFlow traces and compiles, may take
    ``start_timeout`` seconds, and so may later ones while ``compiling`` is true.

    ``peers`` maps names of replicas to addresses. While ``excused`` is true, the delay has a known
    cause other than the execution.
    """

    progress_timeout: float
    start_timeout: float
    peers: Mapping[str, str]
    end: Callable[[str, Sequence[str]], None]
    excused: Callable[[], bool] = lambda: False
    compiling: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._since: float | None = None
        self._executions = 0
        self._slowest, self._longest = 0.0, 0  # seconds of a step, and steps of an execution
        self._step = 0
        self._checked = self.clock()

    def start(self) -> None:
        """Check once a second, in a separate thread, from now on."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    @contextmanager
    def watching(self, step: int) -> Iterator[Callable[[int], None]]:
        """A scope in which progress is expected, after ``step`` steps.

        It yields a function to call with the number of steps that were done, if any.
        """
        self._step = step
        self._since = began = self.clock()

        def ended(steps: int) -> None:
            if not steps:  # of a worker that was lost
                return
            # ``check`` may have shifted it by the time for which this process was stopped.
            seconds = self.clock() - (self._since or began)
            if self._executions < 2:  # the first one stands for the next, until that has ended
                self._slowest = 0.0
            self._slowest = max(self._slowest, seconds / steps)
            self._longest = max(self._longest, steps)
            self._executions += 1

        try:
            yield ended
        finally:
            self._since = None

    @property
    def allowance(self) -> float:
        """The number of seconds that may pass now without progress."""
        usual = max(self.progress_timeout, _SLOWER * self._slowest * self._longest)
        starts = not self._executions or self.compiling()
        return max(self.start_timeout, usual) if starts else usual

    def check(self) -> None:
        """End this replica if it has waited too long."""
        now, before = self.clock(), self._checked
        self._checked = now
        since = self._since
        if since is None:
            return
        if self.excused():
            self._since = now
        elif now - before > _STOPPED_SECONDS:
            # The whole process was stopped, and so was what it waits for.
            self._since = since + (now - before)
        elif now - since > self.allowance:
            unresponsive = [name for name, address in self.peers.items() if not answers(address)]
            self.end(
                f"no progress for {now - since:.0f} s after step {self._step}, where "
                f"{self.allowance:.0f} s are allowed: {self._cause(unresponsive)}; this replica "
                "ends itself, and continues from its last checkpoint, if there is one, when it is "
                "started again. If the steps are only slow, increase progress_timeout, or lower "
                "steps_per_execution",
                unresponsive,
            )

    def _cause(self, unresponsive: Sequence[str]) -> str:
        if unresponsive:
            verb = "does" if len(unresponsive) == 1 else "do"
            return f"{' and '.join(unresponsive)} {verb} not answer"
        return "all other replicas answer" if self.peers else "the execution does not end"

    def _work(self) -> None:
        while True:
            time.sleep(_CHECK_SECONDS)
            self.check()


def answers(address: str, seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether the gRPC server at ``host:port`` answers within ``seconds``.

    TensorFlow's own clients wait without such a limit.
    """
    try:
        return bool(_answer(address, seconds))
    except OSError:
        return False


def has_ended(address: str) -> bool:
    """Whether no server is at ``host:port``, not even one that does not answer, as if stopped."""
    try:
        _answer(address, _ANSWER_SECONDS)
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def _answer(address: str, seconds: float) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
        connection.settimeout(seconds)
        connection.sendall(_GREETING)
        return connection.recv(1)


def wait_for_answer(address: str, seconds: float) -> bool:
    """Wait for ``seconds`` at most until the gRPC server at ``host:port`` answers; whether it does.

    TensorFlow would wait with Python's lock held, so that this replica sends no heartbeat, and for
    a second and more until it tries again.
    """
    until = time.monotonic() + seconds
    while not answers(address):
        if time.monotonic() > until:
            return False
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return True


#: Seconds added to the progress timeout under ps, so that the launcher ends an unresponsive worker
#: first.
_SERVED_LATER = 3.0

#: Seconds that an upload may still take when the replica ends itself.
_LAST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class BackgroundServices:
    """The services of one replica; everything for the ``store`` of its job goes through them.

    ``lease`` is held by the chief alone.
    """

    store: Store
    lease: Lease
    uploader: Uploader
    event_writer: EventWriter
    status_writer: StatusWriter

    @classmethod
    @contextmanager
    def of(
        cls,
        replica: Replica,
        arguments: TrainArguments,
        highest_token: Callable[[Store], int],
    ) -> Iterator["BackgroundServices"]:
        """Start the services of ``replica``. The chief takes the lease first.

        Its token is above the ``highest_token`` of what is in the store.

        At the end, the uploader has a few seconds for what still waits.

        Raises:
            FinalError: another run's chief trains in the job's prefix in the store.
        """

        def superseded(because: str) -> None:
            replica.write_termination_message(because)
            os._exit(ExitCode.SUPERSEDED)  # at once; no other thread must continue

        store, lease = open_store(replica.job.prefix), replica.lease
        imported = time.time() - began()
        if replica.is_chief:
            lease.take(above=highest_token(store))
        with lease.renewed(superseded) if replica.is_chief else nullcontext():
            uploader = Uploader(arguments.store_timeout)
            event_writer = EventWriter(
                store,
                uploader,
                lease.put,
                active=replica.is_chief,
                restarts=replica.restarts,
            )
            event_writer.note(EventType.START, at=began())
            event_writer.note(EventType.IMPORT, at=began() + imported, seconds=imported)
            with StatusWriter.of(replica) as status_writer:
                services = cls(
                    store=store,
                    lease=lease,
                    uploader=uploader,
                    event_writer=event_writer,
                    status_writer=status_writer,
                )
                try:
                    yield services
                finally:
                    uploader.wait(_LAST_SECONDS)

    def deliver(self, key: str, content: bytes) -> None:
        """Write an object, and return when it and all earlier uploads are in the store.

        Raises:
            SupersededError: another chief has taken over.
            TemporaryError: the store has been unavailable for too long.
        """
        self.uploader.send(key, lambda: self.lease.put(key, content))
        self.uploader.wait(math.inf)
        self.uploader.check()

    def upload(self, folder: str, files: Sequence[Path]) -> None:
        """Upload ``files`` to ``folder`` in the background, in their state at that time."""

        def upload() -> None:
            self.lease.check()
            for file in files:
                self.store.upload(file, f"{folder}/{file.name}")

        self.uploader.send(folder, upload)

    def watchdog(self, replica: Replica, excused: Callable[[], bool]) -> Watchdog:
        """Start the watchdog of ``replica``; it pauses while ``excused`` is true."""

        def end(because: str, unresponsive: Sequence[str]) -> None:
            replica.write_termination_message(because, unresponsive)
            self.uploader.wait(_LAST_SECONDS)
            os._exit(ExitCode.FROZEN)

        deadlines, served = replica.job.deadlines, bool(replica.job.rules.ps)
        watchdog = Watchdog(
            progress_timeout=deadlines.progress_timeout + served * _SERVED_LATER,
            start_timeout=deadlines.start,
            peers={
                name: address
                for name, address in peers_of(replica.cluster, replica.name).items()
                if name not in replica.without
            },
            end=end,
            excused=excused,
        )
        watchdog.start()
        return watchdog


def peers_of(cluster: Cluster, own: ReplicaName) -> dict[str, str]:
    """The addresses of all replicas of ``cluster`` but ``own``, by name."""
    names = {
        ReplicaName(Role(role), index): address
        for role, addresses in cluster.items()
        for index, address in enumerate(addresses)
    }
    return {str(name): address for name, address in names.items() if name != own}
