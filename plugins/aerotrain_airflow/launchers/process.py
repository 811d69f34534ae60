"""The launcher of local processes: every replica in a process group of its own.

Everything about a set lies in one folder, its address, so that any process of this user can
observe it, go on with it and stop it: ``<root>/<job>/<attempt>/``, see ``process_set``.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path

from aerotrain.contract.cluster import replica_environment
from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry, What
from aerotrain.contract.names import path_segment
from aerotrain.contract.status import Observation, State
from aerotrain_airflow.launchers.base import Emit, LogLine
from aerotrain_airflow.launchers.keeper import end_all, kill_all
from aerotrain_airflow.launchers.ports import Port, hold, release, reserve
from aerotrain_airflow.launchers.process_plan import ProcessPlan
from aerotrain_airflow.launchers.process_set import Positions, ProcessSet, turn
from aerotrain_airflow.launchers.process_watch import ProcessWatch, new_lines, what_is_short
from aerotrain_airflow.recovery.ended import Ended
from aerotrain_airflow.recovery.recovery import Recovery

#: Seconds between two looks at the replicas: short beside a step's import of TensorFlow,
#: long beside the look itself (about 1 ms a replica).
LOOK_EVERY = 0.2

LEAST_FREE_BYTES = 1 << 30  # for a training's shards and a few checkpoints

_LOG = getLogger(__name__)


class ProcessLauncher:
    """Runs replicas as processes of this machine, talking over loopback.

    ``root`` is the folder of all sets; ``environment`` is what every replica starts with,
    credentials for the store included; ``holder`` is the task try on whose behalf this is: it
    may end the sets that it started or took over, and no others. ``python`` is the interpreter
    that has aerotrain's ``tensorflow`` extra.
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        holder: str,
        python: str = sys.executable,
    ) -> None:
        self._root = root
        self._environment = dict(environment)
        self._holder = holder
        self._command = (python, "-m", "aerotrain.replica")
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._ports: dict[str, dict[ReplicaName, Port]] = {}
        self._has_turn = False

    def plan(self, job: Job, attempt: str) -> ProcessPlan:
        """One command a replica; the ports are found when they start."""
        return ProcessPlan(
            job=job,
            attempt=attempt,
            folder=self._root / job.name / path_segment(attempt),
            command=self._command,
        )

    def check(self, plans: Sequence[ProcessPlan]) -> None:
        """Refuse a disk that cannot take the replicas' scratch.

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

    def start(self, plan: ProcessPlan) -> str:
        """Start all replicas at once, or none; or take over what an earlier try left well.

        Raises:
            TemporaryError: no ports are free, or the machine has no room for them.
        """
        try:
            with self._turn(plan.folder.parent):
                return self._start_or_adopt(plan)
        except OSError as error:
            raise TemporaryError(
                f"the replicas of {plan.job.name} could not be started in {plan.address}: {error}; "
                "free what is short, or set [aerotrain] scratch to another disk"
            ) from error

    def _start_or_adopt(self, plan: ProcessPlan) -> str:
        for path in plan.folder.parent.glob("*/"):
            if self._adopts(ProcessSet(path), plan):
                return str(path)
            self._end(path)
        try:
            return self._start_all(plan)
        except BaseException:  # a timeout or a signal, too, must leave no replica behind
            self._end(plan.folder)
            with suppress(OSError):
                plan.folder.parent.rmdir()
            raise

    @contextmanager
    def _turn(self, folder: Path) -> Iterator[None]:
        """Alone with the job's sets; also for a signal that comes while this has its turn."""
        if self._has_turn:
            yield
            return
        with turn(folder):
            self._has_turn = True
            try:
                yield
            finally:
                self._has_turn = False

    def _adopts(self, found: ProcessSet, plan: ProcessPlan) -> bool:
        """Take the set over, if it is what was planned and can still come to a good end."""
        if not found.is_of(plan.description):
            return False
        seen = self.observe(str(found.path))
        decision = Recovery(plan.job, found.ledger(), found.note).decide(seen, time.time())
        ended_badly = isinstance(decision, Ended) and decision.state is not State.SUCCEEDED
        if ended_badly or all(each.state is State.LOST for each in seen.values()):
            return False
        found.hold(self._holder)
        found.note(Entry(event=What.ADOPT, at=time.time(), because=self._holder))
        _LOG.info("took over %s, which an earlier try has started", found.path)
        return True

    def _start_all(self, plan: ProcessPlan) -> str:
        names = list(plan.job.names())
        ports = dict(zip(names, reserve(len(names), plan.address), strict=True))
        self._ports[plan.address] = ports
        addresses = {name: f"127.0.0.1:{port.number}" for name, port in ports.items()}
        ProcessSet.make(plan.folder, plan.job, addresses, self._holder)
        made = ProcessSet(plan.folder)
        for name in names:
            self._spawn(made, name)
        made.note(Entry(event=What.START, at=time.time()))
        made.mark_started(plan.description)
        return plan.address

    def _spawn(self, of: ProcessSet, name: ReplicaName) -> None:
        """Start one replica, or start it anew, at the address that its peers know."""
        folder, addresses = of.replica(name), of.addresses()
        held = self._ports.setdefault(str(of.path), {})
        if name not in held:
            port = hold(int(addresses[name].rsplit(":", 1)[1]), str(of.path))
            if port is None:
                raise TemporaryError(
                    f"the port of {name}, {addresses[name]}, was taken by another launcher while "
                    "nobody watched the set; try again"
                )
            held[name] = port
        told = replica_environment(of.job, name, addresses, of.attempt, folder.generation + 1)
        # It inherits the reservation of its port, for as long as it lives.
        keeper = folder.spawn(self._command, {**self._environment, **told}, held[name].locks)
        self._keepers.append(keeper)

    def trigger(self, address: str, until: float | None) -> None:
        """None: a triggerer may run on another machine, and cannot see local processes."""

    @what_is_short()
    def watch(
        self, address: str, emit: Emit, *, until: float | None, at_most: float | None = None
    ) -> Ended | None:
        """Look at the set's folder every ``LOOK_EVERY`` seconds until its job has ended.

        Replicas that are lost meanwhile come back, as ``recovery`` decides.
        """
        enough = time.monotonic() + (float("inf") if at_most is None else at_most)
        watch = ProcessWatch(self, address, self._holder, emit, until)
        while (ended := watch.look()) is None:
            if time.monotonic() > enough:
                return None
            time.sleep(LOOK_EVERY)
        return ended

    def respawn(self, address: str, names: Collection[ReplicaName]) -> None:
        """End those replicas where they still run, and start them anew at the same addresses.

        Raises:
            OSError: the machine has no room for them.
            TemporaryError: a port was lost.
        """
        of = ProcessSet(Path(address))
        folders = [of.replica(name) for name in sorted(names)]
        kill_all(folders)
        try:
            for folder in folders:
                self._spawn(of, folder.name)
        except OSError:
            if of.is_started():
                raise
        if not of.is_started():
            self._end(of.path)  # somebody stopped it meanwhile, and may have missed the new ones

    def observe(self, address: str) -> Mapping[ReplicaName, Observation]:
        """What the folder and the process table say of every replica."""
        for keeper in self._keepers:
            keeper.poll()  # a keeper that nobody waits for would stay a zombie
        return {each.name: each.observe() for each in ProcessSet(Path(address)).replicas()}

    def logs(self, address: str, positions: Positions) -> Iterable[LogLine]:
        """Read on in every replica's log file."""
        return new_lines(ProcessSet(Path(address)), positions)

    def ledger(self, address: str) -> list[Entry]:
        """What happened to the set until now."""
        return ProcessSet(Path(address)).ledger()

    def stop(self, address: str) -> None:
        """End the set, if it is still this launcher's holder's."""
        folder = Path(address)
        if not folder.exists():
            return
        with self._turn(folder.parent):
            if ProcessSet(folder).is_held_by(self._holder):
                self._end(folder)
            release(self._ports.pop(address, {}).values())
            with suppress(OSError):
                folder.parent.rmdir()  # unless a later attempt has its set beside

    def _end(self, folder: Path) -> None:
        """End every process of the set's sessions, and what left them, then remove its folder."""
        of = ProcessSet(folder)
        of.mark_ending()
        end_all(folder, of.replicas())
        for keeper in self._keepers:
            keeper.poll()
        release(self._ports.pop(str(folder), {}).values())
        shutil.rmtree(folder, ignore_errors=True)
