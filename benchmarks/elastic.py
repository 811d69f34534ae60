"""Parameter servers whose workers are slow, leave, are lost and come back.

One training of three workers, whose model counts how often it was trained on each record: its pace
while one of them runs for a fifth of the time, over its pace without that; then that one is
preempted, and another one is killed. And the steps a second of synchronous updates over those of
asynchronous ones. Two cores run five processes here, so a worker that runs less leaves the others
more of them: on machines of their own, three workers of which one is five times slower can do 0.73
of what three can.
"""

import re
import signal
import statistics
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.standalone import prepare
from aerotrain.supervisor.processes import send
from benchmarks.fault_injection import Training, replica_pid
from benchmarks.report import Report, run
from benchmarks.testbed import processes_in
from benchmarks.workloads import MODELS

#: Records of a batch and batches of an epoch, as the model ``keyed`` has them.
BATCH, STEPS = 16, 400

ENDLESS = 1_000_000  # epochs

#: The seconds of a cycle of a slowed process, in a part of which it runs.
_CYCLE, _RUNS = 0.1, 0.2

#: What the model says at the end of an epoch.
_COUNTED = re.compile(r"counted: epoch (\d+), (\d+) lost, (\d+) twice")


def measure(given: Namespace, folder: Path) -> Report:
    """Paces, seconds and records."""
    sys.path.insert(0, str(MODELS))
    store = (folder / "store").as_uri()
    data = prepare(store, folder / "prepare", "keyed", splits={"train": 1.0})
    seconds = 4.0 if given.quick else 20.0

    def started(name: str, workers: int, **arguments: Any) -> Training:
        known = {"model": "keyed", "data": data, "batch_size": BATCH, "epochs": ENDLESS}
        job = Job(
            name=name,
            module="aerotrain.training.train",
            store=store,
            run=name,
            task="train",
            strategy="parameter_server",
            replicas=(
                ReplicaSpec(role=Role.CHIEF),
                ReplicaSpec(role=Role.WORKER, count=workers),
                ReplicaSpec(role=Role.PS),
            ),
            arguments={**known, "checkpoint_interval": 3600, **arguments},
            code=str(MODELS),
        )
        return Training(processes_in(folder / "sets"), job)

    with started("changing", 3, steps_per_execution=20) as training:
        figures = changing(training, seconds)
    paces = {}
    for update in ("asynchronous", "synchronous"):
        with started(update, 2, update=update) as training:
            training.until(lambda: len(epochs(training)) > 1)
            paces[update] = pace(training, seconds)
    figures["sync_ps_over_async"] = paces["synchronous"] / paces["asynchronous"]
    rows = [{"figure": name, "value": round(value, 3)} for name, value in figures.items()]
    return Report(rows, figures)


def changing(training: Training, seconds: float) -> dict[str, float]:
    """The figures of a training of which a worker is slow, is preempted, and another is killed."""
    training.until(lambda: len(epochs(training)) > 2)
    before = pace(training, seconds)
    with slowed(replica_pid(training.handle, "worker-2")):
        time.sleep(seconds / 4)  # until the leases fit
        slow = pace(training, seconds)
    lost = records(training)[0]
    joins = [ended(training, "worker-2", signal.SIGTERM)]
    left = records(training)[0]
    joins.append(ended(training, "worker-1", signal.SIGKILL))
    epoch = len(epochs(training))
    training.until(lambda: len(epochs(training)) > epoch + 1)
    missing, twice = records(training)
    return {
        "pace_with_straggler_over_without_it": slow / before,
        "join_seconds": statistics.median(joins),
        "leave_steps_lost": (left - lost) / BATCH,
        "records_lost": float(missing),
        "records_twice": float(twice),
    }


def epochs(training: Training) -> list[tuple[float, int, int]]:
    """When each epoch ended, and how many records were lost, and trained twice, until then."""
    found = [(at, _COUNTED.search(line)) for at, line in training.lines]
    return [(at, int(each[2]), int(each[3])) for at, each in found if each]


def pace(training: Training, seconds: float) -> float:
    """Steps a second from the end of an epoch to the end of a later one, after ``seconds``."""
    first = len(epochs(training))
    training.until(lambda: len(epochs(training)) > first)
    begun = epochs(training)[first][0]
    training.until(lambda: epochs(training)[-1][0] >= begun + seconds)
    ends = epochs(training)[first:]
    return STEPS * (len(ends) - 1) / (ends[-1][0] - ends[0][0])


def records(training: Training) -> tuple[int, int]:
    """How many records are lost, and were trained twice, at the end of the next epoch but one."""
    count = len(epochs(training))
    training.until(lambda: len(epochs(training)) > count + 1)
    return epochs(training)[-1][1:]


def ended(training: Training, worker: str, how: signal.Signals) -> float:
    """End a worker; the seconds from when the next one serves until it takes part."""
    seen = len(training.lines)
    send([replica_pid(training.handle, worker)], how)

    def at(end: str) -> float | None:
        found = (when for when, line in training.lines[seen:] if line.endswith(f"{worker} {end}"))
        return next(found, None)

    joined = training.until(lambda: at("takes part"))
    return float(joined - training.until(lambda: at("serves")))


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """A scope in which a process runs for a part of the time."""
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            send([pid], signal.SIGSTOP)
            ends.wait(_CYCLE * (1 - _RUNS))
            send([pid], signal.SIGCONT)
            ends.wait(_CYCLE * _RUNS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


if __name__ == "__main__":
    run(measure, __doc__)
