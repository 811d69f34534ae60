"""Processes that are started again after they have ended."""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError

#: Seconds between two restarts of a process.
_PAUSE = 5.0

#: Seconds in which a server has to be up, seconds between two checks, and seconds to stop.
_START_SECONDS, _CHECK_EVERY, _STOP_SECONDS = 60.0, 0.05, 10.0


class Restartable(ABC):
    """A process with a name and a log, to which each start appends."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._not_before = 0.0

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
        self._not_before = now + _PAUSE
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


class Server(Restartable):
    """A program of this machine, in a session of its own, whose output goes to its log."""

    process: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        name: str,
        log: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        is_up: Callable[[], bool] = lambda: True,
        **more: Any,
    ) -> None:
        """``more`` are arguments of ``Popen``."""
        super().__init__(name, log)
        self._command = command
        self._is_up = is_up
        self._more = {"env": environment, **more}

    def start(self) -> None:
        """Start the server, and return once it is up.

        Raises:
            TemporaryError: it ended or was not up in time; the message has the end of its log.
        """
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach only its caller, which then stops the server.
                start_new_session=True,
                **self._more,
            )
        self.wait_until(self._is_up)

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def exit_code(self) -> int:
        return self.process.wait() if self.process else 0

    def wait_until(self, is_up: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
        """Return once it is up.

        Raises:
            TemporaryError: it has ended, or is not up in time; the message has the end of its log.
        """
        end = time.monotonic() + seconds
        while not is_up():
            if not self.has_ended and time.monotonic() < end:
                time.sleep(_CHECK_EVERY)
                continue
            why = f"did not answer within {seconds:.0f} s"
            if self.has_ended:
                why = f"ended with {shown(self.exit_code())} while it started"
            raise TemporaryError(
                f"{self.name} {why}; its log {self._log} ends:\n{last_lines(self._log)}"
            )

    def stop(self) -> None:
        """End it; its data stay."""
        if self.process is not None:
            stop_process(self.process)


def stop_process(process: subprocess.Popen[bytes], by: signal.Signals = signal.SIGTERM) -> None:
    """End a process by a signal, and kill it if it does not end in time."""
    process.send_signal(by)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def shown(code: int) -> str:
    """An exit code, or the name of the signal that it stands for."""
    with suppress(ValueError):
        return signal.Signals(-code).name
    return str(code)


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, for an error message."""
    return "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-count:])
