"""The watchdog ends this replica when its training makes no progress, and names unresponsive peers.

TensorFlow waits a quarter of an hour for an unresponsive peer, and forever for a stopped one. A
launcher then restarts the replica from the last checkpoint.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

#: Seconds between two checks, and the length of a pause after which this process was itself
#: stopped.
_CHECK_SECONDS = 1.0
_STOPPED_SECONDS = 5.0

#: An execution may take this many times as long as the slowest so far, if that exceeds the timeout.
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

    The first execution, in which TensorFlow traces and compiles, may take ``start_timeout``
    seconds, and so may later ones while ``compiling`` is true. ``peers`` maps names of replicas to
    addresses. While ``excused`` is true, the delay has a known cause other than the execution.
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
        self._slowest = 0.0
        self._step = 0
        self._checked = self.clock()

    def start(self) -> None:
        """Check once a second, in a separate thread, from now on."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    @contextmanager
    def watching(self, step: int) -> Iterator[None]:
        """A scope in which progress is expected, after ``step`` steps."""
        self._step = step
        self._since = began = self.clock()
        try:
            yield
        finally:
            # ``check`` may have shifted it by the time for which this process was stopped.
            since, self._since = self._since or began, None
            if self._executions:
                self._slowest = max(self._slowest, self.clock() - since)
            self._executions += 1

    @property
    def allowance(self) -> float:
        """The number of seconds that may pass now without progress."""
        usual = max(self.progress_timeout, _SLOWER * self._slowest)
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
                "ends itself, and continues from the last checkpoint when it is started again",
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
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(_GREETING)
            return bool(connection.recv(1))
    except OSError:
        return False


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
