"""A container as a local process: in a session of its own, its output written to a log."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from support.kubernetes_double.logs import Log

#: Timeout in seconds for the rest of a process's output after its end.
_LAST_WORDS = 2.0


class Container:
    """One running container.

    As in a container, nothing outlives the first process. Unlike there, the first process does not
    have process id 1, so that SIGTERM ends it even if it has no handler.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Log
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal to the first process alone, as the kubelet does."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill all processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._tell(self._log.write, line)

    def _wait(self) -> None:
        code = self._process.wait()
        self.kill()  # the kernel kills what is left in a container
        self._reader.join(_LAST_WORDS)
        self._tell(self._end, 128 - code if code < 0 else code)

    def _end(self, code: int) -> None:
        self._log.close()
        if not self.ended.done():
            self.ended.set_result(code)

    def _tell(self, call: object, *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the double was stopped meanwhile
            self._loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]
