"""The backend of local processes."""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.errors import FinalError, SpecError, TemporaryError
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.layout import path_segment
from aerotrain.contract.replicas import ReplicaName
from aerotrain.launch.backend import Emit, ExistingGroup, Report
from aerotrain.launch.process.folder import JobFolder, exclusive, explained_errors
from aerotrain.launch.process.group import ProcessGroup
from aerotrain.launch.process.supervisor_client import SupervisorClient
from aerotrain.launch.process.warm_start import ForkServer
from aerotrain.supervisor.ports import reserved_addresses
from aerotrain.supervisor.processes import send

LEAST_FREE_BYTES = 1 << 30  # for a training's shards and a few checkpoints

#: The most processes of a job for each core of the machine. With more of them, a step of the last
#: one takes longer than the timeouts.
MOST_PER_CORE = 16


@dataclass(frozen=True)
class ProcessPlan:
    """What would be started: one command for every replica, and the folder of the group."""

    job: Job
    attempt: str
    folder: Path
    command: tuple[str, ...]

    @property
    def handle(self) -> str:
        """The folder of the job and the attempt."""
        return str(self.folder)

    @property
    def description(self) -> str:
        """The same for every launch of the same job; different if anything in it differs."""
        described = json.dumps([self.job.to_json(), self.command])
        return hashlib.sha256(described.encode()).hexdigest()

    def __str__(self) -> str:
        lines = [f"{self.folder}: attempt {self.attempt}"]
        lines += [f"  {name}: {' '.join(self.command)}" for name in self.job.names()]
        return "\n".join(lines)


class ProcessBackend:
    """Runs replicas as processes of this machine that communicate over loopback.

    ``root`` is the folder of all groups; ``environment`` is the base environment of every replica,
    including credentials for the store; ``holder`` is the task try on whose behalf this runs: it
    may end only the groups that it started or adopted. ``python`` is the interpreter that has
    aerotrain's ``tensorflow`` extra. With ``warm`` replicas are forked where possible.
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        holder: str,
        python: str = sys.executable,
        *,
        warm: bool = False,
    ) -> None:
        self._root = root
        self._environment = dict(environment)
        self._holder = holder
        self._python = python
        self._command = (python, "-m", "aerotrain.replica")
        self._fork_server = ForkServer(root, python, self._environment) if warm else None

    def plan(self, job: Job, attempt: str) -> ProcessPlan:
        """One command per replica; ports are chosen at the start.

        Raises:
            SpecError: the job has too many replicas for this machine.
        """
        count, cores = sum(each.count for each in job.replicas), os.cpu_count() or 1
        if count > MOST_PER_CORE * cores:
            raise SpecError(
                f"{job.task} has {count} replicas, and this machine has {cores} cores, where at "
                f"most {MOST_PER_CORE * cores} local processes can work together; ask for fewer "
                "workers, or run them as pods with the launcher 'kubernetes'"
            )
        return ProcessPlan(
            job=job,
            attempt=attempt,
            folder=self._root / job.name / path_segment(attempt),
            command=self._command,
        )

    async def check(self, plans: Sequence[ProcessPlan]) -> None:
        """Check that the disk has space for the replicas' scratch folders.

        Raises:
            FinalError: the folder cannot be made.
            TemporaryError: the disk is too full.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FinalError(
                f"the folder of local replicas cannot be made: {error}; set [aerotrain] scratch"
            ) from error
        free = shutil.disk_usage(self._root).free
        if free < LEAST_FREE_BYTES:
            raise TemporaryError(
                f"the disk of {self._root} has {free >> 20} MiB free and a run needs "
                f"{LEAST_FREE_BYTES >> 20} MiB; free some of it, or set [aerotrain] scratch"
            )

    @asynccontextmanager
    async def claim(self, plan: ProcessPlan) -> AsyncIterator["ProcessClaim"]:
        """Exclusive access to the job's groups.

        Raises:
            TemporaryError: no ports are free, or the machine lacks resources.
        """
        try:
            async with exclusive(plan.folder.parent):
                yield ProcessClaim(self, plan, self._holder)
        except OSError as error:
            raise TemporaryError(
                f"the replicas of {plan.job.name} could not be started in {plan.handle}: {error}; "
                "free what is short, or set [aerotrain] scratch to another disk"
            ) from error

    @asynccontextmanager
    async def open(self, handle: str, emit: Emit, say: Report) -> AsyncIterator[ProcessGroup]:
        """Follow the group in the folder ``handle``."""
        with explained_errors(Path(handle)):
            yield self.group(Path(handle), emit)

    def group(self, path: Path, emit: Emit = lambda line: None) -> ProcessGroup:
        return ProcessGroup(
            JobFolder(path),
            self._supervisor(path),
            self._command,
            self._environment,
            self._holder,
            emit,
        )

    def _supervisor(self, path: Path) -> SupervisorClient:
        return SupervisorClient(path, self._python, self._environment, self._fork_server)

    async def events(self, handle: str) -> list[Event]:
        return JobFolder(Path(handle)).events()

    async def delete(self, handle: str) -> None:
        """End the group in the folder ``handle``, if this task try still holds it."""
        path = Path(handle)
        if not path.exists():
            return
        async with exclusive(path.parent):
            if JobFolder(path).is_held_by(self._holder):
                self.end(path)
            with suppress(OSError):
                path.parent.rmdir()  # fails if a later attempt has its group there

    def signal(self, path: Path, names: Collection[ReplicaName], number: signal.Signals) -> None:
        """Send a signal to these replicas of the group in the folder ``path``, if they run."""
        records = self._supervisor(path).records()
        running = [records[str(name)] for name in names if str(name) in records]
        send([int(each["pid"]) for each in running if each["running"]], number)

    def end(self, path: Path) -> None:
        """End every process of the group, then remove its folder."""
        folder = JobFolder(path)
        folder.mark_ending()
        self._supervisor(path).end()


class ProcessClaim:
    """Exclusive access to the groups of the plan's job."""

    def __init__(self, backend: ProcessBackend, plan: ProcessPlan, holder: str) -> None:
        self._backend = backend
        self._plan = plan
        self._holder = holder

    async def find(self) -> ExistingGroup | None:
        """The first group in the job's folder."""
        path = next(iter(sorted(self._plan.folder.parent.glob("*/"))), None)
        if path is None:
            return None
        folder = JobFolder(path)
        if not folder.is_of_this_version() or not folder.matches(self._plan.description):
            return ExistingGroup(handle=str(path), matches=False, created=0.0, events=(), seen={})
        group = self._backend.group(path)
        return ExistingGroup(
            handle=str(path),
            matches=True,
            created=group.created,
            events=group.events,
            seen=group.look(),
        )

    async def create(self) -> str:
        """Start all replicas, or none."""
        plan = self._plan
        try:
            return await self._create()
        except BaseException:  # also a timeout or a signal: no replica may be left running
            if plan.folder.exists():
                self._backend.end(plan.folder)
            with suppress(OSError):
                plan.folder.parent.rmdir()
            raise

    async def _create(self) -> str:
        plan = self._plan
        with reserved_addresses(plan.job, plan.handle) as (addresses, ports):
            JobFolder.make(plan.folder, plan.job, addresses, self._holder)
            folder, group = JobFolder(plan.folder), self._backend.group(plan.folder)
            await group.start(dict.fromkeys(addresses, 0), ports, wait_for_imports=True)
        folder.append([Event(event=EventType.START, at=time.time())], known=0)
        folder.mark_started(plan.description)
        return plan.handle

    async def adopt(self, found: ExistingGroup) -> bool:
        """Make this task try the holder of the group."""
        folder = JobFolder(Path(found.handle))
        folder.hold(self._holder)
        adopted = Event(event=EventType.ADOPT, at=time.time(), because=self._holder)
        while not folder.append([adopted], known=len(folder.events())):
            pass  # its previous follower has just added an event
        return True

    async def delete(self, found: ExistingGroup) -> None:
        self._backend.end(Path(found.handle))
