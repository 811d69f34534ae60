"""The folder of a group of local processes: all of its state, for its next follower.

Several processes may work on a job's groups at the same time: a retry, a task that Airflow
abandoned but that is alive, a second scheduler. A lock lets one of them act at a time, and each
group has one holder.
"""

import asyncio
import errno
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event, read
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.launch.backend import GroupGoneError, RetryLaterError
from aerotrain.supervisor.protocol import LOG

#: The bytes of each replica's log that were emitted, by the replica's name.
Positions = dict[str, int]

#: Seconds between two attempts to get the lock.
_LOCK_EVERY = 0.05

_EVENTS = "events.jsonl"


@dataclass(frozen=True)
class JobFolder:
    """A group's folder::

    job.json          the job's description
    addresses.json    the address of each replica, also after restarts
    holder            the task try that holds the group
    started           its description, once all was started; removed before it is ended
    events.jsonl      its event log
    positions.json    how much of its logs was emitted
    supervisor.lock, status.json, <replica>/
                      the supervisor's: see aerotrain.supervisor
    """

    path: Path

    @classmethod
    def make(cls, path: Path, job: Job, holder: str) -> None:
        """Make the folder of a new group that is not started yet."""
        path.mkdir(parents=True)
        (path / "job.json").write_text(job.to_json())
        cls(path).hold(holder)

    @property
    def job(self) -> Job:
        return Job.from_json((self.path / "job.json").read_text())

    @property
    def created(self) -> float:
        """The time of its creation, by ``time.time()``."""
        return (self.path / "job.json").stat().st_mtime

    @property
    def attempt(self) -> str:
        return self.path.name

    def keep_addresses(self, addresses: Mapping[ReplicaName, str]) -> None:
        by_name = {str(name): address for name, address in addresses.items()}
        self._write("addresses.json", json.dumps(by_name))

    def addresses(self) -> dict[ReplicaName, str]:
        by_name = json.loads((self.path / "addresses.json").read_text())
        return {name: by_name[str(name)] for name in self.job.names()}

    def hold(self, holder: str) -> None:
        """Make ``holder`` the holder of the group."""
        self._write("holder", holder)

    def is_held_by(self, holder: str) -> bool:
        return self._read("holder") == holder

    def mark_started(self, description: str) -> None:
        """Record that the group was started completely, and from what description."""
        self._write("started", description)

    def mark_ending(self) -> None:
        """Record, before the first process is ended, that nothing may be started or adopted."""
        (self.path / "started").unlink(missing_ok=True)

    def is_started(self) -> bool:
        return (self.path / "started").exists()

    def matches(self, description: str) -> bool:
        """Whether it was started completely, and from this description."""
        return self._read("started") == description

    def events(self) -> list[Event]:
        """The event log."""
        return read((self._read(_EVENTS) or "").splitlines())

    def append(self, events: Sequence[Event], known: int) -> bool:
        """Append to the event log; False if it has other than the ``known`` number of events.

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
        """How much of its logs was emitted so far, by any follower."""
        return dict(json.loads(self._read("positions.json") or "{}"))

    def keep_positions(self, positions: Positions) -> None:
        # If the group has ended or the disk is full, some lines may be emitted twice.
        with suppress(OSError):
            self._write("positions.json", json.dumps(positions))

    def read_log(self, name: ReplicaName, position: int, *, ended: bool) -> bytes:
        """The replica's complete lines from ``position`` on; also a partial one if ``ended``."""
        try:
            with (self.path / str(name) / LOG).open("rb") as file:
                file.seek(position)
                new = file.read()
        except FileNotFoundError:
            return b""  # not started yet, or deleted meanwhile
        return new if ended else new[: new.rfind(b"\n") + 1]

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str) -> None:
        """Write atomically, even if this process is killed meanwhile."""
        new = self.path / f".{name}.{os.getpid()}"
        new.write_text(text)
        new.rename(self.path / name)


@asynccontextmanager
async def exclusive(job_folder: Path) -> AsyncIterator[None]:
    """Exclusive access to a job's groups, among all processes of this machine.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        job_folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(job_folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its last group was removed at this moment
        try:
            # Polled, not blocked in the kernel, so that a cancelled task stops waiting.
            while not _locked(handle):
                await asyncio.sleep(_LOCK_EVERY)
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


@contextmanager
def explained_errors(folder: Path) -> Iterator[None]:
    """Explain errors of the operating system in the work on the group in ``folder``.

    Raises:
        GroupGoneError: the folder was removed.
        RetryLaterError: the disk is full.
        TemporaryError: another error.
    """
    try:
        yield
    except OSError as error:
        if not folder.exists():
            raise GroupGoneError(f"{folder} is gone: it was ended from outside") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RetryLaterError(str(error)) from error
        raise TemporaryError(
            f"the replicas in {folder} could not be supervised: {error}; free what is short, or "
            "set [aerotrain] scratch to another disk"
        ) from error
