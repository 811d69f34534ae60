"""Training by this project, compared with ``fit`` of Keras 3 and of tf_keras.

The same job, model, batches and number of replicas, in real processes of this machine, one after
another in changing order, each training in its own processes: steps a second of the second of two
epochs. ``fit`` is run with one step per execution, which is its default, and with as many as ours.
``--quick`` trains the dense network on a tenth of the records, once for each strategy that ``fit``
supports.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from benchmarks.models import fashion
from benchmarks.replicas import Ended, run_job
from benchmarks.report import in_turns, median_ratio, print_origin, print_report, print_table
from benchmarks.workloads import (
    CONVOLUTIONS,
    DENSE,
    EMBEDDING,
    EPOCHS,
    FIT_WORKS,
    PER_EXECUTION,
    SHARDED,
    SPLITS,
    Jobs,
    Workload,
)

SAME = "same_steps_per_execution"
FIT = "benchmarks.fit"

#: The steps per execution of ``fit``, and their titles.
STEPS = {1: "fit", PER_EXECUTION: f"fit at {PER_EXECUTION}"}
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

#: Rounds of measurement.
ROUNDS = 2

#: The splits of ``--quick``, for fewer steps.
FEW = {"train": 0.1, "test": 0.9}

#: The variables that select the Keras of ``fit``.
KERAS: Mapping[str, Mapping[str, str]] = {"keras3": {}, "tf_keras": {"TF_USE_LEGACY_KERAS": "1"}}

_PLANNED = re.compile(r"progress .*\bsteps=(\d+)")
_RATE = re.compile(r"steps_per_second=(\S+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only the dense network, and fewer steps"
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
    print_origin()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), FEW if asked.quick else SPLITS)
        if asked.quick:
            rows = [
                row
                for strategy in FIT_WORKS["tf_keras"]
                for row in bench.compared(DENSE, strategy, flavours(strategy)[:1], rounds=1)
            ]
        else:
            rows = [
                row
                for workload, strategy in map(every.__getitem__, asked.only or every)
                for row in bench.compared(workload, strategy, flavours(strategy), ROUNDS)
            ]
        if not asked.quick and not asked.only:
            params = [row for workload in WORKLOADS[:2] for row in bench.params(workload)]
            for table in (bench.memory, params):
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


def flavours(strategy: str) -> list[str]:
    """The installed Keras versions whose ``fit`` supports ``strategy``."""
    installed = ["keras3", *(["tf_keras"] if find_spec("tf_keras") else [])]
    return [each for each in installed if strategy in FIT_WORKS[each]]


class Bench:
    """Runs jobs in ``folder``, and remembers the memory that replicas took."""

    def __init__(self, folder: Path, splits: Mapping[str, float]) -> None:
        self.memory: list[dict[str, Any]] = []
        self._folder = folder
        self._jobs = Jobs(folder, splits)

    def compared(
        self, workload: Workload, strategy: str, flavours: Sequence[str], rounds: int
    ) -> list[dict[str, Any]]:
        """A row for each Keras, of medians over ``rounds``, in which all take turns."""
        run = partial(self._fit, workload, strategy)
        contestants: dict[tuple[str, int], Callable[[], float]] = {
            ("ours", PER_EXECUTION): lambda: self._ours(workload, strategy),
            **{(each, many): partial(run, each, many) for each in flavours for many in STEPS},
        }
        rates = in_turns(contestants, rounds)
        ours = rates["ours", PER_EXECUTION]
        rows = []
        for flavour in flavours or ["–"]:
            row = {"model": workload.name, "strategy": strategy}
            row |= {"ours, steps/s": statistics.median(ours), "fit of": flavour}
            for many, title in STEPS.items():
                of_fit = rates.get((flavour, many), [0.0] * rounds)
                row[f"{title}, steps/s"], row[f"ours / {title}"] = _medians(ours, of_fit)
            print(row, file=sys.stderr)
            rows.append(row)
        return rows

    def params(self, workload: Workload) -> list[dict[str, Any]]:
        """Steps a second on one device with each of ``PARAMS``, over those without."""
        run = partial(self._ours, workload, "one_device")
        with_each = {
            f"{name}={value}": partial(run, **{name: value})
            for arguments in PARAMS
            for name, value in arguments.items()
        }
        rates = in_turns({"": run, **with_each}, ROUNDS)
        return [
            {"model": workload.name, "param": name, "over without": median_ratio(each, rates[""])}
            for name, each in rates.items()
            if name
        ]

    def _ours(self, workload: Workload, strategy: str, **arguments: Any) -> float:
        job = self._jobs.train(workload, strategy, **arguments)
        ended = run_job(job, self._folder, devices=DEVICES.get(strategy, 1))
        self._remember(job, "ours", workload, ended)
        [begin, end] = [each.seconds for each in ended.said if each.line.startswith("epoch ")]
        [steps] = set(_PLANNED.findall(ended.text))
        return int(steps) / EPOCHS / (end - begin)

    def _fit(self, workload: Workload, strategy: str, flavour: str, per_execution: int) -> float:
        """Steps a second; 0 if it fails."""
        job = self._jobs.train(workload, strategy)
        ended = run_job(
            job,
            self._folder,
            FIT,
            [str(per_execution)],
            devices=DEVICES.get(strategy, 1),
            environment=KERAS[flavour],
            may_fail=True,
        )
        self._remember(job, f"fit of {flavour}", workload, ended)
        rates = [float(rate) for rate in _RATE.findall(ended.text)]
        if not rates:
            print(ended.text[-2000:], file=sys.stderr)
        return sum(rates)

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
    ours, of_fit = zip(*pairs, strict=True)
    return statistics.median(of_fit), median_ratio(ours, of_fit)


if __name__ == "__main__":
    main()
