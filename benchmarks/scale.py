"""A model of the time of a step for N replicas, checked with real processes on emulated links.

The processes train ``models/wide.py``, each in a network namespace of its own with a link of 100
Mbit/s (``network.py``), so that most of a step is the network, and not the cores that they share.
One device gives the time to compute, two replicas of each strategy what cannot be computed: the
latency of a hop of the ring, and how transfers hinder each other at a ps. The error is that of the
other groups. The second table reads the model off for accelerators of their own.
"""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

from aerotrain.contract.curves import Curves
from aerotrain.contract.job import Job
from aerotrain.contract.layout import CURVES
from aerotrain.contract.replicas import Role
from aerotrain.store import open_store
from benchmarks.network import MEGABITS, marks_of
from benchmarks.report import Report, run
from benchmarks.workloads import Jobs

MIRRORED, ASYNCHRONOUS = "multi_worker_mirrored", "parameter_server"

#: Bytes of the gradients of ``wide``, and the global batch, which each group size divides.
GRADIENTS, BATCH, EPOCHS = 596_490 * 4, 60, 2

#: What TCP over Ethernet leaves of a rate for data: 1,448 of 1,538 bytes, with preamble and gap.
_SHARE_OF_DATA = 1448 / 1538

#: The groups that are measured: replicas that compute. The first of each strategy calibrates.
GROUPS = {MIRRORED: (2, 3, 4), ASYNCHRONOUS: (2, 1, 4)}

#: For what the model is read off: bytes of gradients, and seconds to compute a step of a replica.
MODELS = {
    "wide, 0.6 M weights": (GRADIENTS, 0.005),
    "ResNet-50, 25.6 M": (25_600_000 * 4, 0.1),
    "BERT large, 335 M": (335_000_000 * 4, 0.5),
}

#: Assumed there: seconds of a hop between two machines of one data centre, and workers of one ps.
HOP, WORKERS_OF_PS = 0.0002, 4


@dataclass(frozen=True)
class StepTime:
    """The parts of a step: seconds to compute, and bytes of gradients over links of a rate.

    ``hop`` are the seconds of each of the 2 (N - 1) messages of a ring. ``hindrance`` is how much
    transfers of other workers delay one at a ps: 0 if they take turns, 1 if they come at random.
    ``coordinator`` are the seconds that the chief takes to schedule a step.
    """

    compute: float
    gradients: int
    megabits: float
    hop: float = 0.0
    hindrance: float = 0.0
    coordinator: float = 0.0

    @property
    def transfer(self) -> float:
        """The seconds in which a link carries all gradients, or all weights, one way."""
        return self.gradients * 8 / (self.megabits * 1e6 * _SHARE_OF_DATA)

    def mirrored(self, replicas: int) -> float:
        """A synchronous step: all compute, and add up gradients in a ring (all-reduce)."""
        wire = 2 * (replicas - 1) / replicas * self.transfer
        return self.compute + wire + 2 * (replicas - 1) * self.hop

    def asynchronous(self, workers: int, ps: float = 1) -> float:
        """The time between two steps of all workers: each pulls weights, and pushes gradients."""
        alone = self.compute + 2 * self.transfer
        busy = self.transfer / ps * (1 + self.hindrance / workers)
        return max(alone / workers, busy if workers > 1 else 0.0, self.coordinator)


def measure(given: Namespace, folder: Path) -> Report:
    """A row for each group, measured and by the model."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("this makes network namespaces, for which it needs root and iproute2 (ip and tc)")
    jobs = Jobs(folder)
    groups = {MIRRORED: (2, 3)} if given.quick else GROUPS
    alone, _ = _measured(_job(jobs, "one_device", 1), folder)
    model = StepTime(compute=alone, gradients=GRADIENTS, megabits=MEGABITS)
    rows, errors = [], []
    for strategy, sizes in groups.items():
        for size in sizes:
            seconds, cpu = _measured(_job(jobs, strategy, size), folder)
            if is_calibration := size == sizes[0]:
                model = _calibrated(model, strategy, seconds, cpu)
            predict = model.mirrored if strategy == MIRRORED else model.asynchronous
            error = predict(size) / seconds - 1
            if not is_calibration:
                errors.append(abs(error))
            rows.append(
                {
                    "strategy": strategy,
                    "replicas that compute": size,
                    "measured, ms a step": 1000 * seconds,
                    "by the model": 1000 * predict(size),
                    "error": None if is_calibration else error,
                }
            )
    parts = {
        "compute_seconds": model.compute,
        "hop_seconds": model.hop,
        "hindrance": model.hindrance,
        "coordinator_seconds": model.coordinator,
    }
    figures = {"model_error": max(errors), **parts}
    return Report(rows, figures, [[*_read_off(model.hindrance, model.coordinator)]])


def _job(jobs: Jobs, strategy: str, size: int) -> Job:
    """A training with so many replicas that compute; the chief of a mirrored one does."""
    arguments = {
        "model": "wide",
        "data": jobs.data("digits", shards=12),
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "steps_per_execution": 5,
    }
    job = jobs.train(strategy, arguments)
    counts = {Role.WORKER: size - (strategy == MIRRORED)}
    replicas = (replace(each, count=counts.get(each.role, 1)) for each in job.replicas)
    return replace(job, replicas=tuple(replicas))


def _measured(job: Job, folder: Path) -> tuple[float, float]:
    """Seconds of a step, and those of the chief's CPU.

    Of synchronous executions it is the lower quartile, which other load of the machine affects
    least. Asynchronous ones overlap, so it is the mean of all but the first.
    """
    first, *_, last = marks_of(job, folder)
    points = Curves.from_bytes(open_store(job.prefix).get(CURVES)).during.points
    seconds, steps = zip(
        *((b.at - a.at, b.step - a.step) for a, b in pairwise(points) if b.step > a.step),
        strict=True,
    )
    usual = quantiles([took / done for took, done in zip(seconds, steps, strict=True)], n=4)[0]
    if job.strategy == ASYNCHRONOUS:
        usual = sum(seconds) / sum(steps)
    print(f"{job.strategy}, {len(list(job.names()))} replicas: {usual:.4f} s", flush=True)
    return usual, (last.cpu - first.cpu) / (last.step - first.step)


def _calibrated(model: StepTime, strategy: str, seconds: float, cpu: float) -> StepTime:
    """The model with what two replicas of that strategy show."""
    if strategy == MIRRORED:
        return replace(model, hop=max(0.0, (seconds - model.mirrored(2)) / 2))
    hindrance = 2 * (seconds / model.transfer - 1)
    return replace(model, hindrance=max(0.0, hindrance), coordinator=cpu)


def _read_off(hindrance: float, coordinator: float) -> Iterator[Mapping[str, Any]]:
    """The share of N times the speed of one replica, and up to which N it is a half."""
    for name, (gradients, compute) in MODELS.items():
        for gigabits in (10, 100):
            model = StepTime(compute, gradients, 1000 * gigabits, HOP, hindrance, coordinator)

            def mirrored(n: int, model: StepTime = model) -> float:
                return n / model.mirrored(n)

            def asynchronous(n: int, model: StepTime = model) -> float:
                return 1 / model.asynchronous(n, n / WORKERS_OF_PS)

            for strategy, speed in ((MIRRORED, mirrored), (ASYNCHRONOUS, asynchronous)):
                shares = {2**e: speed(2**e) * compute / 2**e for e in range(1, 11)}
                yield {
                    "model": name,
                    "Gbit/s": gigabits,
                    "strategy": strategy,
                    **{f"{n}": shares[n] for n in (16, 64, 256, 1024)},
                    "half at": max([n for n in shares if shares[n] >= 0.5], default=None),
                }


if __name__ == "__main__":
    run(measure, __doc__)
