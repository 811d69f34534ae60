"""How a replica ends when it is preempted: at once, or after it has saved a checkpoint."""

import os
from collections.abc import Callable
from threading import Event, Timer

from aerotrain.contract.errors import ExitCode, TemporaryError

#: Seconds that a replica which saves may take, where AEROTRAIN_GRACE says nothing else. Pods
#: are killed 10 s after they were preempted.
GRACE = 8.0


class Preempted(TemporaryError):  # noqa: N818 -- reads as what befell the replica
    """The work has stopped because the replica was preempted, and everything is saved."""


def exit_now() -> None:
    """End this process: TensorFlow's threads would keep a normal exit waiting."""
    os._exit(ExitCode.TERMINATED)


class PreemptionNotice:
    """The word to go, left where the work looks for it between two executions.

    Until the work ``promises`` to look, there is nothing to wait for.
    """

    def __init__(self, grace: float = GRACE, leave: Callable[[], None] = exit_now) -> None:
        self._grace = grace
        self._leave = leave
        self._told = Event()
        self._promised = False

    def promise(self) -> None:
        """From now on the work looks for the word, saves, and ends by itself."""
        self._promised = True

    def give(self) -> None:
        """Preempt the work; exit at once if the work does not look, or at a second call."""
        if self._told.is_set() or not self._promised:
            self._leave()
            return
        self._told.set()
        last = Timer(self._grace, self._leave)
        last.daemon = True
        last.start()

    def given(self) -> bool:
        """Whether the replica was preempted."""
        return self._told.is_set()

    @property
    def grace(self) -> float:
        """Seconds that there are to save, once the word is given."""
        return self._grace
