"""What Airflow costs: the whole DAG run, compared with the sum of the same steps without Airflow.

The steps are the same jobs through the same launcher, one after another. An uncounted run of both
goes first, unless ``--quick``; then the order changes from pair to pair.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from aerotrain.contract.status import Result, State
from aerotrain.contract.steps import check_of
from aerotrain.store import open_store
from benchmarks.report import ROOT as PROJECT
from benchmarks.report import in_turns, print_origin, print_report
from benchmarks.testbed import processes_in
from devtools.home import Home
from devtools.stack import Stack, running_stack

DAG = "digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one pair of one epoch, without an uncounted run"
    )
    quick = parser.parse_args().quick
    print_origin()
    conf = {"strategy": "one_device", "epochs": 1, "threshold": 0.0} if quick else {}
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        with running_stack(home, PROJECT) as stack:
            stack.wait_for_dag(DAG)
            # Each run of a contestant has another number of shards, so another data set to prepare.
            contestants = {
                "dag": partial(_steps_in_airflow, stack, conf, count(5)),
                "bare": partial(_steps_bare, stack, home, conf, count(5)),
            }
            if not quick:
                in_turns(contestants, 1)
            results = in_turns(contestants, 1 if quick else 3)
    rows = [
        {
            **dag,
            **{f"{step}, s": seconds for step, seconds in bare.items()},
            "bare sum, s": sum(bare.values()),
            "ratio": dag["DAG run, s"] / sum(bare.values()),
        }
        for dag, bare in zip(results["dag"], results["bare"], strict=True)
    ]
    print_report(rows, {"dag_over_bare": statistics.median(row["ratio"] for row in rows)})


def _steps_in_airflow(
    stack: Stack, conf: Mapping[str, Any], shards: Iterator[int]
) -> dict[str, float]:
    """Seconds from the start to the end of a DAG run, by Airflow's own timestamps."""
    run = stack.api.trigger(DAG, {**conf, "shards": next(shards)})
    while (state := stack.api.run_state(DAG, run)) not in ("success", "failed"):
        time.sleep(1)  # each request slows down the measured Airflow a little
    if state == "failed":
        raise RuntimeError(f"{run} failed")
    tasks = stack.api.task_instances(DAG, run)
    end = max(_time(each["end_date"]) for each in tasks if each["end_date"])
    begin = min(_time(each["queued_when"]) for each in tasks if each["queued_when"])
    return {"DAG run, s": end - begin}


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _steps_bare(
    stack: Stack, home: Home, conf: Mapping[str, Any], shards: Iterator[int]
) -> dict[str, float]:
    """Seconds of each step, by the same launcher and on the same store."""
    number = next(shards)
    bare = _Bare(stack, home, run=f"shards-{number}")
    plan = {"source": {"kind": "python", "module": DAG}, "shards": number}
    training = partial(bare.training, conf.get("strategy"), conf.get("epochs", 12))
    bare.run(check_of(training(""), plan, name="check", task="check"))
    planned = bare.step("prepare.plan", "aerotrain.data.prepare.plan", plan)
    for partition in planned["partitions"]:
        bare.step("prepare.partition", "aerotrain.data.prepare.partition", partition)
    data = bare.step(
        "prepare.finalize", "aerotrain.data.prepare.finalize", {"dataset": planned["dataset"]}
    )
    model = bare.run(training(data))
    bare.step("evaluate", "aerotrain.evaluation.evaluate", {"model": model, "data": data})
    bare.step("export", "aerotrain.serving.export", {"model": model, "data": data})
    return bare.seconds


class _Bare:
    """Runs jobs one after another, and measures the seconds of each step."""

    def __init__(self, stack: Stack, home: Home, run: str) -> None:
        self.seconds: dict[str, float] = {}
        self._run = run
        os.environ.update(stack.s3.environment)
        self._launcher = processes_in(home.scratch / "bare")

    def training(self, strategy: str | None, epochs: int, data: str) -> Job:
        """The training of the DAG; ``parameter_server`` is its default strategy."""
        workers = [{"role": "worker", "count": 2}, {"role": "ps"}]
        return self._job(
            "train",
            "aerotrain.training.train",
            {"model": DAG, "data": data, "epochs": epochs, "hparams": {"learning_rate": 0.001}},
            strategy=strategy or "parameter_server",
            replicas=[{"role": "chief"}, *([] if strategy == "one_device" else workers)],
        )

    def step(self, task: str, module: str, arguments: Mapping[str, Any]) -> Any:
        """Run a job of one replica to its end; returns its result."""
        return self.run(self._job(task, module, arguments))

    def _job(self, task: str, module: str, arguments: Mapping[str, Any], **more: Any) -> Job:
        return Job.from_dict(
            {
                "name": task.replace(".", "-"),
                "module": module,
                "store": "s3://aerotrain/bare",
                "run": self._run,
                "task": task,
                "code": str(PROJECT / "dags" / "models"),
                "arguments": arguments,
                **more,
            }
        )

    def run(self, job: Job) -> Any:
        """Run a job to its end; returns its result."""
        begin = time.monotonic()
        address = self._launcher.start(self._launcher.plan(job, "bare"))
        try:
            lines: list[str] = []
            watched = self._launcher.watch(
                address, lambda line: lines.append(str(line)), until=None
            )
            if watched is None or watched.state is not State.SUCCEEDED:
                raise RuntimeError("\n".join(lines))
        finally:
            self._launcher.stop(address)
        self.seconds[job.task] = self.seconds.get(job.task, 0.0) + time.monotonic() - begin
        return Result.from_json(open_store(job.prefix).get("result.json")).value


if __name__ == "__main__":
    main()
