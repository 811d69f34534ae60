"""Replica groups of local processes that a test watches as a task try does, and damages."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fault_injection import Training, processes_of, replica_pid

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Job
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend, ProcessPlan
from aerotrain.launch.process.supervisor_client import ForkServer, holder_of
from aerotrain.store import open_store
from aerotrain.supervisor.processes import send
from support.training_fixtures import Started

__all__ = [
    "ALONE",
    "GANG",
    "SERVED",
    "Live",
    "job",
    "process_launcher",
    "processes_of",
    "replica_environment",
    "replica_pid",
    "task",
]


SERVED = {
    "strategy": "parameter_server",
    "replicas": [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "ps"}],
}
GANG = {
    "strategy": "multi_worker_mirrored",
    "replicas": [{"role": "chief"}, {"role": "worker", "count": 2}],
}
ALONE = {"strategy": "one_device", "replicas": [{"role": "chief"}]}


def job(folder: Path, formation: dict[str, Any], arguments: dict[str, Any], **more: Any) -> Job:
    """A job whose chief succeeds once the replicas that ``awaited`` names have started so often."""
    return Job.from_dict(
        {
            "name": "job",
            "module": "small_jobs",
            "code": str(Path(__file__).parents[1] / "jobs"),
            "store": (folder / "store").as_uri(),
            "run": "run",
            "task": "job",
            "arguments": {"chief": "await_return", **arguments},
            **formation,
            **more,
        }
    )


def replica_environment() -> dict[str, str]:
    """The environment of a test's replicas: they can import what this process can."""
    root = Path(__file__).parents[2]
    return dict(os.environ, PYTHONPATH=f"{root / 'tasks'}{os.pathsep}{root / 'plugins'}")


def process_launcher(
    root: Path, environment: dict[str, str], holder: str, **how: Any
) -> Launcher[ProcessPlan]:
    """A launcher of local processes."""
    return Launcher(ProcessBackend(root, environment, holder, **how), open_store=open_store)


class Live(Training):
    """A replica group of a test, which waits for what its replicas say."""

    @property
    def said(self) -> list[str]:
        """The lines of all replicas so far."""
        return [line for _, line in self.lines]

    def until_said(self, words: str, times: int = 1, seconds: float = 60) -> None:
        """Wait until so many lines contain these words; fails if the job ends without them."""
        is_said = self.until(lambda: self._count(words) >= times, seconds)
        assert is_said, f"the job ended without {times} times {words!r}:\n{self.tail()}"

    def until_more_said(self, words: str, seconds: float = 60) -> None:
        """Wait until one more line contains these words."""
        self.until_said(words, self._count(words) + 1, seconds)

    def _count(self, words: str) -> int:
        return sum(words in line for line in self.said)

    def until_all_run(self) -> None:
        for each in self.launcher.observe(self.handle):
            self.until_said(f"hello from {each}")

    def pids(self) -> dict[str, int]:
        names = map(str, self.launcher.observe(self.handle))
        return {name: replica_pid(self.handle, name) for name in names}

    def entries(self, what: EventType) -> list[str]:
        return [each.replica for each in self.events() if each.event is what]


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """The folder of the test's groups. Each such folder has its own fork server."""
    return tmp_path / "sets"


def fork_server_of(root: Path) -> int | None:
    """The fork server of that folder's groups, found by the lock that it holds."""
    server = ForkServer(root, sys.executable, replica_environment())
    return holder_of(Path(f"{server.socket}.lock"))


def end_fork_server(root: Path) -> None:
    server = fork_server_of(root)
    if server is not None:
        send([server], signal.SIGTERM)


@pytest.fixture
def watched(sets: Path) -> Iterator[Callable[..., Live]]:
    """A function that starts a job as a task try does, and watches it."""
    lives: list[Live] = []

    def start(job: Job, holder: str = "try-1", **how: Any) -> Live:
        launcher = process_launcher(sets, replica_environment(), holder, **how)
        lives.append(Live(launcher, job, holder))
        return lives[-1]

    yield start
    for live in reversed(lives):  # the last holder first: earlier ones may stop nothing
        live.__exit__()


#: What an Airflow task does until it is killed.
TASK = """
import os, sys
from pathlib import Path
from aerotrain.contract.job import Job
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend
launcher = Launcher(ProcessBackend(Path(sys.argv[1]), dict(os.environ), sys.argv[2]))
handle = launcher.start(launcher.plan(Job.from_json(sys.argv[3]), sys.argv[2]))
print("at", handle, flush=True)
if len(sys.argv) == 4:
    launcher.watch(handle, lambda line: print(line, flush=True), until=None)
"""


@contextmanager
def task(folder: Path, job: Job, holder: str = "try-1", *more: str) -> Iterator[Started]:
    words = [sys.executable, "-c", TASK, str(folder / "sets"), holder, job.to_json(), *more]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**replica_environment(), "PYTHONPATH": path}
    with Started(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.kill()
