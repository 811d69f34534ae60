"""The setting of trainings of the digits: a store with data, a folder of replica groups."""

import os
import sys
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Deadlines, Job, Restarts
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend
from aerotrain.store import open_store
from aerotrain.user_code import publish_code
from benchmarks.fault_injection import Training
from benchmarks.report import ROOT
from benchmarks.workloads import EXAMPLES, Jobs


def processes_in(sets: Path, python: str = sys.executable) -> Launcher[Any]:
    """A launcher of local processes whose replica groups are in that folder."""
    roots = [str(ROOT / "tasks"), str(ROOT / "plugins")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    backend = ProcessBackend(sets, environment, "benchmarks", python, warm=True)
    return Launcher(backend, open_store=open_store)


class Testbed:
    """A store with the digits in it, and the folder of all replica groups."""

    def __init__(
        self, folder: Path, *, store: str = "", launcher: Launcher[Any] | None = None
    ) -> None:
        self.folder = folder
        self.store = store or (folder / "store").as_uri()
        self.launcher = launcher or processes_in(folder / "sets")
        code = publish_code(open_store(self.store), EXAMPLES)
        self._jobs = Jobs(folder, store=self.store, code=code)
        self._hosts = 0

    def train(self, strategy: str, *, epochs: int, **more: Any) -> Training:
        """A training of the digits under way; ``more`` is of the job, or of its arguments."""
        parts = {"deadlines": Deadlines, "restarts": Restarts}
        of_job = {name: part(**more.pop(name)) for name, part in parts.items() if name in more}
        arguments = {
            "model": "digits",
            "data": self._jobs.data("digits"),
            "epochs": epochs,
            "checkpoint_interval": 2,
            "steps_per_execution": 10,
            **more,
        }
        return Training(self.launcher, self._jobs.train(strategy, arguments, **of_job))

    def again(self, job: Job) -> Training:
        """The same job launched on another host, which only knows its own replica groups."""
        self._hosts += 1
        launcher = processes_in(self.folder / f"host-{self._hosts}")
        return Training(launcher, job, attempt=f"{1 + self._hosts}")
