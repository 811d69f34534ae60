"""Processes that carry a home's mark in their environment: how they are started and ended."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from aerotrain.contract.errors import FinalError
from devtools.home import Home
from devtools.settings import MARK

#: Seconds that processes get to end by themselves. A task's replicas need 2 of them.
GRACE = 6.0

#: A process may start another one just before it is killed.
_KILL_ROUNDS = 3

_LAST_LINES = 15


class Process:
    """A program in a session of its own, with its output in a log file.

    ``name`` is the name of the log. Ctrl-C in the terminal does not reach the program.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], home: Home
    ) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._folder = home.root
        self._log = home.logs / f"{name}.log"
        self._log.unlink(missing_ok=True)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def restart(self) -> None:
        """Kill the process and its children, and start it again."""
        self._kill_family()
        self._process = self._start()

    def kill_alone(self) -> None:
        """Kill the process, but none of its children."""
        self._process.kill()
        self._process.wait()

    def _kill_family(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it has already ended
            family = psutil.Process(self._process.pid)
            for process in (*family.children(recursive=True), family):
                _send(process, kill=True)
        self._process.wait()

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            FinalError: it failed; its last lines are in the message.
        """
        if self._process.wait() != 0:
            raise FinalError(self._last_words())

    def check(self) -> None:
        """Raise a FinalError if it has ended: it should be running."""
        if self._process.poll() is not None:
            raise FinalError(self._last_words())

    def stop(self) -> None:
        """Make sure that it has ended and leaves no zombie."""
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return (
            f"{self.name} ended with {self._process.returncode}; its log {self._log} ends:\n"
            + "\n".join(f"  {line}" for line in lines)
        )


def airflow(subcommand: str) -> list[str]:
    """The command line of an ``airflow`` subcommand, with this Python interpreter."""
    return [sys.executable, "-m", "airflow", *subcommand.split()]


def marked(root: Path) -> list[psutil.Process]:
    """Every process of the home at ``root`` except this one, whatever its parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(root) and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or owned by another user
    return found


def end_marked(root: Path) -> int:
    """End every process of the home at ``root``: terminate them, and kill them after GRACE.

    Returns:
        How many there were.
    """
    first = marked(root)
    for process in first:
        _send(process, kill=False)
    psutil.wait_procs(first, timeout=GRACE)
    # Listed again, for processes that were started while others were ending.
    for _ in range(_KILL_ROUNDS):
        stubborn = marked(root)
        for process in stubborn:
            _send(process, kill=True)
        psutil.wait_procs(stubborn, timeout=1)
    return len(first)


def _send(process: psutil.Process, *, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        pass  # it has ended by itself
