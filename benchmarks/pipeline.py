"""What Airflow costs: the whole DAG run, compared with the sum of the same steps without Airflow.

The steps are the same jobs through the same launcher, one after another. A DAG of as many tasks
that do nothing shows how much of the cost is Airflow's own. An uncounted run of all three goes
first, unless ``--quick``; then the order changes from round to round.
"""

import os
import shutil
import time
from argparse import Namespace
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
from benchmarks.fault_injection import Training
from benchmarks.report import ROOT, Report, in_turns, run
from benchmarks.testbed import processes_in
from benchmarks.workloads import EXAMPLES
from devtools.home import Home
from devtools.stack import Stack, running_stack

DAG = "digits"

#: The tasks of that DAG, in the same order, which do nothing.
EMPTY = """
from airflow.sdk import BaseOperator, chain, dag

class Nothing(BaseOperator):
    def __init__(self, *, part=None, **kwargs):
        super().__init__(**kwargs)

    def execute(self, context):
        return [0, 1, 2, 3]

@dag(schedule=None)
def empty():
    names = ("check", "plan", "finalize", "train", "evaluate", "export")
    check, plan, *later = (Nothing(task_id=name) for name in names)
    chain(check, plan, Nothing.partial(task_id="partition").expand(part=plan.output), *later)

empty()
"""


def measure(given: Namespace, folder: Path) -> Report:
    """Seconds of DAG runs, and of the same steps without Airflow."""
    quick = {"epochs": 1, "threshold": 0.0}
    conf = quick if given.quick else {"strategy": "parameter_server"}
    home = Home(folder / "home")
    with running_stack(home, project_in(folder)) as stack:
        stack.wait_for_dag(DAG)
        stack.wait_for_dag("empty")
        # Each run of a contestant has another number of shards, so another data set to prepare.
        contestants = {
            "dag": partial(_steps_in_airflow, stack, DAG, conf, count(5)),
            "empty": partial(_steps_in_airflow, stack, "empty", {}, count(5)),
            "bare": partial(_steps_bare, stack, home, conf, count(5)),
        }
        results = in_turns(contestants, 1 if given.quick else 3, warm=not given.quick)
    rows = [
        {
            "DAG run, s": dag,
            "empty DAG, s": empty,
            **{f"{step}, s": seconds for step, seconds in bare.items()},
            "bare sum, s": sum(bare.values()),
            "ratio": dag / sum(bare.values()),
            "with empty": dag / (empty + sum(bare.values())),
        }
        for dag, empty, bare in zip(*results.values(), strict=True)
    ]
    figures = {"dag_over_bare": "ratio", "dag_over_bare_and_empty": "with empty"}
    return Report(rows, {name: [row[each] for row in rows] for name, each in figures.items()})


def project_in(folder: Path) -> Path:
    """A project with the DAGs of this one, and the empty one."""
    project = folder / "project"
    shutil.copytree(ROOT / "dags", project / "dags")
    (project / "dags" / "empty.py").write_text(EMPTY)
    for name in ("tasks", "plugins"):
        (project / name).symlink_to(ROOT / name)
    return project


def _steps_in_airflow(
    stack: Stack, dag: str, conf: Mapping[str, Any], shards: Iterator[int]
) -> float:
    """Seconds from the start to the end of a DAG run, by Airflow's own timestamps."""
    run_id = stack.api.trigger(dag, {**conf, "shards": next(shards)})
    while (state := stack.api.run_state(dag, run_id)) not in ("success", "failed"):
        time.sleep(1)  # each request slows down the measured Airflow a little
    if state == "failed":
        raise RuntimeError(f"{run_id} failed")
    begins, ends = (
        [
            datetime.fromisoformat(each[name]).timestamp()
            for each in stack.api.task_instances(dag, run_id)
            if each[name]
        ]
        for name in ("queued_when", "end_date")
    )
    return max(ends) - min(begins)


def _steps_bare(
    stack: Stack, home: Home, conf: Mapping[str, Any], shards: Iterator[int]
) -> dict[str, float]:
    """Seconds of each step, by the same launcher and on the same store."""
    os.environ.update(stack.s3.environment)
    launcher, number = processes_in(home.scratch / "bare"), next(shards)
    seconds: dict[str, float] = {}

    def result_of(job: Job) -> Any:
        """Run a job to its end."""
        begin = time.monotonic()
        with Training(launcher, job, "bare") as running:
            if running.end.result().state is not State.SUCCEEDED:
                raise RuntimeError(running.tail())
        seconds[job.task] = seconds.get(job.task, 0.0) + time.monotonic() - begin
        return Result.from_json(open_store(job.prefix).get("result.json")).value

    def job(task: str, module: str, arguments: Mapping[str, Any], **more: Any) -> Job:
        described = {
            "name": task.replace(".", "-"),
            "module": f"aerotrain.{module}",
            "store": "s3://aerotrain/bare",
            "run": f"shards-{number}",
            "task": task,
            "code": str(EXAMPLES),
            "arguments": arguments,
        }
        return Job.from_dict({**described, **more})

    def prepare(step: str, arguments: Mapping[str, Any]) -> Any:
        return result_of(job(f"prepare.{step}", f"data.prepare.{step}", arguments))

    def training(data: str) -> Job:
        strategy = conf.get("strategy", "one_device")
        others = [{"role": "worker", "count": 2}, {"role": "ps"}]
        return job(
            "train",
            "training.train",
            {
                "model": DAG,
                "data": data,
                "epochs": conf.get("epochs", 12),
                "hparams": {"learning_rate": 0.001},
            },
            strategy=strategy,
            replicas=[{"role": "chief"}, *([] if strategy == "one_device" else others)],
        )

    plan = {"source": {"kind": "python", "module": DAG}, "shards": number}
    result_of(check_of(training(""), plan, name="check", task="check"))
    planned = prepare("plan", plan)
    for partition in planned["partitions"]:
        prepare("partition", partition)
    data = prepare("finalize", {"output": planned["output"]})
    model = result_of(training(data))
    for task, module in {"evaluate": "evaluation.evaluate", "export": "serving.export"}.items():
        result_of(job(task, module, {"model": model, "data": data}))
    return seconds


if __name__ == "__main__":
    run(measure, __doc__)
