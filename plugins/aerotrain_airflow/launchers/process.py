"""The launcher of local processes: every replica in a process group of its own.

Everything about a set lies in one folder, its address, so that any process of this user can
observe and stop it::

    <root>/<job>/<attempt>/job.json                    what was started
    <root>/<job>/<attempt>/<replica>/work/             its scratch and working directory
    <root>/<job>/<attempt>/<replica>/log               its output, both streams
    <root>/<job>/<attempt>/<replica>/pid               process id and birth of its keeper
    <root>/<job>/<attempt>/<replica>/exit              its exit code, once it has ended
    <root>/<job>/<attempt>/<replica>/termination-log   its last words, where it failed
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from aerotrain.contract.cluster import replica_environment
from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.names import path_segment
from aerotrain.contract.status import Observation, State, job_state, observed_exit
from aerotrain_airflow.launchers.base import Emit, Ended, LogLine, job_ended
from aerotrain_airflow.launchers.ports import reserved_ports

#: Seconds between asking the processes of a set to go and ending them. Airflow gives a
#: killed task 5 s, so this and the ending must fit into that.
GRACE = 2.0

#: Seconds between two looks at the replicas: short beside a step's import of TensorFlow,
#: long beside the look itself (about 1 ms a replica).
LOOK_EVERY = 0.2

#: A training run's scratch holds its shards and a few checkpoints.
LEAST_FREE_BYTES = 1 << 30

#: How far the log of each replica was read, in bytes, by the replica's name.
Positions = dict[str, int]

#: A shell that outlives its replica by one line: the exit code reaches the folder even when
#: nobody is left to wait for it. It lets the replica answer SIGTERM first.
_KEEPER = """
trap : TERM INT
(cd work && exec "$@") > log 2>&1
code=$?
echo "$code" > exit.new && mv exit.new exit
"""

#: Found in the environment of every process of a set, however it was started.
_MARK = "AEROTRAIN_SET"


@dataclass(frozen=True)
class ProcessPlan:
    """One command for every replica, and the folder where their traces will be."""

    job: Job
    attempt: str
    folder: Path
    command: tuple[str, ...]

    @property
    def address(self) -> str:
        """The set's folder."""
        return str(self.folder)

    def __str__(self) -> str:
        lines = [f"{self.folder}: attempt {self.attempt}"]
        lines += [f"  {name}: {' '.join(self.command)}" for name in self.job.names()]
        return "\n".join(lines)


class ProcessLauncher:
    """Runs replicas as processes of this machine, talking over loopback.

    ``root`` is the folder of all sets; ``environment`` is what every replica starts with,
    credentials for the store included; ``python`` is the interpreter that has aerotrain's
    ``tensorflow`` extra.
    """

    def __init__(
        self, root: Path, environment: Mapping[str, str], python: str = sys.executable
    ) -> None:
        self._root = root
        self._environment = dict(environment)
        self._python = python
        self._keepers: list[subprocess.Popen[bytes]] = []

    def plan(self, job: Job, attempt: str) -> ProcessPlan:
        """One command a replica; the ports are found when they start."""
        return ProcessPlan(
            job=job,
            attempt=attempt,
            folder=self._root / job.name / path_segment(attempt),
            command=(self._python, "-m", "aerotrain.replica"),
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
        """Start all replicas at once, or none.

        Raises:
            TemporaryError: no ports are free, or the machine has no room for them.
        """
        address = plan.address
        for earlier in plan.folder.parent.glob("*/"):
            self.stop(str(earlier))
        try:
            self._start_all(plan)
        except BaseException as error:
            self.stop(address)
            if isinstance(error, OSError):
                raise TemporaryError(
                    f"the replicas of {plan.job.name} could not be started in {address}: {error}; "
                    "free what is short, or set [aerotrain] scratch to another disk"
                ) from error
            raise
        return address

    def _start_all(self, plan: ProcessPlan) -> None:
        plan.folder.mkdir(parents=True)
        (plan.folder / "job.json").write_text(plan.job.to_json())
        names = list(plan.job.names())
        # Each replica inherits the reservation of its port, for as long as it lives.
        with reserved_ports(len(names)) as ports:
            addresses = {
                name: f"127.0.0.1:{port.number}" for name, port in zip(names, ports, strict=True)
            }
            for name, port in zip(names, ports, strict=True):
                environment = replica_environment(plan.job, name, addresses, plan.attempt)
                self._spawn(plan, name, environment, port.lock)

    def _spawn(
        self, plan: ProcessPlan, name: ReplicaName, environment: Mapping[str, str], lock: int
    ) -> None:
        folder = plan.folder / str(name)
        (folder / "work" / "tmp").mkdir(parents=True)
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "aerotrain-keeper", *plan.command],
            cwd=folder,
            env={
                **self._environment,
                **environment,
                "TMPDIR": str(folder / "work" / "tmp"),
                "PYTHONUNBUFFERED": "1",
                "AEROTRAIN_TERMINATION_LOG": str(folder / "termination-log"),
                _MARK: str(plan.folder),
            },
            # None of the task's own: whoever waits for their end would wait for the replica.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock,),
        )
        (folder / "pid").write_text(f"{keeper.pid} {psutil.Process(keeper.pid).create_time()}")
        self._keepers.append(keeper)

    def trigger(self, address: str, until: float | None) -> None:
        """None: a triggerer may run on another machine, and cannot see local processes."""

    def watch(
        self, address: str, emit: Emit, *, until: float | None, at_most: float | None = None
    ) -> Ended | None:
        """Look at the set's folder every ``LOOK_EVERY`` seconds until its job has ended."""
        enough = time.monotonic() + (float("inf") if at_most is None else at_most)
        described = Path(address, "job.json")
        job = Job.from_json(described.read_text())
        deadline = min(described.stat().st_mtime + job.deadlines.run, until or float("inf"))
        positions: Positions = {}
        while True:
            seen = self.observe(address)  # before the logs: what ended has all its lines there
            for line in self.logs(address, positions):
                emit(line)
            if len(seen) < len(list(job.names())):
                return Ended(state=State.LOST, reason=f"{job.name} was ended from outside")
            if job_state(seen).ended:
                return job_ended(seen)
            if time.time() > deadline:
                return Ended(
                    state=State.LOST,
                    reason=f"{job.name} ran for longer than its deadline of "
                    f"{job.deadlines.run:.0f} s; allow it more, or give it more replicas",
                )
            if time.monotonic() > enough:
                return None
            time.sleep(LOOK_EVERY)

    def observe(self, address: str) -> Mapping[ReplicaName, Observation]:
        """What the folder and the process table say of every replica."""
        for keeper in self._keepers:
            keeper.poll()  # a keeper that nobody waits for would stay a zombie
        return {name: _observe(folder) for name, folder in _replica_folders(address)}

    def logs(self, address: str, positions: Positions) -> Iterable[LogLine]:
        """Read on in every replica's log file; the position is a byte offset."""
        for name, folder in _replica_folders(address):
            # Asked before reading: what a replica wrote before its end is then all read.
            ended = (folder / "exit").exists()
            try:
                with (folder / "log").open("rb") as file:
                    file.seek(positions.get(str(name), 0))
                    new = file.read()
            except FileNotFoundError:
                continue  # its keeper has not come so far, or the set was stopped meanwhile
            whole = new if ended else new[: new.rfind(b"\n") + 1]
            positions[str(name)] = positions.get(str(name), 0) + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                yield LogLine(name, line)

    def stop(self, address: str) -> None:
        """End every process of the set's sessions, and what left them, then remove its folder."""
        folder = Path(address)
        if not folder.exists():
            return
        processes = _processes_of(folder)
        for process in processes:
            _quietly(process.terminate)
        _, stubborn = psutil.wait_procs(processes, timeout=GRACE)
        # Looked for anew: what was started while the others were ending.
        killed = {*stubborn, *_processes_of(folder)}
        for process in killed:
            _quietly(process.kill)
        psutil.wait_procs(killed, timeout=GRACE)
        for keeper in self._keepers:
            keeper.poll()
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()  # unless a later attempt has its set beside


def _replica_folders(address: str) -> Iterable[tuple[ReplicaName, Path]]:
    for folder in sorted(Path(address).glob("*/pid")):
        role, _, index = folder.parent.name.partition("-")
        yield ReplicaName(Role(role), int(index or 0)), folder.parent


def _observe(folder: Path) -> Observation:
    alive = _keeper_is_alive(folder)  # asked first: a keeper writes the code before it ends
    try:
        code = int((folder / "exit").read_text())
    except FileNotFoundError:
        if alive:
            return Observation(state=State.RUNNING)
        return Observation(state=State.LOST, reason="is gone without an exit code")
    seen = observed_exit(code)
    words = folder / "termination-log"
    if words.exists():
        reason = f"{seen.reason}: {words.read_text(errors='replace')}"
        return Observation(state=seen.state, exit_code=code, reason=reason)
    return seen


def _keeper_is_alive(folder: Path) -> bool:
    try:
        process = psutil.Process(_pid_of(folder))
        return _is_ours(folder) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False  # the file goes when somebody stops the set


def _is_ours(folder: Path) -> bool:
    """Whether the keeper's id is still its own, as a process or as the session it left."""
    try:
        birth = float((folder / "pid").read_text().split()[1])
        return psutil.Process(_pid_of(folder)).create_time() == birth
    except psutil.NoSuchProcess:
        return True


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Every process of the set: those of its keepers' sessions, and those that carry its mark.

    Some start a session of their own and keep the mark, others lose the mark and stay.
    """
    sessions = {_pid_of(path.parent) for path in folder.glob("*/pid") if _is_ours(path.parent)}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                os.getsid(process.pid) in sessions or process.environ().get(_MARK) == str(folder)
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or another user's
    return found


def _pid_of(folder: Path) -> int:
    return int((folder / "pid").read_text().split()[0])


def _quietly(end: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        end()
