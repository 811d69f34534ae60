"""The launcher of local processes: every replica in a process group of its own.

Everything about a set lies in one folder, its address, so that any process of this user can
observe it, go on with it and stop it: ``<root>/<job>/<attempt>/``, see ``process_set``.
"""

import errno
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
from aerotrain.contract.progress import Progress
from aerotrain.contract.status import Observation, State
from aerotrain_airflow.launchers.base import Emit, LogLine
from aerotrain_airflow.launchers.keeper import end_all, kill_all
from aerotrain_airflow.launchers.ports import Port, hold, release, reserve
from aerotrain_airflow.launchers.process_plan import ProcessPlan
from aerotrain_airflow.launchers.process_set import (
    Positions,
    ProcessSet,
    Pulses,
    turn,
    what_is_short,
)
from aerotrain_airflow.recovery.ended import Ended
from aerotrain_airflow.recovery.recovery import Recovery, Seen

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
        self._is_short = False

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
        keeper = folder.spawn(self._command, {**self._environment, **told}, [held[name].lock])
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
        of = ProcessSet(Path(address))
        job = of.job
        deadline = min(of.born + job.deadlines.run, until or float("inf"))
        recovery = Recovery(job, of.ledger(), of.note)
        pulses, positions, step, trains = Pulses(job), of.positions(), None, False
        while True:
            self._end_silent(of, pulses, trains)
            seen = self.observe(address)  # before the logs: what ended has all its lines there
            for line in self.logs(address, positions):
                emit(line)
                step, trains = _step_of(line) or step, trains or _step_of(line) is not None
            of.keep_positions(positions)
            if len(seen) < len(list(job.names())):
                return Ended(state=State.LOST, reason=f"{job.name} was ended from outside")
            if not of.is_held_by(self._holder):
                reason = f"{job.name} was taken over by another try of its task"
                return Ended(state=State.LOST, reason=reason)
            outcome = self._recovered(of, recovery, seen, step)
            if isinstance(outcome, Ended):
                return outcome
            trains = trains and not outcome
            if time.time() > deadline:
                return Ended(
                    state=State.LOST,
                    reason=f"{job.name} ran for longer than its deadline of "
                    f"{job.deadlines.run:.0f} s; allow it more, or give it more replicas",
                )
            if time.monotonic() > enough:
                return None
            time.sleep(LOOK_EVERY)

    def _recovered(
        self, of: ProcessSet, recovery: Recovery, seen: Seen, step: int | None
    ) -> Ended | bool:
        """What is decided about ``seen``: the end, or whether replicas have come back for it.

        Where the disk takes nothing just now, that waits for the next look.
        """
        try:
            decision = recovery.decide(seen, time.time(), step)
            if isinstance(decision, Ended):
                return decision
            if decision is None or time.time() < decision.not_before:
                return False
            self.respawn(str(of.path), decision.names)
            names = ", ".join(map(str, sorted(decision.names)))
            _LOG.warning("%s; started anew: %s", decision.because, names)
            recovery.restarted(decision, time.time(), step)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            if not self._is_short:
                _LOG.warning("%s: who was lost comes back when there is room", error)
            self._is_short = True
            return False
        self._is_short = False
        return True

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

    def _end_silent(self, of: ProcessSet, pulses: Pulses, trains: bool) -> None:
        """End whoever runs and gives no sign of life."""
        beats = {
            folder.name: folder.heartbeat()
            for folder in of.replicas()
            if folder.observe().state is State.RUNNING
        }
        for name in pulses.silent(beats, trains=trains):
            with suppress(FileNotFoundError):  # the set was stopped meanwhile
                of.replica(name).silence(
                    f"gave no sign of life for {of.job.deadlines.patience:.0f} s, and was ended"
                )

    def observe(self, address: str) -> Mapping[ReplicaName, Observation]:
        """What the folder and the process table say of every replica."""
        for keeper in self._keepers:
            keeper.poll()  # a keeper that nobody waits for would stay a zombie
        return {each.name: each.observe() for each in ProcessSet(Path(address)).replicas()}

    def logs(self, address: str, positions: Positions) -> Iterable[LogLine]:
        """Read on in every replica's log file; the position is a byte offset."""
        for folder in ProcessSet(Path(address)).replicas():
            name = folder.name
            new = folder.read_log(positions.get(str(name), 0))
            positions[str(name)] = positions.get(str(name), 0) + len(new)
            for line in new.decode(errors="replace").splitlines():
                yield LogLine(name, line)

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


def _step_of(line: LogLine) -> int | None:
    """The step of the training that a line tells of."""
    progress = Progress.parse(line.text)
    return progress.step if progress else None
