"""Fixtures of tests that train: a prepared data set, and jobs on it in real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.job import Job, ReplicaSpec, Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.data.dataset import Dataset
from aerotrain.replica import Replica
from aerotrain.standalone import CHIEF, free_addresses, prepare
from support.forked import Forked

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
            module=f"aerotrain.{module}",
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
            replicas=(
                ReplicaSpec(role=Role.CHIEF),
                workers,
                *([] if peers else [ReplicaSpec(role=Role.PS, count=ps)]),
                *([ReplicaSpec(role=Role.EVALUATOR)] if evaluator else []),
            ),
        )
        self.started.append(run)
        addresses = free_addresses(job)
        with ExitStack() as stack:
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
    """Run ``python WORDS`` as ``start`` does, but with TensorFlow already imported.

    For tf_keras it starts a fresh process, because the import of TensorFlow chooses the Keras.
    """
    wanted = _environment(environment)
    if "TF_USE_LEGACY_KERAS" in wanted:
        return start([sys.executable, *words], folder, environment)
    return Forked(words, folder, wanted)


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """This process's environment and import path, and some more variables."""
    return {**os.environ, **(more or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(
    words: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A fresh process that can import what this one can, with its output in one pipe of lines."""
    return subprocess.Popen(
        words,
        cwd=folder,
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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
def digits(models: None, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline whose data set of digits is prepared: 4 shards of each split."""
    empty = Pipeline(tmp_path_factory.mktemp("digits"), data="")
    data = prepare(empty.store, empty.folder / "scratch", "digits", shards=4)
    return Pipeline(empty.folder, data)


@pytest.fixture(scope="session")
def trained(digits: Pipeline) -> str:
    """The URL of a small model that was trained on the digits in this process."""
    from aerotrain.train import run

    url = run(digits.replica("train", "trained", model="small", data=digits.data, epochs=6))
    assert url is not None
    return url


def steps_of_replicas(
    job: Job, folder: Path, devices: int, steps: int
) -> list[dict[str, np.ndarray]]:
    """The results of some steps of the job, run in processes of its own: see ``replica_steps.py``.

    ``devices`` is the number of virtual CPU devices of each replica.
    """
    addresses = free_addresses(job)
    with ExitStack() as stack:
        processes = []
        for name in job.names():
            (folder / str(name)).mkdir(parents=True)
            script = str(Path(__file__).parent / "replica_steps.py")
            words = [job.to_json(), f"{folder}/{name}.npz", str(devices), str(steps)]
            environment = replica_environment(job, name, addresses, attempt="1")
            process = start_python([script, *words], folder / str(name), environment)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            said = process.communicate(timeout=120)[0]
            assert process.returncode == 0, said
    return [dict(np.load(folder / f"{name}.npz")) for name in job.names()]


def said_of_shared_steps(
    module: str, names: Iterable[str], folder: Path, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What ``shared_steps.py`` prints about each of the models of those names in ``module``."""
    script = str(Path(__file__).parent / "shared_steps.py")
    with start_python([script, module, *names], folder, environment) as process:
        output = process.communicate(timeout=1500)[0]
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"model"')]
    assert [line["model"] for line in lines] == list(names), output
    return {line["model"]: line["said"] for line in lines}


def input_pipeline_of(replica: Replica, dataset: Dataset, code: Any) -> Any:
    """The input pipeline that feeds the steps of the replica's job."""
    # This import loads TensorFlow, which most tests do not need.
    from aerotrain.training.input_pipeline import InputPipeline

    arguments = TrainArguments.of(replica.job.arguments)
    return InputPipeline(
        job=replica.job,
        arguments=arguments,
        dataset=dataset,
        code=code,
        scratch=replica.scratch,
    )
