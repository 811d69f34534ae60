"""Training as this project does it, beside ``fit`` of Keras 3 and of tf_keras.

The same job, model, batches and number of replicas, in real processes of this machine, one
after another: steps a second of the second of two epochs. ``fit`` is run with one step per
execution, which is its default, and with as many as ours.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job, Replica, ReplicaName, Role
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.prepare import part, plan, seal
from aerotrain.replica import Replica as Running
from benchmarks.models import fashion
from benchmarks.replicas import Ended, run_job
from benchmarks.report import print_report, print_table
from benchmarks.tf_keras import make_environment

MODELS = Path(__file__).parent / "models"
PER_EXECUTION = 50
SAME = "same_steps_per_execution"
BATCH = 32
EPOCHS = 2

#: CPU devices by strategy, 1 where nothing is said: there are no others here to mirror on.
DEVICES = {"mirrored": 2, "central_storage": 2}

#: Arguments of the training that a strategy needs besides, to do on two devices what they do.
ALSO = {"dtensor": {"mesh": {"batch": 2}}}

#: Params of a training, each of which is measured beside the same job without it.
PARAMS: Sequence[Mapping[str, Any]] = (
    {"steps_per_execution": 1},
    {"jit_compile": True},
    {"accumulate_steps": 4},
    {"precision": "mixed_bfloat16"},
)

#: How often all is measured, by strategy: what takes more than a process is measured once.
ROUNDS = {"one_device": 2}

#: Steps of each of the two epochs that ``fit`` is given.
FIT_STEPS = {"parameter_server": 300}
FIT_STEPS_ELSE = 600

_PLANNED = re.compile(r"progress .*\bsteps=(\d+)")
_RATE = re.compile(r"steps_per_second=(\S+)")

#: Strategies by the Keras whose ``fit`` works under them, of those that are compared.
FIT_WORKS = {
    "keras3": ("one_device", "mirrored"),
    "tf_keras": ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server"),
}


@dataclass(frozen=True)
class Workload:
    """A model and its data, and the strategies that train it; ``suffix`` ends its figures."""

    name: str
    module: str
    suffix: str
    strategies: Sequence[str]
    hparams: Mapping[str, Any]


EVERY = (*FIT_WORKS["tf_keras"], "central_storage", "dtensor")
DENSE = Workload("dense", "fashion", "", EVERY, {})
CONVOLUTIONS = {"convolutions": True}
WORKLOADS = (
    DENSE,
    Workload("convolutions", "fashion", "_convolutions", ("one_device",), CONVOLUTIONS),
    Workload("embedding", "words", "_embedding", ("one_device", "parameter_server"), {}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one device beside Keras 3 alone")
    quick = parser.parse_args().quick
    if not fashion.IMAGES.exists():
        sys.exit(f"{fashion.IMAGES} is missing: install Debian's package dataset-fashion-mnist")
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        if quick:
            rows = bench.compared(DENSE, "one_device", ["keras3"], rounds=1)
            print_report(rows, figures(rows))
            return
        rows = [
            row
            for workload in WORKLOADS
            for strategy in workload.strategies
            for row in bench.compared(
                workload, strategy, bench.flavours(strategy), ROUNDS.get(strategy, 1)
            )
        ]
        print_table(bench.memory)
        print()
        print_table([bench.shares(workload) for workload in WORKLOADS])
        print()
        print_table([row for workload in WORKLOADS[:2] for row in bench.params(workload)])
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
        self._runs = 0
        self._data: dict[str, str] = {}
        sys.path.insert(0, str(MODELS))

    def flavours(self, strategy: str) -> list[str]:
        """The Keras whose ``fit`` can be run beside ``strategy``."""
        known = [each for each in FIT_WORKS if strategy in FIT_WORKS[each]]
        return [each for each in known if each == "keras3" or self._tf_keras]

    @cached_property
    def _tf_keras(self) -> dict[str, Any] | None:
        made = make_environment(self._folder / "tf_keras")
        if isinstance(made, str):
            print(f"tf_keras is left out, for it needs an environment of its own: {made}\n")
            return None
        python, environment = made
        return {"python": python, "environment": environment}

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
        job = self._job(workload, strategy, **arguments)
        ended = run_job(job, self._folder, devices=DEVICES.get(strategy, 1))
        self._remember(job, "ours", workload, ended)
        [begin, end] = [each.seconds for each in ended.said if each.line.startswith("epoch ")]
        [steps] = {each[1] for said in ended.said if (each := _PLANNED.search(said.line))}
        return int(steps) / EPOCHS / (end - begin)

    def _fit(self, workload: Workload, strategy: str, flavour: str) -> tuple[float, ...]:
        """Steps a second with one step per execution, and with as many as ours; 0 if it fails."""
        job = self._job(workload, strategy)
        ended = run_job(
            job,
            self._folder,
            "benchmarks.fit",
            ["1", str(PER_EXECUTION)],
            devices=DEVICES.get(strategy, 1),
            may_fail=True,
            **((self._tf_keras or {}) if flavour == "tf_keras" else {}),
        )
        self._remember(job, f"fit of {flavour}", workload, ended)
        rates = [float(each[1]) for said in ended.said if (each := _RATE.search(said.line))]
        if len(rates) < 2:
            print(*(each.line for each in ended.said[-20:]), file=sys.stderr)
        return (*rates, 0.0, 0.0)[:2]

    def shares(self, workload: Workload) -> dict[str, Any]:
        """What a step on one device is made of."""
        ended = run_job(self._job(workload, "one_device"), self._folder, "benchmarks.shares")
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

    def _remember(self, job: Job, who: str, workload: Workload, ended: Ended) -> None:
        for name, mebibytes in ended.memory.items():
            row = {"model": workload.name, "strategy": job.strategy, "by": who, "replica": name}
            known = [each for each in self.memory if row.items() <= each.items()]
            if not known:
                self.memory.append({**row, "peak memory, MiB": round(mebibytes)})

    def _job(self, workload: Workload, strategy: str, **more: Any) -> Job:
        if workload.module not in self._data:
            self._data[workload.module] = self._prepared(workload.module)
        rules = STRATEGIES[strategy]
        replicas = [Replica(role=Role.CHIEF)]
        for role, count in ((Role.WORKER, rules.workers), (Role.PS, rules.ps)):
            replicas += [Replica(role=role, count=count)] if count else []
        self._runs += 1
        arguments = {
            "model": workload.module,
            "data": self._data[workload.module],
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "steps_per_execution": PER_EXECUTION,
            "hparams": {**workload.hparams, "fit_steps": FIT_STEPS.get(strategy, FIT_STEPS_ELSE)},
            **ALSO.get(strategy, {}),
            **more,
        }
        return self._any_job(
            "train", f"run-{self._runs}", arguments, strategy=strategy, replicas=tuple(replicas)
        )

    def _any_job(self, module: str, run: str, arguments: Mapping[str, Any], **more: Any) -> Job:
        return Job(
            name="strategies",
            module=f"aerotrain.{module}",
            store=(self._folder / "store").as_uri(),
            run=run,
            task=module.rpartition(".")[2],
            arguments=arguments,
            code=str(MODELS),
            **more,
        )

    def _prepared(self, module: str) -> str:
        """The URL of the data set that ``module`` is the source of; nearly all is to train on."""

        def running(step: str, arguments: Mapping[str, Any]) -> Running:
            scratch = Path(tempfile.mkdtemp(dir=self._folder))
            job = self._any_job(f"prepare.{step}", module, arguments)
            chief = ReplicaName(Role.CHIEF, 0)
            return Running(job=job, name=chief, attempt="1", scratch=scratch)

        source = {"kind": "python", "module": module}
        splits = {"train": 0.98, "test": 0.02}
        with redirect_stdout(sys.stderr):
            planned = plan.run(running("plan", {"source": source, "splits": splits, "shards": 4}))
            for arguments in planned["parts"]:
                part.run(running("part", arguments))
            return seal.run(running("seal", {"dataset": planned["dataset"]}))


def _medians(ours: Sequence[float], of_fit: Sequence[float]) -> tuple[Any, Any]:
    """Of the rates of ``fit``, and of the ratios of ours to them, where ``fit`` did not fail."""
    pairs = [(one, other) for one, other in zip(ours, of_fit, strict=True) if other]
    if not pairs:
        return "–", "–"
    ratios = [one / other for one, other in pairs]
    return statistics.median(other for _, other in pairs), statistics.median(ratios)


if __name__ == "__main__":
    main()
