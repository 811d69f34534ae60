"""The folder of a group of local processes: all that is known of it, for its next follower.

Several processes may work on a job's groups at the same time: a retry, a task that was given up
and lives, a second scheduler. They take turns, and a group belongs to one holder.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event, read
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.supervisor.protocol import LOG

#: How far the log of each replica was read, in bytes, by the replica's name.
Positions = dict[str, int]

#: What the file ``layout`` says. A folder of another layout is of another version of aerotrain.
LAYOUT = "2"

#: Seconds between two looks whether it is this process's turn.
_TURN_EVERY = 0.05

_EVENTS = "ledger.jsonl"


@dataclass(frozen=True)
class JobFolder:
    """A group's folder::

    layout            which files there are, as a number
    job.json          what was started
    addresses.json    where each replica listens, after every restart
    holder            the task try whose group it is
    started           that all of it was started, and of what description; gone before it ends
    ledger.jsonl      its event log
    positions.json    how far its logs were passed on
    supervisor.lock, status.json, <replica>/
                      the supervisor's: see aerotrain.supervisor
    """

    path: Path

    @classmethod
    def make(cls, path: Path, job: Job, addresses: dict[ReplicaName, str], holder: str) -> None:
        """A new group's folder, not started as yet."""
        path.mkdir(parents=True)
        (path / "layout").write_text(LAYOUT)
        (path / "job.json").write_text(job.to_json())
        by_name = {str(name): address for name, address in addresses.items()}
        (path / "addresses.json").write_text(json.dumps(by_name))
        cls(path).hold(holder)

    @property
    def job(self) -> Job:
        return Job.from_json((self.path / "job.json").read_text())

    @property
    def created(self) -> float:
        """When it was made, by ``time.time()``."""
        return (self.path / "job.json").stat().st_mtime

    @property
    def attempt(self) -> str:
        return self.path.name

    def is_of_this_version(self) -> bool:
        return self._read("layout") == LAYOUT

    def refuse_processes_of_another_version(self) -> None:
        """Make sure that nothing runs in a folder that this version cannot read.

        Raises:
            TemporaryError: something does.
        """
        alive = [pid for path in self.path.glob("*/pid") for pid in _live(path)]
        if alive:
            raise TemporaryError(
                f"{self.path} holds replicas of another version of aerotrain, which run still; "
                f"end them (kill {' '.join(map(str, alive))}), and try again"
            )

    def addresses(self) -> dict[ReplicaName, str]:
        by_name = json.loads((self.path / "addresses.json").read_text())
        return {name: by_name[str(name)] for name in self.job.names()}

    def hold(self, holder: str) -> None:
        """Make it ``holder``'s."""
        self._write("holder", holder)

    def is_held_by(self, holder: str) -> bool:
        return self._read("holder") == holder

    def mark_started(self, description: str) -> None:
        """Say that it is whole, and what it is."""
        self._write("started", description)

    def mark_ending(self) -> None:
        """Before its first process is ended: from now on nothing is started, nor adopted."""
        (self.path / "started").unlink(missing_ok=True)

    def is_started(self) -> bool:
        return (self.path / "started").exists()

    def is_of(self, description: str) -> bool:
        """Whether it was started in whole, and is what this description says."""
        return self._read("started") == description

    def events(self) -> list[Event]:
        """Its event log."""
        return read((self._read(_EVENTS) or "").splitlines())

    def append(self, events: Sequence[Event], known: int) -> bool:
        """Add to its event log; False where it does not have the ``known`` events alone.

        Raises:
            OSError: the disk is full, or the folder is gone; then nothing was added.
        """
        path = self.path / _EVENTS
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} is gone")
        with path.open("ab+") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.seek(0)
            before = log.read()
            if len(read(before.decode().splitlines())) != known:
                return False
            text = "".join(f"{each.to_json()}\n" for each in events).encode()
            try:
                log.write(text)
                log.flush()
            except OSError:
                with suppress(OSError):
                    log.truncate(len(before))
                raise
        return True

    def positions(self) -> Positions:
        """How far its logs were passed on by its followers until now."""
        return dict(json.loads(self._read("positions.json") or "{}"))

    def keep_positions(self, positions: Positions) -> None:
        # Ended meanwhile, or the disk is full: then some lines may come again, and no harm done.
        with suppress(OSError):
            self._write("positions.json", json.dumps(positions))

    def read_log(self, name: ReplicaName, position: int, *, ended: bool) -> bytes:
        """The replica's whole lines from that byte on, and a cut one if it has ``ended``."""
        try:
            with (self.path / str(name) / LOG).open("rb") as file:
                file.seek(position)
                new = file.read()
        except FileNotFoundError:
            return b""  # not started as yet, or deleted meanwhile
        return new if ended else new[: new.rfind(b"\n") + 1]

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, also where this process is killed meanwhile."""
        new = self.path / f".{name}.{os.getpid()}"
        new.write_text(text)
        new.rename(self.path / name)


@asynccontextmanager
async def turn(job_folder: Path) -> AsyncIterator[None]:
    """Alone with a job's groups, among all processes of this machine.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        job_folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(job_folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its last group went at this moment
        try:
            # Not waited for in the kernel: a task that is ended gives up its wait.
            while not _locked(handle):
                await asyncio.sleep(_TURN_EVERY)
            if _is_still(job_folder, handle):
                yield
                return
        finally:
            os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(folder: Path, handle: int) -> bool:
    """Whether the folder is the one that was opened, and not a later one of its name."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _live(path: Path) -> Iterator[int]:
    """The process that an earlier version noted there with its birth, if it is alive."""
    pid, _, birth = path.read_text().partition(" ")
    with suppress(ValueError, psutil.NoSuchProcess):
        if psutil.Process(int(pid)).create_time() == float(birth):
            yield int(pid)


@contextmanager
def what_is_short(where: Path) -> Iterator[None]:
    """Have the system's refusals said in a sentence: a disk that is full, above all.

    Raises:
        TemporaryError: the system refused something.
    """
    try:
        yield
    except OSError as error:
        raise TemporaryError(
            f"the replicas could not be looked after in {where}: {error}; free what is short, or "
            "set [aerotrain] scratch to another disk"
        ) from error
