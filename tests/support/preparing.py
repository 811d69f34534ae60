"""``prepare`` as its DAG runs it: plan, each partition that is left, finalize."""

from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.data.prepare import finalize, partition, plan
from aerotrain.replica import Replica

MODULES = {"plan": plan, "partition": partition, "finalize": finalize}


def run_step(step: str, store: str, scratch: Path, **arguments: Any) -> Any:
    """The result of one step, run in this process with a scratch folder of its own."""
    folder = scratch / f"{step}-{arguments.get('partition', 0)}"
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(
        name=step,
        module=MODULES[step].__name__,
        store=store,
        run="run",
        task=step,
        arguments=arguments,
    )
    name = ReplicaName(Role.CHIEF, 0)
    return MODULES[step].run(Replica(job=job, name=name, attempt="1", scratch=folder))


def prepare(store: str, scratch: Path, module: str, **arguments: Any) -> str:
    """The URL of the finalized data set whose source is the user's ``module``."""
    return prepare_source(store, scratch, {"kind": "python", "module": module}, **arguments)


def prepare_source(store: str, scratch: Path, source: dict[str, Any], **arguments: Any) -> str:
    """The URL of the finalized data set of any source."""
    planned = run_step("plan", store, scratch, source=source, **arguments)
    for each in planned["partitions"]:
        run_step("partition", store, scratch, **each)
    url: str = run_step("finalize", store, scratch, dataset=planned["dataset"])
    return url
