"""Processes that are started again after they have ended."""

import signal
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from aerotrain.contract.errors import AerotrainError, FinalError, backoff

#: Seconds between two restarts of a process, first and at most; the first again after it has run
#: for ``_LIVED`` seconds.
_PAUSES, _LIVED = (1.0, 30.0), 60.0


class Restartable(ABC):
    """A process with a name and a log, to which each start appends."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._pauses, self._not_before = backoff(*_PAUSES), 0.0

    @abstractmethod
    def start(self) -> None:
        """Start the process; again, if it has ended."""

    @property
    @abstractmethod
    def has_ended(self) -> bool: ...

    @abstractmethod
    def exit_code(self) -> int:
        """Wait for its end."""

    def check(self) -> None:
        """Check that it is running.

        Raises:
            FinalError: it has ended; its last lines are in the message.
        """
        if self.has_ended:
            raise self._failure()

    def restart_if_ended(self) -> str:
        """Start it again if it has ended, after a pause; returns a sentence if it did so."""
        now = time.monotonic()
        if not self.has_ended or now < self._not_before:
            return ""
        if now > self._not_before + _LIVED:
            self._pauses = backoff(*_PAUSES)
        self._not_before = now + next(self._pauses)
        ended = f"{self.name} ended with {shown(self.exit_code())}"
        why = "".join(f"\n{line}" for line in last_lines(self._log, 1).splitlines())
        try:
            self.start()
        except AerotrainError as error:
            return f"{ended} and could not be started again: {error}"
        return f"{ended} and was started again; its log {self._log} ended:{why}"

    def _failure(self) -> FinalError:
        return FinalError(
            f"{self.name} ended with {shown(self.exit_code())}; its log {self._log} ends:\n"
            f"{last_lines(self._log)}"
        )


def shown(code: int) -> str:
    """An exit code, or the name of the signal that it stands for."""
    with suppress(ValueError):
        return signal.Signals(-code).name
    return str(code)


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, for an error message."""
    return "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-count:])
