"""The watchdog ends this replica when its training makes no progress, and names unresponsive peers.

TensorFlow waits a quarter of an hour for an unresponsive peer, and forever for a stopped one. The
launcher then restarts the replica from the last checkpoint.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from aerotrain.contract.errors import say_unresponsive
from aerotrain.training.server_probe import answers
from aerotrain.training.step_runner import StepsRun

#: Seconds between two checks, and the length of a pause after which this process was itself
#: stopped.
_SECONDS_BETWEEN_LOOKS = 1.0
_STOPPED_SECONDS = 5.0

#: An execution may take this many times as long as the slowest so far, if that exceeds the timeout.
_SLOWER = 3.0


class Watchdog:
    """Calls ``end`` when no execution ends within ``patience`` seconds.

    ``end`` gets the reason, and the names of the peers that do not answer.

    The watchdog is active only while an execution is awaited. The first execution, in which
    TensorFlow traces and compiles, may take ``first`` seconds. ``peers`` maps names of replicas to
    addresses. While ``excused`` is true, the delay has a known cause other than the execution.
    """

    def __init__(
        self,
        *,
        patience: float,
        first: float,
        peers: Mapping[str, str],
        end: Callable[[str, Sequence[str]], None],
        excused: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience
        self._first = max(first, patience)
        self._peers = peers
        self._end = end
        self._excused = excused
        self._clock = clock
        self._since: float | None = None
        self._executions = 0
        self._slowest = 0.0
        self._step = 0
        self._looked = clock()

    def start(self) -> None:
        """Check once a second, in a separate thread, from now on."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    def over(self, executions: Iterator[StepsRun], step: int) -> Iterator[StepsRun]:
        """``executions``, each watched while it is awaited; they start after ``step`` steps."""
        while True:
            with self.watching():
                ran = next(executions, None)
            if ran is None:
                return
            self._step = step + ran.steps
            yield ran

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A scope in which progress is expected."""
        self._since = began = self._clock()
        try:
            yield
        finally:
            # ``look`` may have shifted it by the time for which this process was stopped.
            since, self._since = self._since or began, None
            if self._executions:
                self._slowest = max(self._slowest, self._clock() - since)
            self._executions += 1

    @property
    def allowance(self) -> float:
        """The number of seconds that may pass now without progress."""
        usual = max(self._patience, _SLOWER * self._slowest)
        return usual if self._executions else max(self._first, usual)

    def look(self) -> None:
        """End this replica if it has waited too long."""
        now, before = self._clock(), self._looked
        self._looked = now
        since = self._since
        if since is None:
            return
        if self._excused():
            self._since = now
        elif now - before > _STOPPED_SECONDS:
            # The whole process was stopped, and so was what it waits for.
            self._since = since + (now - before)
        elif now - since > self.allowance:
            unresponsive = [name for name, address in self._peers.items() if not answers(address)]
            self._end(
                f"no progress for {now - since:.0f} s after step {self._step}, where "
                f"{self.allowance:.0f} s are allowed: {self._whom_to_blame(unresponsive)}; this "
                "replica ends itself, to be started again from the last checkpoint",
                unresponsive,
            )

    def _whom_to_blame(self, silent: Sequence[str]) -> str:
        if silent:
            return say_unresponsive(silent)
        return "all other replicas answer" if self._peers else "the execution does not end"

    def _work(self) -> None:
        while True:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            self.look()
