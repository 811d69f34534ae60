"""The folder of a set of local processes: all that is known of it, for whoever holds it next.

Several processes may work on a job's sets at the same time: a retry, a task that was given up
and lives, a second scheduler. They take turns, and a set belongs to one holder.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry, read
from aerotrain_airflow.launchers.keeper import ReplicaFolder, replica_folders

#: How far the log of each replica was read, in bytes, by the replica's name.
Positions = dict[str, int]


@dataclass(frozen=True)
class ProcessSet:
    """A set's folder::

    job.json          what was started
    addresses.json    where each replica listens, in all its lives
    holder            the task try whose set it is
    started           that all of it was started, and of what description; gone before it ends
    ledger.jsonl      what happened to it
    positions.json    how far its logs were told
    <replica>/        see ReplicaFolder
    """

    path: Path

    @classmethod
    def make(cls, path: Path, job: Job, addresses: dict[ReplicaName, str], holder: str) -> None:
        """A new set's folder, not started as yet."""
        path.mkdir(parents=True)
        (path / "job.json").write_text(job.to_json())
        by_name = {str(name): address for name, address in addresses.items()}
        (path / "addresses.json").write_text(json.dumps(by_name))
        cls(path).hold(holder)

    @property
    def job(self) -> Job:
        return Job.from_json((self.path / "job.json").read_text())

    @property
    def born(self) -> float:
        """When it was made, by ``time.time()``."""
        return (self.path / "job.json").stat().st_mtime

    @property
    def attempt(self) -> str:
        return self.path.name

    def replicas(self) -> list[ReplicaFolder]:
        return replica_folders(self.path)

    def replica(self, name: ReplicaName) -> ReplicaFolder:
        return ReplicaFolder(self.path / str(name))

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
        """Before its first process is ended: from now on none is started, and nobody adopts it."""
        (self.path / "started").unlink(missing_ok=True)

    def is_started(self) -> bool:
        return (self.path / "started").exists()

    def is_of(self, description: str) -> bool:
        """Whether it was started in whole, and is what this description says."""
        return self._read("started") == description

    def ledger(self) -> list[Entry]:
        """What happened to it until now."""
        return read((self._read("ledger.jsonl") or "").splitlines())

    def note(self, entry: Entry) -> None:
        """Add to its ledger."""
        with (self.path / "ledger.jsonl").open("a") as ledger:
            ledger.write(f"{entry.to_json()}\n")

    def positions(self) -> Positions:
        """How far its logs were told by whoever watched it before."""
        return dict(json.loads(self._read("positions.json") or "{}"))

    def keep_positions(self, positions: Positions) -> None:
        # Ended meanwhile, or the disk is full: then some lines may be told again, and no harm done.
        with suppress(OSError):
            self._write("positions.json", json.dumps(positions))

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, whoever is killed meanwhile."""
        new = self.path / f".{name}.{os.getpid()}"
        new.write_text(text)
        new.rename(self.path / name)


@contextmanager
def turn(job_folder: Path) -> Iterator[None]:
    """Alone with a job's sets, among all processes of this machine.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        job_folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(job_folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its last set went at this moment
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(job_folder, handle):
                yield
                return
        finally:
            os.close(handle)


def _is_still(folder: Path, handle: int) -> bool:
    """Whether the folder is the one that was opened, and not a later one of its name."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
