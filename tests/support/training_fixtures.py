"""Fixtures of tests that train: a prepared data set, and jobs on it in real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from benchmarks import workloads

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.job import Deadlines, Job
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.steps import ARGUMENTS
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import Dataset
from aerotrain.replica import Replica
from aerotrain.standalone import CHIEF, prepare
from aerotrain.supervisor.ports import reserved_addresses
from support.forked import Forked
from support.waiting import wait_for


def module_of(step: str) -> str:
    """The module of a step, such as ``train`` or ``data.prepare.plan``."""
    return next(each for each in ARGUMENTS if each.endswith(f".{step}"))


MODELS = Path(__file__).parents[1] / "models"
DIGITS = Path(__file__).parents[2] / "dags" / "models"

#: A process whose output a test reads, and which it waits for and ends.
Process = Forked | subprocess.Popen[str]


@dataclass(frozen=True)
class Pipeline:
    """A store in a folder with the digits in it, and jobs that use them."""

    folder: Path
    data: str
    started: list[str] = field(default_factory=list)

    @property
    def store(self) -> str:
        return (self.folder / "store").as_uri()

    def replica(self, module: str, run: str, **arguments: Any) -> Replica:
        """The only replica of a job, to be run in this process."""
        job = self.job(module, run, arguments)
        self.started.append(run)
        scratch = self.folder / "scratch" / f"{run}-{job.task}-{len(self.started)}"
        scratch.mkdir(parents=True)
        return Replica(job=job, name=CHIEF, attempt="1", scratch=scratch)

    def job(
        self,
        module: str,
        run: str,
        arguments: Mapping[str, Any],
        *,
        code: Path = MODELS,
        **other: Any,
    ) -> Job:
        return Job(
            name="test",
            module=module_of(module),
            store=self.store,
            run=run,
            task=module.rpartition(".")[2],
            arguments=arguments,
            code=str(code),
            **other,
        )

    @contextmanager
    def cluster(
        self,
        run: str,
        *,
        strategy: str = "parameter_server",
        code: Path = MODELS,
        evaluator: bool = False,
        ps: int = 1,
        progress_timeout: float = 60,
        **arguments: Any,
    ) -> Iterator[dict[str, Process]]:
        """Replicas that train, each a process in a folder of its own.

        A chief, two workers and ``ps`` ps; or a chief and one worker, if workers are the chief's
        peers.
        """
        peers = STRATEGIES[strategy].peers
        workers = ReplicaSpec(role=Role.WORKER, count=1 if peers else 2)
        job = self.job(
            "train",
            run,
            {"data": self.data, **arguments},
            strategy=strategy,
            code=code,
            deadlines=Deadlines(progress_timeout=progress_timeout),
            replicas=(
                ReplicaSpec(role=Role.CHIEF),
                workers,
                *([] if peers else [ReplicaSpec(role=Role.PS, count=ps)]),
                *([ReplicaSpec(role=Role.EVALUATOR)] if evaluator else []),
            ),
        )
        self.started.append(run)
        with ExitStack() as stack:
            addresses, _ = stack.enter_context(reserved_addresses(job))
            processes = {}
            for name in job.names():
                scratch = self.folder / "scratch" / f"{run}-{len(self.started)}" / str(name)
                scratch.mkdir(parents=True)
                environment = replica_environment(job, name, addresses, attempt="1")
                process = start_python(["-m", "aerotrain.replica"], scratch, environment)
                processes[str(name)] = stack.enter_context(process)
                stack.callback(process.kill)
            yield processes


def start_python(
    words: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Process:
    """Run ``python WORDS`` as ``start`` does, but with TensorFlow already imported."""
    return Forked(words, folder, _environment(environment))


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """This process's environment and import path, and some more variables."""
    return {**os.environ, **(more or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Started(subprocess.Popen[str]):
    """A process that is killed if its test fails: leaving its scope waits for its end."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def start(words: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> Started:
    """A fresh process that can import what this one can, with its output in one pipe of lines."""
    return Started(
        words,
        cwd=folder,
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def suspend(process: Process) -> None:
    """Freeze the process, unless it has ended: SIGSTOP, of which it gets no notice."""
    states = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    process.send_signal(signal.SIGSTOP)
    with suppress(psutil.NoSuchProcess):
        stopped = psutil.Process(process.pid)
        wait_for("SIGSTOP", lambda: stopped.status() in states, seconds=60)


def read_until(process: Process, words: str) -> str:
    """The output up to and including the first line that contains ``words``."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it ended without a word of {words!r}:\n{said}")


@pytest.fixture(scope="session")
def models() -> Iterator[None]:
    """The users' modules, importable as in a replica."""
    added = [str(MODELS), str(DIGITS)]
    sys.path[:0] = added
    yield
    for each in added:
        sys.path.remove(each)


@pytest.fixture(scope="session")
def prepared_digits(models: None, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline whose data set of digits is prepared: 4 shards of each split."""
    empty = Pipeline(tmp_path_factory.mktemp("digits"), data="")
    data = prepare(empty.store, empty.folder / "scratch", "digits", shards=4)
    return Pipeline(empty.folder, data)


@pytest.fixture(scope="module")
def digits(prepared_digits: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The prepared digits, with a store of each test file's own: names of runs may be the same."""
    return Pipeline(tmp_path_factory.mktemp("store"), prepared_digits.data)


@pytest.fixture(scope="module")
def keyed(models: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Records with a key each, and a model that counts how often it was trained on each."""
    empty = Pipeline(tmp_path_factory.mktemp("keyed"), data="")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(workloads.MODELS))
        data = prepare(empty.store, empty.folder / "prepare", "keyed", splits={"train": 1.0})
        yield replace(empty, data=data)


def counted(said: str) -> list[tuple[int, int, int]]:
    """Of each epoch its number, and how many keys were lost, and trained twice."""
    found = re.findall(r"counted: epoch (\d+), (\d+) lost, (\d+) twice", said)
    return [(int(epoch), int(lost), int(twice)) for epoch, lost, twice in found]


@pytest.fixture(scope="session")
def trained(prepared_digits: Pipeline) -> str:
    """The URL of a small model that was trained on the digits in this process."""
    from aerotrain.training.train import run

    data = prepared_digits.data
    url = run(prepared_digits.replica("train", "trained", model="small", data=data, epochs=6))
    assert url is not None
    return url


#: The results of some steps of one replica: metrics, weights and counters by name.
Steps = dict[str, np.ndarray]


def steps_of_replicas(
    jobs: Sequence[tuple[Job, int]], folder: Path, devices: int
) -> list[list[Steps]]:
    """The results of each job's first steps, of every replica: see ``replica_steps.py``.

    The jobs have the same replicas, and each replica is one process that runs all of them, because
    a process costs more than the steps. ``devices`` is its number of virtual CPU devices.
    """
    first = jobs[0][0]
    words = [word for job, steps in jobs for word in (str(steps), job.to_json())]
    with ExitStack() as stack:
        addresses, _ = stack.enter_context(reserved_addresses(first))
        processes = []
        for name in first.names():
            own = folder / str(name)
            own.mkdir(parents=True)
            script = str(Path(__file__).parent / "replica_steps.py")
            environment = replica_environment(first, name, addresses, attempt="1")
            process = start_python([script, str(own), str(devices), *words], own, environment)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            said = process.communicate(timeout=120 + 60 * len(jobs))[0]
            assert process.returncode == 0, said
    return [
        [dict(np.load(folder / str(name) / f"{number}.npz")) for name in first.names()]
        for number in range(len(jobs))
    ]


def said_of_shared_steps(models: Sequence[str], folder: Path) -> dict[str, str]:
    """What ``shared_steps.py`` prints about each of the models, ``"MODULE: NAME"``."""
    script = str(Path(__file__).parent / "shared_steps.py")
    with start_python([script, *models], folder) as process:
        output = process.communicate(timeout=1500)[0]
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"model"')]
    assert [line["model"] for line in lines] == list(models), output
    return {line["model"]: line["said"] for line in lines}


def input_pipeline_of(replica: Replica, dataset: Dataset, code: Any) -> Any:
    """The input pipeline that feeds the steps of the replica's job."""
    # This import loads TensorFlow, which most tests do not need.
    from aerotrain.training.input_pipeline import InputPipeline

    arguments = TrainArguments.from_dict(replica.job.arguments)
    return InputPipeline(
        job=replica.job,
        arguments=arguments,
        dataset=dataset,
        code=code,
        scratch=replica.scratch,
    )
