"""Ends this replica when its training makes no progress, and says who does not answer.

TensorFlow waits for a silent peer for a quarter of an hour, and for a stopped one for ever.
Whoever launched the replica then brings it back, from the last checkpoint.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from aerotrain.contract.recovery import say_unresponsive
from aerotrain.training.server_probe import answers
from aerotrain.training.step_runner import StepsRun

#: Between two looks. After a much longer pause this process was itself stopped.
_SECONDS_BETWEEN_LOOKS = 1.0
_STOPPED_SECONDS = 5.0

#: How many times the slowest execution so far one may take, if that is more than the patience.
_SLOWER = 3.0


class Watchdog:
    """Calls ``end`` when no execution ends within ``patience`` seconds.

    It gets the reason, and the names of the peers that do not answer.

    It rests unless an execution is being waited for. The first one, in which TensorFlow traces
    and compiles, may take ``first`` seconds. ``peers`` are addresses by the names of replicas.
    While ``excused`` is true, what is waited for is known to be none of an execution's doing.
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
        """Look from now on, once a second, in a thread of its own."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    def over(self, executions: Iterator[StepsRun], step: int) -> Iterator[StepsRun]:
        """``executions``, each watched while it is waited for; they begin after ``step`` steps."""
        while True:
            with self.watching():
                ran = next(executions, None)
            if ran is None:
                return
            self._step = step + ran.steps
            yield ran

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A scope in which progress is waited for."""
        self._since = began = self._clock()
        try:
            yield
        finally:
            # It may have been put off by as long as this process stood still.
            since, self._since = self._since or began, None
            if self._executions:
                self._slowest = max(self._slowest, self._clock() - since)
            self._executions += 1

    @property
    def allowance(self) -> float:
        """How many seconds may pass now without progress."""
        usual = max(self._patience, _SLOWER * self._slowest)
        return usual if self._executions else max(self._first, usual)

    def look(self) -> None:
        """End this replica if it has waited for too long."""
        now, before = self._clock(), self._looked
        self._looked = now
        since = self._since
        if since is None:
            return
        if self._excused():
            self._since = now
        elif now - before > _STOPPED_SECONDS:
            # The whole process stood still: what it waits for had no chance either.
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
