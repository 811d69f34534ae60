"""The start of one replica of a local job: its folder, and the process that becomes it.

The process runs the interpreter again or, in a supervisor that was forked from a fork server,
continues with the existing imports (``warm``). Environment, working directory, umask, signals,
streams and open files are the same in both cases.
"""

import os
import shutil
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from aerotrain.supervisor.processes import close_all_but, name_process, reset_signals
from aerotrain.supervisor.protocol import HEARTBEAT, LOG, TERMINATION_LOG, WORK

#: Turns a forked process into the replica with this environment and command, and does not return,
#: unless its imports are outdated and the interpreter must be run.
Warm = Callable[[Mapping[str, str], Sequence[str]], None]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A replica to start; ``restarts`` is its restart count.

    ``warm`` allows the imports of this process for its environment.
    """

    name: str
    restarts: int
    command: Sequence[str]
    environment: Mapping[str, str]
    umask: int
    warm: bool

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Read one replica of a request."""
        return cls(**data)


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
            "AEROTRAIN_TERMINATION_LOG": str(self.path / TERMINATION_LOG),
            "AEROTRAIN_HEARTBEAT": str(self.path / HEARTBEAT),
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


def become(
    start: Start,
    folder: ReplicaFolder,
    log: int,
    warm: Warm | None,
    kept: Collection[int],
) -> NoReturn:
    """Turn this process into the replica; ``kept`` are the open files that its imports need."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    try:
        close_all_but(kept if warm else ())
        reset_signals()
        os.chdir(folder.path / WORK)
        os.umask(start.umask)
        name_process(start.name)
        environment = {**start.environment, **folder.environment()}
        if warm is not None and start.warm:
            warm(environment, start.command)
        os.execvpe(start.command[0], list(start.command), environment)
    except BaseException:  # noqa: BLE001 -- whatever it is, the log is where it is looked for
        os.write(2, traceback.format_exc().encode())
        os._exit(127)
