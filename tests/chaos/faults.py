"""The faults: one row each of the recovery matrix, with the expected outcome."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.fault_injection import Training, replica_pid

from aerotrain.contract.event_log import EventType
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import State
from aerotrain.launch.process.folder import JobFolder
from aerotrain.supervisor.processes import send
from chaos import dag_runs
from chaos.scenes import Place, Scene

Harm = Callable[[Training, Scene], None]


@dataclass(frozen=True)
class Fault:
    """A fault of a training, the replicas that restart after it, and the expected end."""

    name: str
    strategy: str
    harm: Harm
    back: frozenset[str]
    place: Place = Place.PLAIN
    ends: State = State.SUCCEEDED


@dataclass(frozen=True)
class DagFault:
    """A fault of the Airflow of a live run, and whether its task needs another try.

    In every case the run succeeds with the one replica group that was launched.
    """

    name: str
    strategy: str
    harm: Callable[[dag_runs.DagTraining], None]
    tries_again: bool


@dataclass(frozen=True)
class HostFault:
    """The host of a launch freezes, another host launches the same job, and the first one resumes.

    The first launch ends at once, and the second one as if it had been the only one.
    """

    name: str
    strategy: str
    back: frozenset[str] = frozenset()
    ends: State = State.SUCCEEDED


def _signal(number: int, name: str, training: Training, _: Scene) -> None:
    send([replica_pid(training.handle, name)], number)


def _stop_and_continue(name: str, seconds: float, training: Training, _: Scene) -> None:
    """Freeze a replica for less than the progress timeout: it must not be ended for it."""
    process = training.process(name)
    process.suspend()
    time.sleep(seconds)
    process.resume()


def _supervisor(training: Training, _: Scene) -> None:
    """Kill the supervisor and all replicas below it, as when a machine fails."""
    training.process("chief").parents()[1].kill()


def _store_away(seconds: float, training: Training, _: Scene) -> None:
    """Mount an empty, read-only folder over the store, as when a network share is lost."""
    prefix = training.job.prefix.removeprefix("file://")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "chaos", prefix], check=True)
    try:
        time.sleep(seconds)
    finally:  # the mount must not outlive the tool, however it ends
        subprocess.run(["umount", "--lazy", prefix], check=True)


def _store_cut(seconds: float, _: Training, scene: Scene) -> None:
    """Freeze the server: it accepts connections and does not respond."""
    assert scene.server is not None
    scene.server.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    scene.server.process.send_signal(signal.SIGCONT)


def _store_slow(seconds: float, training: Training, scene: Scene) -> None:
    """Let the server run a tenth of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _store_cut(0.9, training, scene)
        time.sleep(0.1)


def _disk_full(seconds: float, _: Training, scene: Scene) -> None:
    """Fill the disk, so that no process can write a byte, and free it later."""
    assert scene.disk is not None
    ballast = scene.disk / "ballast"
    until = time.monotonic() + seconds
    with ballast.open("wb", buffering=0) as file:
        while time.monotonic() < until:  # fills also what others delete meanwhile
            try:
                file.write(bytes(1 << 16))
            except OSError:
                time.sleep(0.01)
    ballast.unlink()


def _silent(name: ReplicaName, training: Training, scene: Scene) -> None:
    """Drop all packets from and to its port until that is detected."""
    assert scene.network is not None
    address = JobFolder(Path(training.handle)).addresses()[name]
    scene.network.drop(int(address.rpartition(":")[2]))
    try:
        training.until(lambda: any(each.event is EventType.DETECT for each in training.events()))
    finally:
        scene.network.mend()


def _damage(training: Training, scene: Scene) -> None:
    """Truncate the newest object of the newest checkpoint, and kill the chief."""
    prefix = Path(training.job.prefix.removeprefix("file://"))
    found = [
        path
        for path in prefix.rglob("*")
        if path.is_file() and "checkpoint" in str(path) and ".data-" in path.name
    ]
    newest = max(found, key=lambda path: path.stat().st_mtime)
    os.truncate(newest, newest.stat().st_size // 2)
    _signal(signal.SIGKILL, "chief", training, scene)


def _killed(name: str) -> Harm:
    return partial(_signal, signal.SIGKILL, name)


SERVED, GANG, ALONE = "parameter_server", "multi_worker_mirrored", "one_device"
BOTH = frozenset({"chief", "worker-0"})
CHIEF = frozenset({"chief"})
NONE: frozenset[str] = frozenset()
WORKER = ReplicaName(Role.WORKER, 0)

FAULTS: tuple[Fault | HostFault | DagFault, ...] = (
    Fault("kill a worker", SERVED, _killed("worker-1"), frozenset({"worker-1"})),
    Fault("kill the ps", SERVED, _killed("ps-0"), frozenset({"chief", "ps-0"})),
    Fault("kill the chief", SERVED, _killed("chief"), CHIEF),
    Fault(
        "freeze a worker",
        SERVED,
        partial(_signal, signal.SIGSTOP, "worker-0"),
        frozenset({"worker-0"}),
    ),
    Fault(
        "terminate a worker",
        SERVED,
        partial(_signal, signal.SIGTERM, "worker-0"),
        frozenset({"worker-0"}),
    ),
    Fault("kill a worker", GANG, _killed("worker-0"), BOTH),
    Fault("kill the chief", GANG, _killed("chief"), BOTH),
    Fault("freeze a worker", GANG, partial(_signal, signal.SIGSTOP, "worker-0"), BOTH),
    Fault("terminate a worker", GANG, partial(_signal, signal.SIGTERM, "worker-0"), BOTH),
    Fault("kill the process", ALONE, _killed("chief"), CHIEF),
    Fault("kill its supervisor", ALONE, _supervisor, CHIEF),
    Fault("terminate the process", ALONE, partial(_signal, signal.SIGTERM, "chief"), CHIEF),
    Fault("freeze the process", ALONE, partial(_signal, signal.SIGSTOP, "chief"), CHIEF),
    Fault("freeze the process for 3 s", ALONE, partial(_stop_and_continue, "chief", 3.0), NONE),
    Fault("store unavailable for 6 s", ALONE, partial(_store_away, 6.0), NONE, Place.SMALL_DISK),
    Fault("damage the newest checkpoint", ALONE, _damage, CHIEF),
    Fault("store unresponsive for 10 s", ALONE, partial(_store_cut, 10.0), NONE, Place.SERVER),
    Fault("store unresponsive for 10 s", SERVED, partial(_store_cut, 10.0), NONE, Place.SERVER),
    Fault("store slow for 15 s", ALONE, partial(_store_slow, 15.0), NONE, Place.SERVER),
    Fault("disk full for 8 s", ALONE, partial(_disk_full, 8.0), NONE, Place.SMALL_DISK),
    Fault("drop a worker's packets", SERVED, partial(_silent, WORKER), BOTH, Place.NETWORK),
    Fault("drop a worker's packets", GANG, partial(_silent, WORKER), BOTH, Place.NETWORK),
    HostFault("freeze the host until another has taken over", ALONE),
    HostFault("freeze the host until another has taken over", SERVED),
    HostFault("freeze the host until another has taken over", GANG),
    DagFault("kill the task's process", ALONE, dag_runs.kill_task, tries_again=True),
    DagFault("kill Airflow's worker", ALONE, dag_runs.kill_worker, tries_again=True),
    DagFault("kill the scheduler", ALONE, dag_runs.kill_scheduler, tries_again=True),
    DagFault("kill the triggerer", ALONE, dag_runs.kill_triggerer, tries_again=False),
    DagFault("kill all three in turn", SERVED, dag_runs.kill_in_turn, tries_again=True),
    DagFault("kill all three at once", SERVED, dag_runs.kill_all, tries_again=True),
)

#: Enough epochs for each training to outlive its fault, on two cores that do nothing else.
EPOCHS: Mapping[str, int] = {SERVED: 300, GANG: 300, ALONE: 750}

#: The same for faults after which Airflow must first time the task out, and then retry it.
EPOCHS_OF_A_RUN: Mapping[str, int] = {SERVED: 250, ALONE: 500}
