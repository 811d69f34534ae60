"""One replica as a local process: its folder, its keeper, and how both are read and ended.

A keeper is a shell that outlives its replica by one line, so that the exit code reaches the
folder even when nobody is left to wait for it. It leads a session of its own.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.status import Loss, Observation, State, observed_exit

#: It lets the replica answer SIGTERM first.
_KEEPER = """
trap : TERM INT
(cd work && exec "$@") >> log 2>&1
code=$?
echo "$code" > exit.new && mv exit.new exit
"""

#: Found in the environment of every process of a set, and of one replica, however it was started.
SET_MARK = "AEROTRAIN_SET"
REPLICA_MARK = "AEROTRAIN_HEARTBEAT"

#: Seconds between asking the processes of a set to go and ending them. Airflow gives a
#: killed task 5 s, so this and the ending must fit into that.
GRACE = 2.0

#: Seconds that a killed process may take to go.
_GOING = 2.0


@dataclass(frozen=True)
class ReplicaFolder:
    """A replica's folder in that of its set::

    work/             its scratch and working directory, new each time it comes back
    log               its output, both streams, of all its lives
    pid               process id and birth of its keeper
    heartbeat         touched by it as long as it is well
    generation        how often it came back
    exit              its exit code, once it has ended
    termination-log   its last words, where it failed
    silent            why it was ended from outside, where it gave no sign of life
    """

    path: Path

    @property
    def name(self) -> ReplicaName:
        role, _, index = self.path.name.partition("-")
        return ReplicaName(Role(role), int(index or 0))

    @property
    def generation(self) -> int:
        """How often it came back; -1 before it ever was."""
        try:
            return int((self.path / "generation").read_text())
        except FileNotFoundError:
            return -1

    def spawn(
        self, command: Collection[str], environment: Mapping[str, str], locks: Collection[int]
    ) -> subprocess.Popen[bytes]:
        """Start it, or start it anew once its processes are gone; ``locks`` are what it inherits.

        Raises:
            OSError: the machine has no room for it.
        """
        self._make_anew()
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "aerotrain-keeper", *command],
            cwd=self.path,
            env={
                **environment,
                "TMPDIR": str(self.path / "work" / "tmp"),
                "PYTHONUNBUFFERED": "1",
                "AEROTRAIN_TERMINATION_LOG": str(self.path / "termination-log"),
                REPLICA_MARK: str(self.path / "heartbeat"),
                SET_MARK: str(self.path.parent),
            },
            # None of the task's own: whoever waits for their end would wait for the replica.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=locks,
        )
        birth = psutil.Process(keeper.pid).create_time()
        (self.path / "pid").write_text(f"{keeper.pid} {birth}")
        return keeper

    def _make_anew(self) -> None:
        """What a new life finds: an empty scratch, and nothing of the last one but its log."""
        generation = self.generation + 1
        shutil.rmtree(self.path / "work", ignore_errors=True)
        self.path.mkdir(exist_ok=True)  # not its parents: the set may have been ended meanwhile
        (self.path / "work" / "tmp").mkdir(parents=True)
        for left in ("pid", "exit", "termination-log", "silent"):
            (self.path / left).unlink(missing_ok=True)
        with (self.path / "log").open("ab+") as log:
            if log.tell():
                log.seek(-1, os.SEEK_END)
                if log.read() != b"\n":  # its last line was cut off
                    log.write(b"\n")
        (self.path / "heartbeat").touch()
        (self.path / "generation").write_text(f"{generation}")

    def observe(self) -> Observation:
        """What the folder and the process table say of it."""
        alive = self._keeper_is_alive()  # asked first: a keeper writes the code before it ends
        with suppress(FileNotFoundError):
            reason = (self.path / "silent").read_text()
            return Observation(state=State.LOST, reason=reason, loss=Loss.HANG)
        try:
            code = int((self.path / "exit").read_text())
        except FileNotFoundError:
            if alive:
                return Observation(state=State.RUNNING)
            reason = "is gone without an exit code"
            return Observation(state=State.LOST, reason=reason, loss=Loss.NODE)
        seen = observed_exit(code)
        words = self.path / "termination-log"
        if words.exists():
            reason = f"{seen.reason}: {words.read_text(errors='replace')}"
            return replace(seen, reason=reason)
        return seen

    def heartbeat(self) -> float | None:
        """When it gave a sign of life, by the clock of its disk; None where it is gone."""
        try:
            return (self.path / "heartbeat").stat().st_mtime
        except FileNotFoundError:
            return None

    def read_log(self, position: int) -> bytes:
        """Its whole lines from that byte on, and a cut one at the end of its life."""
        # Asked before reading: what a replica wrote before its end is then all read.
        ended = (self.path / "exit").exists()
        try:
            with (self.path / "log").open("rb") as file:
                file.seek(position)
                new = file.read()
        except FileNotFoundError:
            return b""  # its keeper has not come so far, or the set was stopped meanwhile
        return new if ended else new[: new.rfind(b"\n") + 1]

    def silence(self, why: str) -> None:
        """End one that gives no sign of life, and leave ``why`` for whoever observes it."""
        (self.path / "silent").write_text(why)
        kill_all([self])

    def session(self) -> int | None:
        """The id of its keeper's session; None where the id may be another's by now."""
        with suppress(FileNotFoundError):
            pid, _, birth = (self.path / "pid").read_text().partition(" ")
            if not birth:
                return None  # the disk was full as it was written; its mark still tells of it
            try:
                return int(pid) if psutil.Process(int(pid)).create_time() == float(birth) else None
            except psutil.NoSuchProcess:
                return int(pid)  # no process, and as a session still its own
        return None

    def _keeper_is_alive(self) -> bool:
        session = self.session()
        try:
            return session is not None and psutil.Process(session).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def replica_folders(folder: Path) -> list[ReplicaFolder]:
    """Those of a set that were ever started."""
    return [ReplicaFolder(path.parent) for path in sorted(folder.glob("*/generation"))]


def processes_of(
    replicas: Iterable[ReplicaFolder], mark: str, values: Collection[str]
) -> list[psutil.Process]:
    """The processes of keepers' sessions, and those that carry the mark with one of the values.

    Some start a session of their own and keep the mark, others lose the mark and stay.
    """
    sessions = {session for each in replicas if (session := each.session()) is not None}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                os.getsid(process.pid) in sessions or process.environ().get(mark) in values
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or another user's
    return found


def kill_all(replicas: Collection[ReplicaFolder]) -> None:
    """End these replicas at once, with all that they started."""
    marks = {str(each.path / "heartbeat") for each in replicas}
    killed = processes_of(replicas, REPLICA_MARK, marks)
    for process in killed:
        _quietly(process.kill)
    psutil.wait_procs(killed, timeout=_GOING)


def end_all(folder: Path, replicas: Collection[ReplicaFolder]) -> None:
    """Ask every process of the set at ``folder`` to go, and end those that stay."""
    processes = processes_of(replicas, SET_MARK, {str(folder)})
    for process in processes:
        _quietly(process.terminate)
    _, stubborn = psutil.wait_procs(processes, timeout=GRACE)
    # Looked for anew: what was started while the others were ending.
    killed = {*stubborn, *processes_of(replicas, SET_MARK, {str(folder)})}
    for process in killed:
        _quietly(process.kill)
    psutil.wait_procs(killed, timeout=_GOING)


def _quietly(end: Callable[[], None]) -> None:
    """End a process that may have ended by itself."""
    with suppress(psutil.NoSuchProcess):
        end()
