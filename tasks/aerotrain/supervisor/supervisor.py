"""The supervisor of one job: one thread for requests, ended processes and heartbeats.

``python -m aerotrain.supervisor.supervisor FOLDER`` runs that of the job in ``FOLDER``, detached.
"""

import errno
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from aerotrain.contract.errors import TemporaryError
from aerotrain.supervisor.loopback import answer_bind, why_open
from aerotrain.supervisor.ports import Port, hold, reserve
from aerotrain.supervisor.processes import (
    adopt_orphans,
    descendants,
    name_process,
    send,
    wait_until,
)
from aerotrain.supervisor.protocol import (
    LOCK,
    STATUS,
    Start,
    answer,
    listen,
    read_request,
    socket_of,
)
from aerotrain.supervisor.replica_process import (
    KILL_SECONDS,
    Preloaded,
    ReplicaFolder,
    start_replica,
)

#: Seconds between SIGTERM to the processes of a job and SIGKILL. Airflow gives a killed task 5 s,
#: which must suffice for both.
GRACE = 2.0

#: Seconds that replicas have to end by themselves after this process has received SIGTERM. On a
#: shutdown of the machine they have received it as well, and a second one would keep them from
#: saving.
_SHUTDOWN = 10.0

#: Seconds between two checks of heartbeats.
_CHECK_EVERY = 1.0

#: Seconds without a request after which a supervisor ends whose replicas have all ended.
_IDLE = 600.0


@dataclass
class SupervisedReplica:
    """The state of one replica; it has ended if ``reaper`` is None.

    ``binds`` is the listener of its binds, if they are filtered.
    ``heartbeat`` is the time of its heartbeat file, and ``heartbeat_seen`` when that was seen to
    change, by this process's own clock. So a machine that slept, or a disk with a wrong clock, does
    not end replicas.
    """

    folder: ReplicaFolder
    restarts: int
    reaper: int | None = None
    pid: int = 0
    binds: int | None = None
    exit_code: int | None = None
    message: str = ""
    heartbeat: float | None = None
    heartbeat_seen: float = 0.0

    def check_heartbeat(self) -> None:
        latest = self.folder.heartbeat()
        if latest != self.heartbeat:
            self.heartbeat, self.heartbeat_seen = latest, time.monotonic()

    def record(self) -> dict[str, Any]:
        """The record of the replica for a task."""
        return {
            "restarts": self.restarts,
            "pid": self.pid,
            "running": self.reaper is not None,
            "exit_code": self.exit_code,
            "message": self.message,
            "heartbeat_age": time.monotonic() - self.heartbeat_seen if self.reaper else None,
        }

    @classmethod
    def of_record(cls, folder: ReplicaFolder, record: Mapping[str, Any]) -> "SupervisedReplica":
        """Load a record of an earlier supervisor; its replicas have all ended with it."""
        known = ("restarts", "pid", "exit_code", "message")
        return cls(folder, **{name: record[name] for name in known})


class Supervisor:
    """Starts, ends and observes the replicas of the job in ``folder``.

    Without ``preloaded`` imports, every replica runs the interpreter.
    """

    def __init__(self, folder: Path, preloaded: Preloaded | None) -> None:
        self._folder = folder
        self._preloaded = preloaded
        self._replicas = {
            name: SupervisedReplica.of_record(ReplicaFolder(folder / name), record)
            for name, record in read_status(folder).items()
        }
        self._ports: dict[int, Port] = {}
        self._open = why_open()
        self._selector = selectors.DefaultSelector()
        self._status_is_old = False
        self._last_request = time.monotonic()
        self._shutdown_at: float | None = None

    def run(self) -> NoReturn:
        """Work until the job has ended."""
        adopt_orphans()
        name_process("supervisor")
        waking, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._shut_down)
        with listen(socket_of(self._folder)) as listener:
            self._selector.register(listener, selectors.EVENT_READ)
            self._selector.register(waking, selectors.EVENT_READ)
            while True:
                for key, _ in self._selector.select(_CHECK_EVERY):
                    if key.fileobj is listener:
                        self._serve(listener)
                    elif key.fileobj == waking:
                        os.read(waking, 1 << 12)
                    else:
                        answer_bind(key.fd)
                self._check()

    def _check(self) -> None:
        self._reap()
        for replica in self._replicas.values():
            if replica.reaper is not None:
                replica.check_heartbeat()
        if self._status_is_old:
            self._write_status()
        now, has_ended = time.monotonic(), not self._reapers()
        is_idle = has_ended and now > self._last_request + _IDLE
        is_down = self._shutdown_at is not None and (has_ended or now > self._shutdown_at)
        if is_idle or is_down or not self._folder.exists():
            self._exit()

    def _shut_down(self, *_: object) -> None:
        if self._shutdown_at is None:
            self._shutdown_at = time.monotonic() + _SHUTDOWN

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                request = read_request(connection)
                self._last_request = time.monotonic()
                try:
                    answer(connection, self._do(request))
                except OSError as error:
                    answer(connection, error)
                    return
                if request["do"] == "end":
                    socket_of(self._folder).unlink(missing_ok=True)
                    os._exit(0)

    def _do(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request["do"]:
            case "reserve":
                return {"ports": self._reserve(request["count"])}
            case "start":
                self._hold(request["ports"])
                self._start([Start(**each) for each in request["replicas"]])
            case "end":
                self._end()
                shutil.rmtree(self._folder, ignore_errors=True)
            case "observe":
                self._check()
            case other:
                raise OSError(0, f"a supervisor does not know {other!r}")
        return {
            "pid": os.getpid(),
            "open": self._open,
            "replicas": {name: each.record() for name, each in self._replicas.items()},
        }

    def _reserve(self, count: int) -> list[int]:
        """Reserve ports of loopback for the job.

        Raises:
            OSError: not enough are free.
        """
        try:
            found = reserve(count, str(self._folder))
        except TemporaryError as error:
            raise OSError(errno.EADDRNOTAVAIL, str(error)) from error
        self._ports = {port.number: port for port in found}
        return [*self._ports]

    def _hold(self, ports: Collection[int]) -> None:
        """Reserve the ports of the job that an earlier supervisor has held until its end.

        Raises:
            OSError: one was taken since.
        """
        for number in ports:
            if number not in self._ports:
                if (port := hold(number)) is None:
                    reason = f"port {number} was taken after the job's last supervisor had ended"
                    raise OSError(errno.EADDRINUSE, reason)
                self._ports[number] = port

    def _start(self, starts: Sequence[Start]) -> None:
        """Start these replicas; those that still run are ended first."""
        self._kill([each.name for each in starts])
        try:
            for each in starts:
                self._start_one(each)
        finally:
            self._write_status()

    def _start_one(self, start: Start) -> None:
        folder = ReplicaFolder(self._folder / start.name)
        started = start_replica(start, folder, self._preloaded, filtered=self._open is None)
        if started.binds is not None:
            self._selector.register(started.binds, selectors.EVENT_READ)
        replica = SupervisedReplica(
            folder,
            start.restarts,
            started.reaper,
            started.pid,
            started.binds,
            heartbeat_seen=time.monotonic(),
        )
        replica.check_heartbeat()
        self._replicas[start.name] = replica

    def _reap(self) -> None:
        """Record which replicas have ended."""
        by_reaper = {each.reaper: each for each in self._replicas.values() if each.reaper}
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                replica = by_reaper.get(ended[0])
                if replica is None:
                    continue  # an orphan of a killed reaper
                code = os.waitstatus_to_exitcode(ended[1])
                # The status of a killed reaper does not contain its replica's exit code.
                replica.exit_code = code if code >= 0 else None
                replica.message = replica.folder.termination_message()
                replica.reaper = None
                self._close_binds(replica)
                self._status_is_old = True
                if code < 0:
                    self._kill_orphans()

    def _close_binds(self, replica: SupervisedReplica) -> None:
        if replica.binds is not None:
            self._selector.unregister(replica.binds)
            os.close(replica.binds)
            replica.binds = None

    def _kill_orphans(self) -> None:
        """Kill the replicas without a reaper, and all their descendants."""
        reapers = self._reapers()
        owned = {each for reaper in reapers for each in (reaper, *descendants(reaper))}
        send([each for each in descendants(os.getpid()) if each not in owned], signal.SIGKILL)

    def _kill(self, names: Collection[str]) -> None:
        """Kill these replicas at once, with all their descendants."""

        def are_gone() -> bool:
            self._reap()
            return not any(self._replicas[name].reaper for name in known)

        known = [name for name in names if name in self._replicas]
        for name in known:
            reaper = self._replicas[name].reaper
            if reaper is not None:
                send(descendants(reaper), signal.SIGKILL)
        if not wait_until(are_gone, KILL_SECONDS):
            # The reaper itself was stopped: its replica is killed as an orphan.
            send([each for n in known if (each := self._replicas[n].reaper)], signal.SIGKILL)
            wait_until(are_gone, KILL_SECONDS)

    def _end(self) -> None:
        """Send SIGTERM to every process of the job, and kill those that remain."""

        def are_gone() -> bool:
            self._reap()
            return not self._reapers()

        reapers = self._reapers()
        everything = [each for each in descendants(os.getpid()) if each not in reapers]
        send(everything, signal.SIGTERM)
        wait_until(are_gone, GRACE)
        self._kill(list(self._replicas))
        self._kill_orphans()
        self._write_status()

    def _reapers(self) -> list[int]:
        return [each.reaper for each in self._replicas.values() if each.reaper is not None]

    def _write_status(self) -> None:
        """Write the record for the time after this process; on a full disk, later."""
        new = self._folder / f".{STATUS}"
        records = {name: each.record() for name, each in self._replicas.items()}
        try:
            new.write_text(json.dumps({"pid": os.getpid(), "replicas": records}))
            new.rename(self._folder / STATUS)
        except OSError:
            self._status_is_old = self._folder.exists()
        else:
            self._status_is_old = False

    def _exit(self) -> NoReturn:
        self._end()
        socket_of(self._folder).unlink(missing_ok=True)
        os._exit(0)


def read_status(folder: Path) -> dict[str, Any]:
    """The last supervisor's record of each replica of the job in ``folder``."""
    try:
        replicas: dict[str, Any] = json.loads((folder / STATUS).read_text())["replicas"]
    except FileNotFoundError:
        return {}
    return replicas


def supervise(folder: Path, preloaded: Preloaded | None = None) -> NoReturn:
    """Run the supervisor of the job in ``folder``; exit at once if there is one already."""
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by this process, not its children
    except OSError:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder / "supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for opened, stream in ((null, 0), (log, 1), (log, 2)):
        os.dup2(opened, stream)
    Supervisor(folder, preloaded).run()


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    supervise(Path(sys.argv[1]))
