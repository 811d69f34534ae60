"""A group of local processes, as a follower sees it."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import getLogger

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.launch.backend import Emit, GroupGoneError, LogLine
from aerotrain.launch.decision import Ended, GroupObservation, Observations, Restart
from aerotrain.launch.process.folder import JobFolder, exclusive, explained_errors
from aerotrain.launch.process.supervisor_client import SupervisorClient
from aerotrain.supervisor.fork_rules import may_fork
from aerotrain.supervisor.loopback import OPEN_SERVERS
from aerotrain.supervisor.ports import Port, hold, release
from aerotrain.supervisor.processes import umask
from aerotrain.supervisor.protocol import Start, observation_of

#: Seconds between two observations: short compared to a replica's start, long compared to the
#: observation itself (about 1 ms per replica).
LOOK_EVERY = 0.2

_LOG = getLogger(__name__)


class ProcessGroup:
    """The group in ``folder``, for as long as ``holder`` holds it.

    ``command`` is the command of a replica, ``environment`` its base environment.
    """

    def __init__(
        self,
        folder: JobFolder,
        supervisor: SupervisorClient,
        command: Sequence[str],
        environment: Mapping[str, str],
        holder: str,
        emit: Emit,
    ) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._command = command
        self._environment = environment
        self._holder = holder
        self._emit = emit
        self.job: Job = folder.job
        self.created: float = folder.created
        self.events: list[Event] = folder.events()
        self._positions = folder.positions()

    async def observe(self, seconds: float, *, look_again: bool = False) -> GroupObservation:
        """Observe once, after ``seconds`` or ``LOOK_EVERY``, whichever is shorter."""
        await asyncio.sleep(min(seconds, LOOK_EVERY))
        began = time.time()
        seen = self.look()  # before reading the logs, so that those of ended replicas are complete
        self._emit_new_lines(seen)
        if not self._folder.is_started():
            raise GroupGoneError(f"{self.job.name} was ended from outside")
        if not self._folder.is_held_by(self._holder):
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
        """End those replicas that still run, and start them again at the same addresses.

        A machine is one node with one memory, so ``avoid`` and ``memory`` are ignored.
        """
        async with exclusive(self._folder.path.parent):
            if not (self._folder.is_started() and self._folder.is_held_by(self._holder)):
                return  # the next observation reports the reason
            with explained_errors(self._folder.path), self._reserved_again() as ports:
                await self.start(restart.counts, ports)

    async def start(
        self,
        counts: Mapping[ReplicaName, int],
        ports: Sequence[Port],
        *,
        wait_for_imports: bool = False,
    ) -> None:
        """Start replicas at these restart counts, by the existing supervisor or a new one.

        ``ports`` are those of all addresses, unless a running supervisor holds them.

        Raises:
            OSError: the machine lacks resources, or the folder is gone.
        """
        starts = [self._start_of(name, count) for name, count in sorted(counts.items())]
        warm = any(each.warm for each in starts)
        why_open = await self._supervisor.start_supervisor(warm=warm, wait=wait_for_imports)
        if why_open and len(list(self.job.names())) > 1:
            _LOG.warning(OPEN_SERVERS, why_open)
        self._supervisor.start(starts, [port.lock for port in ports])

    def _start_of(self, name: ReplicaName, count: int) -> Start:
        addresses = self._folder.addresses()
        own = replica_environment(self.job, name, addresses, self._folder.attempt, count)
        return Start(
            name=str(name),
            restarts=count,
            command=self._command,
            environment={**self._environment, **own},
            umask=umask(),
            warm=may_fork(self.job, name, self._environment),
        )

    @contextmanager
    def _reserved_again(self) -> Iterator[list[Port]]:
        """The ports of all addresses, reserved unless a running supervisor holds them.

        Raises:
            TemporaryError: a port was lost.
        """
        ports: list[Port] = []
        try:
            if self._supervisor.pid() is None:
                for name, address in self._folder.addresses().items():
                    port = hold(int(address.rsplit(":", 1)[1]))
                    if port is None:
                        raise TemporaryError(
                            f"the port of {name}, {address}, was taken by another launcher while "
                            "the replica group was not followed; try again"
                        )
                    ports.append(port)
            yield ports
        finally:
            release(ports)

    async def finish(self, ended: Ended) -> None:
        """Does nothing: the last observation has emitted every line."""
