"""Training by this project, compared with ``fit`` of Keras 3 and of tf_keras.

The same job, model, batches and number of replicas, in real processes of this machine, one after
another, each training in processes of its own: steps a second of the second of two epochs. ``fit``
is run with one step per execution, which is its default, and with as many as ours.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job, Role
from benchmarks.environments import with_tf_keras
from benchmarks.models import fashion
from benchmarks.replicas import Ended, run_job
from benchmarks.report import print_report, print_table
from benchmarks.workloads import (
    BATCH,
    CONVOLUTIONS,
    DENSE,
    EMBEDDING,
    EPOCHS,
    FIT_WORKS,
    PER_EXECUTION,
    SHARDED,
    Jobs,
    Workload,
)

SAME = "same_steps_per_execution"
WORKLOADS = (DENSE, CONVOLUTIONS, EMBEDDING, SHARDED)

#: Virtual CPU devices by strategy, 1 by default: there are no other devices here to mirror on.
DEVICES = {"mirrored": 2, "central_storage": 2}

#: Params of a training; each is measured against the same job without it.
PARAMS: Sequence[Mapping[str, Any]] = (
    {"steps_per_execution": 1},
    {"jit_compile": True},
    {"gradient_accumulation_steps": 4},
    {"dtype_policy": "mixed_bfloat16"},
)

#: Rounds of measurement by strategy: trainings in more than one process are measured once.
ROUNDS = {"one_device": 2}

#: Seconds for which simultaneous processes are timed.
ALONE_SECONDS = 10

_PLANNED = re.compile(r"progress .*\bsteps=(\d+)")
_RATE = re.compile(r"steps_per_second=(\S+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only one_device, compared with Keras 3"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="MODEL/STRATEGY", help="these rows, such as dense/mirrored"
    )
    asked = parser.parse_args()
    if not fashion.IMAGES.exists():
        sys.exit(f"{fashion.IMAGES} is missing: install Debian's package dataset-fashion-mnist")
    every = {f"{each.name}/{name}": (each, name) for each in WORKLOADS for name in each.strategies}
    if unknown := set(asked.only or ()) - every.keys():
        sys.exit(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(every)}")
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        if asked.quick:
            rows = bench.compared(DENSE, "one_device", ["keras3"], rounds=1)
        else:
            rows = [
                row
                for workload, strategy in map(every.__getitem__, asked.only or every)
                for row in bench.compared(
                    workload, strategy, bench.flavours(strategy), ROUNDS.get(strategy, 1)
                )
            ]
        if not asked.quick and not asked.only:
            for table in (
                bench.memory,
                [bench.shares(each) for each in WORKLOADS[:3]],
                [
                    bench.communication(DENSE, "multi_worker_mirrored"),
                    *(bench.communication(each, "parameter_server") for each in (DENSE, EMBEDDING)),
                ],
                [row for workload in WORKLOADS[:2] for row in bench.params(workload)],
            ):
                print_table(table)
                print()
        print_report(rows, figures(rows))


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The ratios of ``rows`` by name."""
    suffixes = {workload.name: workload.suffix for workload in WORKLOADS}
    named = {}
    for row in rows:
        name = f"{row['strategy']}_over_{row['fit of']}_fit"
        named[name + suffixes[row["model"]]] = row["ours / fit"]
        named[f"{name}_{SAME}{suffixes[row['model']]}"] = row[f"ours / fit at {PER_EXECUTION}"]
    return {name: ratio for name, ratio in named.items() if isinstance(ratio, float)}


class Bench:
    """Runs jobs on data sets that it prepares in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.memory: list[dict[str, Any]] = []
        self._folder = folder
        self._jobs = Jobs(folder)

    def flavours(self, strategy: str) -> list[str]:
        """The Keras versions whose ``fit`` supports ``strategy``."""
        known = [each for each in FIT_WORKS if strategy in FIT_WORKS[each]]
        return [each for each in known if each == "keras3" or self._tf_keras]

    @cached_property
    def _tf_keras(self) -> dict[str, Any] | None:
        python = with_tf_keras(self._folder / "tf_keras")
        if isinstance(python, str):
            print(f"tf_keras is omitted, because its environment cannot be created: {python}\n")
            return None
        return {"python": str(python), "environment": {"TF_USE_LEGACY_KERAS": "1"}}

    def compared(
        self, workload: Workload, strategy: str, flavours: Sequence[str], rounds: int
    ) -> list[dict[str, Any]]:
        """A row for each Keras, of medians over ``rounds``, in which all take turns."""
        ours: list[float] = []
        theirs: dict[str, list[tuple[float, ...]]] = {flavour: [] for flavour in flavours}
        for _ in range(rounds):
            ours.append(self._ours(workload, strategy))
            for flavour, rates in theirs.items():
                rates.append(self._fit(workload, strategy, flavour))
        common = {"model": workload.name, "strategy": strategy}
        rows = []
        for flavour, rates in (theirs or {"–": [(0.0, 0.0)] * rounds}).items():
            row = {**common, "ours, steps/s": statistics.median(ours), "fit of": flavour}
            titles = ("fit", f"fit at {PER_EXECUTION}")
            for title, of_fit in zip(titles, zip(*rates, strict=True), strict=True):
                row[f"{title}, steps/s"], row[f"ours / {title}"] = _medians(ours, of_fit)
            print(row, file=sys.stderr)
            rows.append(row)
        return rows

    def params(self, workload: Workload) -> list[dict[str, Any]]:
        """Steps a second on one device with each of ``PARAMS``, over those without."""
        rows = []
        plain = self._ours(workload, "one_device")
        for arguments in PARAMS:
            [(name, value)] = arguments.items()
            ratio = self._ours(workload, "one_device", **arguments) / plain
            rows.append({"model": workload.name, "param": f"{name}={value}", "over without": ratio})
            print(rows[-1], file=sys.stderr)
        return rows

    def _ours(self, workload: Workload, strategy: str, **arguments: Any) -> float:
        job = self._jobs.train(workload, strategy, **arguments)
        ended = run_job(job, self._folder, devices=DEVICES.get(strategy, 1))
        self._remember(job, "ours", workload, ended)
        [begin, end] = [each.seconds for each in ended.said if each.line.startswith("epoch ")]
        [steps] = {each[1] for said in ended.said if (each := _PLANNED.search(said.line))}
        return int(steps) / EPOCHS / (end - begin)

    def _fit(self, workload: Workload, strategy: str, flavour: str) -> tuple[float, float]:
        """Steps a second with one step per execution, and with as many as ours; 0 if it fails."""

        def rate(per_execution: int) -> float:
            job = self._jobs.train(workload, strategy)
            ended = run_job(
                job,
                self._folder,
                "benchmarks.fit",
                [str(per_execution)],
                devices=DEVICES.get(strategy, 1),
                may_fail=True,
                **((self._tf_keras or {}) if flavour == "tf_keras" else {}),
            )
            self._remember(job, f"fit of {flavour}", workload, ended)
            rates = [float(each[1]) for said in ended.said if (each := _RATE.search(said.line))]
            if not rates:
                print(*(each.line for each in ended.said[-20:]), file=sys.stderr)
            return sum(rates)

        return rate(1), rate(PER_EXECUTION)

    def shares(self, workload: Workload) -> dict[str, Any]:
        """The composition of a step on one device: compute, input and Python."""
        ended = run_job(self._jobs.train(workload, "one_device"), self._folder, "benchmarks.shares")
        taken = json.loads(ended.said[-1].line)
        each = (taken["one_by_one"] - taken["at_hand"]) / (1 - 1 / PER_EXECUTION)
        python = each / PER_EXECUTION
        step = max(taken["read"], taken["at_hand"])
        return {
            "model": workload.name,
            "step, ms": step,
            "compute": (taken["at_hand"] - python) / step,
            "input that is waited for": (step - taken["at_hand"]) / step,
            "python": python / step,
            "python at one step per execution": each / (step - python + each),
        }

    def communication(self, workload: Workload, strategy: str) -> dict[str, Any]:
        """The step of replicas that train together, over a step without any waiting for others.

        The latter is timed in as many simultaneous processes that do not communicate.
        """
        job = self._jobs.train(workload, strategy)
        workers = job.count(Role.WORKER)
        shared = strategy == "multi_worker_mirrored"  # the chief computes, too
        processes, size = (workers + 1, BATCH // (workers + 1)) if shared else (workers, BATCH)
        rate = self._ours(workload, strategy)
        step = 1000 / rate * (1 if shared else workers)
        jobs = [self._jobs.train(workload, "one_device", batch_size=size) for _ in range(processes)]

        def alone(job: Job) -> float:
            ended = run_job(job, self._folder, "benchmarks.shares", [str(ALONE_SECONDS)])
            return float(json.loads(ended.said[-1].line)["read"])

        with ThreadPoolExecutor(processes) as pool:
            own = statistics.mean(pool.map(alone, jobs))
        return {
            "model": workload.name,
            "strategy": strategy,
            "step of a replica, ms": step,
            "the same by itself, ms": own,
            "communication": 1 - own / step,
        }

    def _remember(self, job: Job, who: str, workload: Workload, ended: Ended) -> None:
        for name, mebibytes in ended.memory.items():
            row = {"model": workload.name, "strategy": job.strategy, "by": who, "replica": name}
            known = [each for each in self.memory if row.items() <= each.items()]
            if not known:
                self.memory.append({**row, "peak memory, MiB": round(mebibytes)})


def _medians(ours: Sequence[float], of_fit: Sequence[float]) -> tuple[Any, Any]:
    """Medians of the rates of ``fit``, and of our ratios to them, where ``fit`` did not fail."""
    pairs = [(one, other) for one, other in zip(ours, of_fit, strict=True) if other]
    if not pairs:
        return "–", "–"
    ratios = [one / other for one, other in pairs]
    return statistics.median(other for _, other in pairs), statistics.median(ratios)


if __name__ == "__main__":
    main()
