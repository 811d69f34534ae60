"""The client of a job's supervisor: starts it, sends requests to it, and ends it."""

import asyncio
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.launch.process.warm_start import ForkServer
from aerotrain.supervisor.processes import is_alive, send
from aerotrain.supervisor.protocol import LOCK, MOST_DESCRIPTORS, Start, ask, socket_of
from aerotrain.supervisor.supervisor import read_status

#: Seconds for an answer: a supervisor handles one request at a time; ending all takes longest.
_ANSWER_SECONDS = 10.0

#: Seconds for a supervisor to start: it imports little.
_START_SECONDS = 60.0

#: Seconds for the replicas of a killed supervisor to end.
_KILL_SECONDS = 2.0

_POLL_EVERY = 0.02

#: struct flock, of fcntl(2) on Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")


def holder_of(lock: Path) -> int | None:
    """The process that holds the lock file, as supervisors and fork servers do while they run."""
    try:
        handle = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, wanted))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else pid


class SupervisorClient:
    """The client of the supervisor of the job in ``folder``.

    ``python`` is the interpreter of the supervisor, ``environment`` its environment, and
    ``fork_server`` that from which it is forked instead, if any.
    """

    def __init__(
        self,
        folder: Path,
        python: str,
        environment: Mapping[str, str],
        fork_server: ForkServer | None,
    ) -> None:
        self._folder = folder
        self._python = python
        self._environment = environment
        self._fork_server = fork_server

    def pid(self) -> int | None:
        """The pid of the supervisor, if it is running."""
        return holder_of(self._folder / LOCK)

    async def start_supervisor(self, *, warm: bool, wait: bool) -> str | None:
        """Start a supervisor, unless one is running.

        ``warm`` requests a forked one; ``wait`` waits for the imports of the fork server.

        Returns:
            Why the servers of its replicas will be open to the network, if they will be.

        Raises:
            FinalError: the interpreter cannot run one.
            TemporaryError: it does not respond in time.
            OSError: the machine lacks resources, or the folder was removed.
        """
        if self.pid() is not None:
            return None
        server = self._fork_server if warm else None
        if server is None or not await server.fork_supervisor(self._folder, wait=wait):
            self._run()
        until = time.monotonic() + _START_SECONDS
        while (answer := self._answer()) is None:
            if not self._folder.exists():
                raise FileNotFoundError(f"{self._folder} was removed while its supervisor started")
            if time.monotonic() > until:
                raise TemporaryError(
                    f"the supervisor of {self._folder} did not come up within "
                    f"{_START_SECONDS:.0f} s; the machine may be overloaded"
                )
            await asyncio.sleep(_POLL_EVERY)
        return answer["open"]

    def _run(self) -> None:
        """Run the interpreter and wait for its first process; the supervisor detaches itself."""
        try:
            ran = subprocess.run(
                [self._python, "-m", "aerotrain.supervisor.supervisor", str(self._folder)],
                cwd=self._folder,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
        except FileNotFoundError as error:
            if not self._folder.exists():
                raise
            raise FinalError(
                f"there is no interpreter {self._python}; set [aerotrain] python to the one that "
                "has aerotrain's tensorflow extra"
            ) from error
        if ran.returncode:
            message = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise FinalError(
                f"{self._python} cannot run a supervisor: {' '.join(message)}; set [aerotrain] "
                "python to the interpreter that has aerotrain's tensorflow extra"
            )

    def _answer(self) -> dict[str, Any] | None:
        with suppress(OSError):
            return ask(socket_of(self._folder), {"do": "observe"}, seconds=_ANSWER_SECONDS)
        return None

    def start(self, replicas: Sequence[Start], ports: Sequence[int]) -> None:
        """Start these replicas; those that still run are ended first.

        ``ports`` are open locks that the supervisor holds for as long as it runs.

        Raises:
            OSError: there is no supervisor, or the machine lacks resources.
        """
        socket = socket_of(self._folder)
        for first in range(0, len(ports), MOST_DESCRIPTORS):
            some = ports[first : first + MOST_DESCRIPTORS]
            ask(socket, {"do": "observe"}, descriptors=some, seconds=_ANSWER_SECONDS)
        request = {"do": "start", "replicas": [asdict(each) for each in replicas]}
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                ask(socket, request, seconds=_ANSWER_SECONDS)
                return
            except ConnectionError:  # not read, so sending it again starts nothing twice
                if self.pid() is None or time.monotonic() > until:
                    raise
                time.sleep(_POLL_EVERY)

    def records(self) -> dict[str, Any]:
        """The record of each replica by name; if the supervisor has ended, its last status."""
        until = time.monotonic() + _ANSWER_SECONDS
        while self.pid() is not None:
            with suppress(OSError):
                request = {"do": "observe"}
                found = ask(socket_of(self._folder), request, seconds=_ANSWER_SECONDS)["replicas"]
                return dict(found)
            if time.monotonic() > until:
                self._kill()  # a frozen supervisor leaves its replicas unobserved
            time.sleep(_POLL_EVERY)  # it is still starting, or has just ended
        return read_status(self._folder)

    def end(self) -> None:
        """End every process of the job, and the supervisor with them; remove the folder.

        The supervisor does so even if this process is killed meanwhile, as Airflow kills a task
        that does not end within seconds.
        """
        supervisor = self.pid()
        with suppress(OSError):
            request = {"do": "end", "remove": True}
            ask(socket_of(self._folder), request, seconds=_ANSWER_SECONDS)
        self._kill()
        if supervisor is not None:
            _wait_for_end([supervisor])
        socket_of(self._folder).unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        """Kill the supervisor if it is still running; its replicas are killed with it."""
        if (pid := self.pid()) is None:
            return
        replicas = [int(each["pid"]) for each in read_status(self._folder).values()]
        send([pid], signal.SIGKILL)
        _wait_for_end([pid, *replicas])


def _wait_for_end(processes: Sequence[int]) -> None:
    until = time.monotonic() + _KILL_SECONDS
    while any(map(is_alive, processes)) and time.monotonic() < until:
        time.sleep(_POLL_EVERY)
