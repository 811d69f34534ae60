"""The client of a job's supervisor: to have one, to ask it, and to end it."""

import asyncio
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.supervisor.protocol import LOCK, MOST_DESCRIPTORS, ask, socket_of
from aerotrain.supervisor.supervisor import read_status
from aerotrain_airflow.backends.process.warm_start import WarmStart

#: Seconds for an answer: a supervisor does one thing at a time, and to end all takes the longest.
_ANSWER = 10.0

#: Seconds for a supervisor to come up: it imports little.
_COMES_UP = 60.0

#: Seconds for the replicas of a supervisor that was killed to be gone.
_GOING = 2.0

_LOOK_EVERY = 0.02

#: struct flock, of fcntl(2) on Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")


def holder_of(lock: Path) -> int | None:
    """The process that holds that lock file, as supervisors and fork servers do while they live."""
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


class Supervision:
    """What is asked of the supervisor of the job in ``folder``.

    ``python`` is the interpreter it runs by, ``environment`` what it starts with, and ``warm``
    where it is forked from instead, if anywhere.
    """

    def __init__(
        self, folder: Path, python: str, environment: Mapping[str, str], warm: WarmStart | None
    ) -> None:
        self._folder = folder
        self._python = python
        self._environment = environment
        self._warm = warm

    def pid(self) -> int | None:
        """The process of the supervisor, if there is one."""
        return holder_of(self._folder / LOCK)

    async def begin(self, *, warm: bool, wait: bool) -> None:
        """Have a supervisor; one that is there already will do.

        ``warm`` asks for one that is forked, and ``wait`` has the imports for it waited for.

        Raises:
            FinalError: the interpreter cannot run one.
            TemporaryError: it does not come up.
            OSError: the machine has no room for it.
        """
        if self.pid() is not None:
            return
        server = self._warm if warm else None
        if server is None or not await server.fork_supervisor(self._folder, wait=wait):
            self._run_one()
        until = time.monotonic() + _COMES_UP
        while not self._answers():
            if time.monotonic() > until:
                raise TemporaryError(
                    f"the supervisor of {self._folder} did not come up within {_COMES_UP:.0f} s; "
                    "the machine may be overloaded"
                )
            await asyncio.sleep(_LOOK_EVERY)

    def _run_one(self) -> None:
        """Run the interpreter: it detaches itself, and what is waited for is its first half."""
        try:
            ran = subprocess.run(
                [self._python, "-m", "aerotrain.supervisor", str(self._folder)],
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
            said = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise FinalError(
                f"{self._python} cannot run a supervisor: {' '.join(said)}; set [aerotrain] "
                "python to the interpreter that has aerotrain's tensorflow extra"
            )

    def _answers(self) -> bool:
        try:
            ask(socket_of(self._folder), {"do": "observe"}, seconds=_ANSWER)
        except OSError:
            return False
        return True

    def start(self, replicas: Sequence[Mapping[str, Any]], ports: Sequence[int]) -> None:
        """Start these replicas; where they run still, they are ended first.

        ``ports`` are open locks that the supervisor is to hold as long as it lives.

        Raises:
            OSError: there is no supervisor, or no room.
        """
        socket = socket_of(self._folder)
        for first in range(0, len(ports), MOST_DESCRIPTORS):
            some = ports[first : first + MOST_DESCRIPTORS]
            ask(socket, {"do": "observe"}, descriptors=some, seconds=_ANSWER)
        request = {"do": "start", "replicas": [dict(each) for each in replicas]}
        until = time.monotonic() + _ANSWER
        while True:
            try:
                ask(socket, request, seconds=_ANSWER)
                return
            except ConnectionError:  # cut off before it was read: to ask again starts nothing twice
                if self.pid() is None or time.monotonic() > until:
                    raise
                time.sleep(_LOOK_EVERY)

    def records(self) -> dict[str, Any]:
        """What it knows of each replica by its name; what it recorded, where it is gone."""
        until = time.monotonic() + _ANSWER
        while self.pid() is not None:
            with suppress(OSError):
                request = {"do": "observe"}
                found = ask(socket_of(self._folder), request, seconds=_ANSWER)["replicas"]
                return dict(found)
            if time.monotonic() > until:
                self._kill()  # it was stopped, and what it does not see nothing else does
            time.sleep(_LOOK_EVERY)  # it has begun, and does not listen as yet; or it has just gone
        return read_status(self._folder)

    def end(self) -> None:
        """End every process of the job, and the supervisor with them."""
        with suppress(OSError):
            ask(socket_of(self._folder), {"do": "end"}, seconds=_ANSWER)
        self._kill()
        socket_of(self._folder).unlink(missing_ok=True)

    def _kill(self) -> None:
        """Kill the supervisor if it is there still; its replicas are killed with it."""
        if (pid := self.pid()) is None:
            return
        replicas = [int(each["pid"]) for each in read_status(self._folder).values()]
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        until = time.monotonic() + _GOING
        while any(map(_is_alive, (pid, *replicas))) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
