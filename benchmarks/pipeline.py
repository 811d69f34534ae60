"""What Airflow costs: the whole DAG run, compared with the sum of the same steps without Airflow.

The steps are the same jobs through the same launcher, one after another. Airflow is warm: one
uncounted run goes first, unless ``--quick``.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from aerotrain.contract.status import Result, State
from aerotrain.store import open_store
from aerotrain_airflow.backends.launcher import Launcher
from aerotrain_airflow.backends.process.backend import ProcessBackend
from benchmarks.report import print_report
from devtools.home import Home
from devtools.stack import Stack, running_stack

PROJECT = Path(__file__).parent.parent
DAG = "digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one pair of one epoch, without an uncounted run"
    )
    quick = parser.parse_args().quick
    conf = {"strategy": "one_device", "epochs": 1, "threshold": 0.0} if quick else {}
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        with running_stack(home, PROJECT) as stack:
            stack.wait_for_dag(DAG)
            if not quick:
                _seconds_in_airflow(stack, conf)
            pairs = []
            for pair in range(1 if quick else 3):
                # A different number of shards makes a different data set, which both have to
                # prepare.
                own = {**conf, "shards": 5 + pair}
                pairs.append((_seconds_in_airflow(stack, own), _steps_bare(stack, home, own)))
    rows = [
        {
            "DAG run, s": dag,
            **{f"{step}, s": seconds for step, seconds in steps.items()},
            "bare sum, s": sum(steps.values()),
            "ratio": dag / sum(steps.values()),
        }
        for dag, steps in pairs
    ]
    print_report(rows, {"dag_over_bare": statistics.median(row["ratio"] for row in rows)})


def _seconds_in_airflow(stack: Stack, conf: Mapping[str, Any]) -> float:
    """From the start to the end of a DAG run, by Airflow's own timestamps."""
    run = stack.api.trigger(DAG, conf)
    while (state := stack.api.run_state(DAG, run)) not in ("success", "failed"):
        time.sleep(1)  # each request slows down the measured Airflow a little
    if state == "failed":
        raise RuntimeError(f"{run} failed")
    tasks = stack.api.task_instances(DAG, run)
    end = max(_time(each["end_date"]) for each in tasks if each["end_date"])
    return end - min(_time(each["queued_when"]) for each in tasks if each["queued_when"])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _steps_bare(stack: Stack, home: Home, conf: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each step, by the same launcher and on the same store."""
    bare = _Bare(stack, home, run=f"shards-{conf['shards']}")
    parameter_server = conf.get("strategy") != "one_device"
    source = {"kind": "python", "module": DAG}
    plan = {"source": source, "shards": conf["shards"]}
    planned = bare.step("prepare.plan", "aerotrain.data.prepare.plan", plan)
    for partition in planned["partitions"]:
        bare.step("prepare.partition", "aerotrain.data.prepare.partition", partition)
    data = bare.step(
        "prepare.finalize", "aerotrain.data.prepare.finalize", {"dataset": planned["dataset"]}
    )
    training = {"model": DAG, "data": data, "epochs": conf.get("epochs", 12)}
    workers = [{"role": "worker", "count": 2}, {"role": "ps"}]
    model = bare.step(
        "train",
        "aerotrain.train",
        {**training, "hparams": {"learning_rate": 0.001}},
        strategy="parameter_server" if parameter_server else "one_device",
        replicas=[{"role": "chief"}, *(workers if parameter_server else [])],
    )
    bare.step("evaluate", "aerotrain.evaluate", {"model": model, "data": data})
    bare.step("export", "aerotrain.export", {"model": model, "data": data})
    return bare.seconds


class _Bare:
    """Runs jobs one after another, and measures the seconds of each step."""

    def __init__(self, stack: Stack, home: Home, run: str) -> None:
        self.seconds: dict[str, float] = {}
        self._run = run
        self._environment = {**os.environ, **stack.s3.environment}
        paths = [str(PROJECT / "tasks"), str(PROJECT / "plugins")]
        self._launcher = Launcher(
            ProcessBackend(
                home.scratch / "bare",
                {**self._environment, "PYTHONPATH": os.pathsep.join(paths)},
                holder="bare",
                warm=True,
            )
        )

    def step(self, task: str, module: str, arguments: Mapping[str, Any], **more: Any) -> Any:
        """Run one job to its end; returns its result."""
        job = Job.from_dict(
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
        self.seconds[task] = self.seconds.get(task, 0.0) + time.monotonic() - begin
        return Result.from_json(open_store(job.prefix, self._environment).get("result.json")).value


if __name__ == "__main__":
    main()
