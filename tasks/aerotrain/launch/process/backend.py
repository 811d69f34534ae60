"""The backend of local processes."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import FinalError, SpecError, TemporaryError
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.layout import path_segment
from aerotrain.contract.replicas import ReplicaName
from aerotrain.launch.backend import Emit, ExistingGroup, GroupGoneError, LogLine, Report
from aerotrain.launch.decision import Ended, GroupObservation, Restart
from aerotrain.launch.process.folder import JobFolder, exclusive, explained_errors
from aerotrain.launch.process.gpus import divided, gpus_of
from aerotrain.launch.process.supervisor_client import ForkServer, SupervisorClient
from aerotrain.launch.restart_policy import Observations
from aerotrain.launch.size import Size
from aerotrain.supervisor.fork_rules import MODULES, may_fork
from aerotrain.supervisor.loopback import OPEN_SERVERS
from aerotrain.supervisor.ports import addresses_of
from aerotrain.supervisor.processes import send, umask
from aerotrain.supervisor.protocol import Start, observation_of

#: Seconds between two observations: short compared to a replica's start, long compared to the
#: observation itself (about 1 ms per replica).
LOOK_EVERY = 0.2

#: Seconds that replicas have to save and end, as for ``aerotrain.replica.GRACE``.
ENDED_WITHIN = 10.0

_LOG = getLogger(__name__)


class ProcessGroup:
    """The group in the folder ``path``, for as long as the backend's task try holds it."""

    def __init__(self, backend: "ProcessBackend", path: Path, emit: Emit) -> None:
        self._backend = backend
        self._folder = folder = JobFolder(path)
        self._supervisor = backend.supervisor(path)
        self._emit = emit
        self.job: Job = folder.job
        self.created: float = folder.created
        self.events: list[Event] = folder.events()
        self._positions = folder.positions()

    async def observe(self, seconds: float, *, look_again: bool = False) -> GroupObservation:
        """Observe once, after ``seconds`` or ``LOOK_EVERY``, whichever is shorter."""
        await asyncio.sleep(min(seconds, LOOK_EVERY))
        began = time.time()
        seen = self._emitted()
        if not self._folder.is_started():
            raise GroupGoneError(f"{self.job.name} was ended from outside")
        if not self._folder.is_held_by(self._backend.holder):
            raise GroupGoneError(f"{self.job.name} was taken over by another try of its task")
        return GroupObservation(seen, began)

    def look(self) -> Observations:
        """The current observation of every replica."""
        records = self._supervisor.records()
        supervised = self._supervisor.pid() is not None
        return {
            name: observation_of(records.get(str(name)), supervised=supervised)
            for name in self.job.names()
        }

    def _emit_new_lines(self, seen: Observations) -> None:
        for name, each in seen.items():
            position = self._positions.get(str(name), 0)
            new = self._folder.read_log(name, position, ended=each.state.ended)
            for line in new.decode(errors="replace").splitlines():
                self._emit(LogLine(name, line))
            self._positions[str(name)] = position + len(new)
        self._folder.keep_positions(self._positions)

    async def append(self, events: Sequence[Event]) -> bool:
        """Append to the file of the event log, unless another follower has."""
        with explained_errors(self._folder.path):
            added = self._folder.append(events, known=len(self.events))
            self.events = self._folder.events()
        return added

    async def restart(self, restart: Restart) -> None:
        """End those replicas that still run, and start others again at the same addresses.

        A machine is one node with one memory, so ``avoid`` and ``memory`` are ignored.
        """
        async with exclusive(self._folder.path.parent):
            if not (self._folder.is_started() and self._folder.is_held_by(self._backend.holder)):
                return  # the next observation reports the reason
            with explained_errors(self._folder.path):
                await self._end([*restart.ends, *(restart.counts if restart.gentle else ())])
                if restart.counts:
                    await self._start_supervisor(restart.counts)
                    self._start(restart.counts)

    async def _end(self, names: Collection[ReplicaName]) -> None:
        """Preempt these replicas, if they run; kill those that do not end in time."""
        until = time.monotonic() + ENDED_WITHIN
        self._backend.signal(self._folder.path, names, signal.SIGTERM)
        while names and not all(self._emitted()[name].state.ended for name in names):
            if time.monotonic() > until:
                self._backend.signal(self._folder.path, names, signal.SIGKILL)
            await asyncio.sleep(LOOK_EVERY)

    def _emitted(self) -> Observations:
        """The current observation of every replica, after their new lines were emitted."""
        seen = self.look()  # before reading the logs, so that those of ended replicas are complete
        self._emit_new_lines(seen)
        return seen

    async def start_all(self) -> None:
        """Start all replicas, at ports of loopback that the supervisor reserves.

        Raises:
            OSError: the machine lacks resources, or the folder is gone.
        """
        names = list(self.job.names())
        await self._start_supervisor(names)
        self._folder.keep_addresses(addresses_of(names, self._supervisor.reserve(len(names))))
        self._start(dict.fromkeys(names, 0))

    async def _start_supervisor(self, names: Iterable[ReplicaName]) -> None:
        """Start a supervisor of these replicas, unless one is running."""
        warm = any(may_fork(self.job, name, self._backend.environment) for name in names)
        starts = self.job.module in MODULES
        why_open = await self._supervisor.start_supervisor(warm=warm, starts=starts)
        if why_open and len(list(self.job.names())) > 1:
            _LOG.warning(OPEN_SERVERS, why_open)

    def _start(self, counts: Mapping[ReplicaName, int]) -> None:
        """Start replicas at these restart counts."""
        gpus = self._backend.gpus(self.job)
        starts = [
            self._start_of(name, count, gpus.get(name, {}))
            for name, count in sorted(counts.items())
        ]
        ports = [int(each.rsplit(":", 1)[1]) for each in self._folder.addresses().values()]
        self._supervisor.start(starts, ports)

    def _start_of(self, name: ReplicaName, count: int, gpus: Mapping[str, str]) -> Start:
        addresses, without = self._folder.addresses(), Size.of(self.job, self.events).absent()
        attempt = self._folder.attempt
        own = replica_environment(self.job, name, addresses, attempt, count, without)
        return Start(
            name=str(name),
            restarts=count,
            command=self._backend.command,
            environment={**self._backend.environment, **gpus, **own},
            umask=umask(),
            warm=may_fork(self.job, name, self._backend.environment),
        )

    async def finish(self, ended: Ended) -> None:
        """Does nothing: the last observation has emitted every line."""


LEAST_FREE_BYTES = 1 << 30  # for a training's shards and a few checkpoints

#: The most processes of a job for each core of the machine. With more of them, a step of the last
#: one takes longer than the timeouts.
MOST_PER_CORE = 16


#: The layout of a group's folder: a group with another one, of another version, is not adopted.
LAYOUT = 5


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
        described = json.dumps([LAYOUT, self.job.to_json(), self.command])
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
        self.environment = dict(environment)
        self.holder = holder
        self._python = python
        self.command = (python, "-m", "aerotrain.replica")
        self._fork_server = ForkServer(root, python, self.environment) if warm else None

    def plan(self, job: Job, attempt: str) -> ProcessPlan:
        """One command per replica; ports are chosen at the start.

        Raises:
            SpecError: the job has too many replicas for the cores or the GPUs of this machine.
        """
        count, cores = sum(each.count for each in job.replicas), os.cpu_count() or 1
        if count > MOST_PER_CORE * cores:
            raise SpecError(
                f"{job.task} has {count} replicas, and this machine has {cores} cores, where at "
                f"most {MOST_PER_CORE * cores} local processes can work together; ask for fewer "
                "workers, or run them as pods with the launcher 'kubernetes'"
            )
        self.gpus(job)
        return ProcessPlan(
            job=job,
            attempt=attempt,
            folder=self._root / job.name / path_segment(attempt),
            command=self.command,
        )

    def gpus(self, job: Job) -> dict[ReplicaName, dict[str, str]]:
        """The variable of each replica of the job that gets GPUs of this machine."""
        return divided(job, gpus_of(self.environment))

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
                yield ProcessClaim(self, plan)
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
        return ProcessGroup(self, path, emit)

    def supervisor(self, path: Path) -> SupervisorClient:
        """The client of the supervisor of the group in the folder ``path``."""
        return SupervisorClient(path, self._python, self.environment, self._fork_server)

    async def events(self, handle: str) -> list[Event]:
        return JobFolder(Path(handle)).events()

    async def delete(self, handle: str) -> None:
        """End the group in the folder ``handle``, if this task try still holds it."""
        path = Path(handle)
        if not path.exists():
            return
        async with exclusive(path.parent):
            if JobFolder(path).is_held_by(self.holder):
                self.end(path)
            with suppress(OSError):
                path.parent.rmdir()  # fails if a later attempt has its group there

    def signal(self, path: Path, names: Collection[ReplicaName], number: signal.Signals) -> None:
        """Send a signal to these replicas of the group in the folder ``path``, if they run."""
        records = self.supervisor(path).records()
        running = [records[str(name)] for name in names if str(name) in records]
        send([int(each["pid"]) for each in running if each["running"]], number)

    def end(self, path: Path) -> None:
        """End every process of the group, then remove its folder."""
        folder = JobFolder(path)
        folder.mark_ending()
        self.supervisor(path).end()


class ProcessClaim:
    """Exclusive access to the groups of the plan's job."""

    def __init__(self, backend: ProcessBackend, plan: ProcessPlan) -> None:
        self._backend = backend
        self._plan = plan

    async def find(self) -> ExistingGroup | None:
        """The first group in the job's folder."""
        path = next(iter(sorted(self._plan.folder.parent.glob("*/"))), None)
        if path is None:
            return None
        folder = JobFolder(path)
        if not folder.matches(self._plan.description):
            return ExistingGroup(handle=str(path), matches=False)
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
        plan, folder = self._plan, JobFolder(self._plan.folder)
        try:
            JobFolder.make(plan.folder, plan.job, self._backend.holder)
            await self._backend.group(plan.folder).start_all()
            folder.append([Event(event=EventType.START, at=time.time())], known=0)
            folder.mark_started(plan.description)
            return plan.handle
        except BaseException:  # also a timeout or a signal: no replica may be left running
            if plan.folder.exists():
                self._backend.end(plan.folder)
            with suppress(OSError):
                plan.folder.parent.rmdir()
            raise

    async def adopt(self, found: ExistingGroup) -> bool:
        """Make this task try the holder of the group."""
        folder = JobFolder(Path(found.handle))
        folder.hold(self._backend.holder)
        adopted = Event(event=EventType.ADOPT, at=time.time(), because=self._backend.holder)
        while not folder.append([adopted], known=len(folder.events())):
            pass  # its previous follower has just added an event
        return True

    async def delete(self, found: ExistingGroup) -> None:
        self._backend.end(Path(found.handle))
