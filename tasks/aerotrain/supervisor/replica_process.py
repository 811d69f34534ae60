"""The process of one replica: its folder, its reaper, and how it starts.

The process runs the interpreter or, in a supervisor that was forked from a fork server, continues
with the existing imports (``Preloaded``). Environment, working directory, umask, signals, streams
and open files are the same in both cases.

The reaper is a small process above each replica, like an init in a container. It becomes the parent
of the replica's orphans, kills all of them after the replica has ended, and exits with the
replica's exit code. When the supervisor is killed, its reapers kill their replicas. A reaper
ignores signals that are sent to all processes of a machine, so that its replica has time to save.
"""

import os
import shutil
import signal
import socket
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aerotrain.contract.environment import Variable
from aerotrain.supervisor.loopback import filter_binds
from aerotrain.supervisor.processes import (
    adopt_orphans,
    close_all_but,
    descendants,
    end_with,
    name_process,
    reset_signals,
    send,
    wait_until,
)
from aerotrain.supervisor.protocol import HEARTBEAT, LOG, TERMINATION_LOG, WORK, Start

#: Seconds to wait for killed processes to end; one in a system call may take longer.
KILL_SECONDS = 2.0

#: The signal that a reaper receives when the supervisor has ended.
_ORPHANED = signal.SIGUSR1

_IGNORED_BY_REAPERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: The most bytes of a process id, in digits.
_LONGEST_PID = 20

#: The exit code of a replica that could not be started, as in a shell.
_CANNOT_START = 127


@dataclass(frozen=True)
class Preloaded:
    """The imports of a forked process.

    ``become`` turns it into the replica with this environment and command. ``files`` are the open
    files that the imports need. ``is_stale`` returns whether a module has changed on disk since,
    and the interpreter must be run instead.
    """

    become: Callable[[Mapping[str, str], Sequence[str]], NoReturn]
    files: Collection[int]
    is_stale: Callable[[], bool]


@dataclass(frozen=True)
class ReplicaFolder:
    """A replica's folder in that of its job::

    work/             its scratch and working directory, new after each restart
    log               its output, both streams, of all restarts
    heartbeat         touched by the replica while it is alive
    termination-log   its termination message, if it failed
    """

    path: Path

    def make_ready(self) -> int:
        """Create an empty scratch folder for a start, and return the descriptor of the opened log.

        Raises:
            OSError: the disk is full, or the job's folder was removed in the meantime.
        """
        shutil.rmtree(self.path / WORK, ignore_errors=True)
        self.path.mkdir(exist_ok=True)  # not its parents: the job may have ended
        (self.path / WORK / "tmp").mkdir(parents=True)
        (self.path / TERMINATION_LOG).unlink(missing_ok=True)
        (self.path / HEARTBEAT).touch()
        log = os.open(self.path / LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(log).st_size
        if size and os.pread(log, 1, size - 1) != b"\n":  # its last line was truncated
            os.write(log, b"\n")
        return log

    def environment(self) -> dict[str, str]:
        """The variables that name the replica's files."""
        return {
            "TMPDIR": str(self.path / WORK / "tmp"),
            "PYTHONUNBUFFERED": "1",
            Variable.TERMINATION_LOG: str(self.path / TERMINATION_LOG),
            Variable.HEARTBEAT: str(self.path / HEARTBEAT),
        }

    def heartbeat(self) -> float | None:
        """The time of the last heartbeat, by the clock of its disk; None without a file."""
        try:
            return (self.path / HEARTBEAT).stat().st_mtime
        except OSError:
            return None

    def termination_message(self) -> str:
        try:
            return (self.path / TERMINATION_LOG).read_text(errors="replace")
        except OSError:
            return ""


@dataclass(frozen=True)
class Started:
    """A started replica: the process ids of its reaper and of itself, and the listener of binds.

    Without a filter of its binds, there is no listener.
    """

    reaper: int
    pid: int
    binds: int | None


def start_replica(
    start: Start, folder: ReplicaFolder, preloaded: Preloaded | None, *, filtered: bool
) -> Started:
    """Start a replica, with a filter of its binds (``loopback``) if ``filtered``.

    Raises:
        OSError: the machine lacks resources, or the job's folder was removed.
    """
    log = folder.make_ready()
    try:
        return _fork_reaper(lambda: _become(start, folder, log, preloaded), filtered)
    finally:
        os.close(log)


def _fork_reaper(become: Callable[[], NoReturn], filtered: bool) -> Started:
    ours, reapers = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    supervisor = os.getpid()
    with ours, reapers:
        reaper = os.fork()
        if reaper == 0:
            try:
                _reap(become, supervisor, reapers, filtered)
            finally:
                os._exit(_CANNOT_START)
        reapers.close()
        pid, binds, _, _ = socket.recv_fds(ours, _LONGEST_PID, 1)
        return Started(reaper, int(pid or 0), binds[0] if binds else None)


def _reap(
    become: Callable[[], NoReturn], supervisor: int, connection: socket.socket, filtered: bool
) -> NoReturn:
    """Fork the replica, send its process id, and reap until it has ended."""
    reset_signals()
    signal.signal(_ORPHANED, lambda *_: _end(128 + signal.SIGKILL))
    for number in _IGNORED_BY_REAPERS:
        signal.signal(number, signal.SIG_IGN)
    end_with(supervisor, _ORPHANED)
    adopt_orphans()
    binds = [filter_binds()] if filtered else []
    reaper = os.getpid()
    replica = os.fork()
    if replica == 0:
        try:
            reset_signals()
            os.setsid()
            end_with(reaper, signal.SIGKILL)
            become()
        finally:
            os._exit(_CANNOT_START)
    socket.send_fds(connection, [str(replica).encode()], binds)
    close_all_but(())
    while True:
        pid, status = os.wait()
        if pid == replica:
            code = os.waitstatus_to_exitcode(status)
            _end(code if code >= 0 else 128 - code)


def _end(code: int) -> NoReturn:
    """Kill all descendants, and exit with ``code``."""
    signal.signal(_ORPHANED, signal.SIG_IGN)

    def is_alone() -> bool:
        left = descendants(os.getpid())
        send(left, signal.SIGKILL)
        return not left

    wait_until(is_alone, KILL_SECONDS)
    os._exit(code)


def _become(start: Start, folder: ReplicaFolder, log: int, preloaded: Preloaded | None) -> NoReturn:
    """Turn this process into the replica."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    try:
        close_all_but(preloaded.files if preloaded else ())
        reset_signals()
        os.chdir(folder.path / WORK)
        os.umask(start.umask)
        name_process(start.name)
        environment = {**start.environment, **folder.environment()}
        if preloaded is not None and start.warm and not preloaded.is_stale():
            preloaded.become(environment, start.command)
        os.execvpe(start.command[0], list(start.command), environment)
    except BaseException:  # noqa: BLE001 -- whatever it is, the log is where it is looked for
        os.write(2, traceback.format_exc().encode())
        os._exit(_CANNOT_START)
