"""Training by this project, compared with ``fit`` of Keras 3 and of tf_keras.

The same job, model, batches and number of replicas, in real processes of this machine, one after
another in changing order, each training in its own processes: steps a second of the second of two
epochs. ``fit`` is run with one step per execution, which is its default, and with as many as ours.
``--quick`` trains the dense network on one device, on a tenth of the records, once.
"""

import re
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from benchmarks.models import fashion
from benchmarks.replicas import Ended, run_job
from benchmarks.report import Report, Rows, in_turns, ratios, run
from benchmarks.workloads import (
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

SAME, PEAK = "same_steps_per_execution", "peak memory, MiB"

#: The steps per execution of ``fit``, and their titles.
STEPS = {1: "fit", PER_EXECUTION: f"fit at {PER_EXECUTION}"}
WORKLOADS = (DENSE, CONVOLUTIONS, EMBEDDING, SHARDED)

#: The variables that select the Keras of ``fit``.
KERAS: Mapping[str, Mapping[str, str]] = {"keras3": {}, "tf_keras": {"TF_USE_LEGACY_KERAS": "1"}}

_PLANNED = re.compile(r"progress .*\bsteps=(\d+)")
_RATE = re.compile(r"steps_per_second=(\S+)")


def measure(given: Namespace, folder: Path) -> Report:
    """Steps a second, ratios to ``fit``, and memory."""
    if not fashion.IMAGES.exists():
        sys.exit(f"{fashion.IMAGES} is missing: install Debian's package dataset-fashion-mnist")
    every = {f"{each.name}/{name}": (each, name) for each in WORKLOADS for name in each.strategies}
    if unknown := set(given.only or ()) - every.keys():
        sys.exit(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(every)}")
    if given.quick:
        bench = Bench(folder, rounds=1, train=0.1)
        rows = bench.compared(DENSE, "one_device", ["keras3"])
        return Report(rows, figures(rows) | bench.memory_figures(), [bench.memory])
    bench = Bench(folder, rounds=2, train=0.98)
    rows = [row for key in given.only or every for row in bench.compared(*every[key])]
    return Report(rows, figures(rows) | bench.memory_figures(), [bench.memory])


def figures(rows: Rows) -> dict[str, Any]:
    """The ratios of ``rows`` by name."""
    suffixes = {workload.name: workload.suffix for workload in WORKLOADS}
    named = {}
    for row in rows:
        name = f"{row['strategy']}_over_{row['fit of']}_fit"
        named[name + suffixes[row["model"]]] = row["ours / fit"]
        named[f"{name}_{SAME}{suffixes[row['model']]}"] = row[f"ours / fit at {PER_EXECUTION}"]
    return named


class Bench:
    """Runs jobs in ``folder``, and remembers the memory that replicas took.

    ``train`` is the share of the records that are trained on.
    """

    def __init__(self, folder: Path, rounds: int, train: float) -> None:
        self.memory: list[dict[str, Any]] = []
        self._folder = folder
        self._rounds = rounds
        self._jobs = Jobs(folder)
        self._train = train

    def compared(
        self, workload: Workload, strategy: str, flavours: Sequence[str] = tuple(KERAS)
    ) -> list[dict[str, Any]]:
        """A row for each Keras that supports ``strategy``, of medians over rounds in turns."""
        flavours = [each for each in flavours if strategy in FIT_WORKS[each]]
        contestants: dict[tuple[str, int], Callable[[], float | None]] = {
            ("ours", PER_EXECUTION): lambda: self._ours(workload, strategy),
            **{
                (flavour, many): partial(self._fit, workload, strategy, flavour, many)
                for flavour in flavours
                for many in STEPS
            },
        }
        rates = in_turns(contestants, self._rounds)
        ours = rates["ours", PER_EXECUTION]
        rows = []
        for flavour in flavours or [None]:
            row = {"model": workload.name, "strategy": strategy}
            row |= {"ours, steps/s": statistics.median(ours), "fit of": flavour}
            for many, title in STEPS.items():
                theirs = rates.get((flavour, many), [None])
                failed = None in theirs
                row[f"{title}, steps/s"] = None if failed else statistics.median(theirs)
                row[f"ours / {title}"] = None if failed else ratios(ours, theirs)
            print(row)
            rows.append(row)
        return rows

    def _ours(self, workload: Workload, strategy: str) -> float:
        job = self._jobs.of(workload, strategy, self._train)
        ended = run_job(job, self._folder)
        self._remember(job, "ours", workload, ended)
        [begin, end] = [when for when, line in ended.lines if line.startswith("epoch ")]
        [steps] = set(_PLANNED.findall(ended.text))
        return int(steps) / EPOCHS / (end - begin)

    def _fit(
        self, workload: Workload, strategy: str, flavour: str, per_execution: int
    ) -> float | None:
        """Steps a second; None if it fails."""
        job = self._jobs.of(workload, strategy, self._train)
        words = [str(per_execution)]
        keras = KERAS[flavour]
        ended = run_job(
            job, self._folder, "benchmarks.fit", words, environment=keras, may_fail=True
        )
        if per_execution == 1:  # as many rounds as ours
            self._remember(job, f"fit of {flavour}", workload, ended)
        if rate := _RATE.search(ended.text):
            return float(rate[1])
        print(ended.text[-2000:])
        return None

    def memory_figures(self) -> dict[str, list[float]]:
        """The memory of a chief over that of ``fit``, for the dense network on one device."""
        peaks = {
            row["by"]: row[PEAK]
            for row in self.memory
            if (row["model"], row["strategy"]) == (DENSE.name, "one_device")
        }
        if "fit of keras3" not in peaks:
            return {}
        return {"chief_memory_over_keras3_fit": ratios(peaks["ours"], peaks["fit of keras3"])}

    def _remember(self, job: Job, who: str, workload: Workload, ended: Ended) -> None:
        for name, mebibytes in ended.memory.items():
            row = {"model": workload.name, "strategy": job.strategy, "by": who, "replica": name}
            known = [each for each in self.memory if row.items() <= each.items()]
            if not known:
                known.append({**row, PEAK: []})
                self.memory += known
            known[0][PEAK].append(mebibytes)


if __name__ == "__main__":
    only = {"nargs": "+", "metavar": "MODEL/STRATEGY", "help": "these rows, such as dense/mirrored"}
    run(measure, __doc__, only=only)
