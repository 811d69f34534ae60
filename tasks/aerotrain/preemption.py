"""How a replica ends when it is preempted: at once, or after it has saved a checkpoint."""

import os
from collections.abc import Callable
from threading import Event, Timer

from aerotrain.contract.errors import ExitCode, TemporaryError

#: Seconds that a replica may take to save, unless AEROTRAIN_GRACE is set. Pods are killed 10 s
#: after they were preempted.
GRACE = 8.0


class Preempted(TemporaryError):  # noqa: N818 -- named after the event, not as an error
    """The work has stopped because the replica was preempted, and everything is saved."""


def exit_now() -> None:
    """End this process at once; a normal exit would wait for TensorFlow's threads."""
    os._exit(ExitCode.TERMINATED)


class PreemptionNotice:
    """The notice of a preemption, which the work checks between two executions.

    Until the work has called ``promise``, a preempted process exits at once.
    """

    def __init__(self, grace: float = GRACE, leave: Callable[[], None] = exit_now) -> None:
        self._grace = grace
        self._leave = leave
        self._told = Event()
        self._promised = False

    def promise(self) -> None:
        """Declare that from now on the work checks the notice, saves, and ends by itself."""
        self._promised = True

    def give(self) -> None:
        """Preempt the work. Exit now if it has not promised to check, or at a second call."""
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
        """Seconds that remain to save after a preemption."""
        return self._grace
