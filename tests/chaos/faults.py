"""The faults: a row each of the matrix of recovery, and what is expected of it."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.mishaps import Training

from aerotrain.contract.status import State

Harm = Callable[[Training], None]


@dataclass(frozen=True)
class Fault:
    """What is done to whom in which training, who should come back, and how it should end."""

    name: str
    strategy: str
    harm: Harm
    back: frozenset[str]
    ends: State = State.SUCCEEDED


def _signal(number: int, name: str, training: Training) -> None:
    os.kill(training.process(name).pid, number)


def _stop_and_continue(name: str, seconds: float, training: Training) -> None:
    """Frozen for less than the patience: nobody may be ended for it."""
    process = training.process(name)
    process.suspend()
    time.sleep(seconds)
    process.resume()


def _keeper(name: str, training: Training) -> None:
    """The whole process group at once, as when a machine goes."""
    os.killpg(int((Path(training.address) / name / "pid").read_text().split()[0]), signal.SIGKILL)


def _store_away(seconds: float, training: Training) -> None:
    """The store refuses every write, and is back later."""
    prefix = Path(training.job.prefix.removeprefix("file://"))
    away = prefix.with_name(f"{prefix.name}.away")
    prefix.rename(away)
    prefix.write_text("where a folder should be")
    time.sleep(seconds)
    prefix.unlink()
    away.rename(prefix)


def _damage(training: Training) -> None:
    """Cut the newest object of the newest checkpoint short, and kill the chief."""
    prefix = Path(training.job.prefix.removeprefix("file://"))
    found = [
        path
        for path in prefix.rglob("*")
        if path.is_file() and "checkpoint" in str(path) and ".data-" in path.name
    ]
    newest = max(found, key=lambda path: path.stat().st_mtime)
    os.truncate(newest, newest.stat().st_size // 2)
    _signal(signal.SIGKILL, "chief", training)


def _killed(name: str) -> Harm:
    return partial(_signal, signal.SIGKILL, name)


SERVED, GANG, ALONE = "parameter_server", "multi_worker_mirrored", "one_device"
BOTH = frozenset({"chief", "worker-0"})
CHIEF = frozenset({"chief"})

FAULTS: tuple[Fault, ...] = (
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
    Fault("kill its process group", ALONE, partial(_keeper, "chief"), CHIEF),
    Fault("terminate the process", ALONE, partial(_signal, signal.SIGTERM, "chief"), CHIEF),
    Fault("freeze the process", ALONE, partial(_signal, signal.SIGSTOP, "chief"), CHIEF),
    Fault("stop it for 3 s", ALONE, partial(_stop_and_continue, "chief", 3.0), frozenset()),
    Fault("store away for 6 s", ALONE, partial(_store_away, 6.0), frozenset()),
    Fault("damage the newest checkpoint", ALONE, _damage, CHIEF),
)

#: Epochs so that each training outlives its fault, on two cores that do nothing else.
EPOCHS: Mapping[str, int] = {SERVED: 100, GANG: 100, ALONE: 250}
