"""The setting of trainings of the digits: a store with data, a folder of replica groups."""

import os
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aerotrain.contract.job import Deadlines, Job, Restarts
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend
from aerotrain.standalone import prepare
from aerotrain.store import open_store
from aerotrain.user_code import publish_code
from benchmarks.fault_injection import ROOT, Training
from benchmarks.workloads import training_job


def processes_in(sets: Path, python: str = sys.executable) -> Launcher[Any]:
    """A launcher of local processes whose replica groups are in that folder."""
    roots = [str(ROOT / "tasks"), str(ROOT / "plugins")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    return Launcher(ProcessBackend(sets, environment, "benchmarks", python, warm=True))


@dataclass
class Testbed:
    """A store with the digits in it, and the folder of all replica groups."""

    folder: Path
    store: str
    launcher: Launcher[Any]
    code: str
    data: str = ""
    runs: int = 0

    @classmethod
    def open(cls, stack: ExitStack) -> Self:
        """A testbed in a temporary folder, with its data prepared."""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return cls.prepared(folder)

    @classmethod
    def prepared(
        cls,
        folder: Path,
        *,
        store: str | None = None,
        launcher: Launcher[Any] | None = None,
    ) -> Self:
        """A testbed with its data prepared; store and groups are in ``folder`` by default."""
        models, store = ROOT / "dags" / "models", store or (folder / "store").as_uri()
        code = publish_code(open_store(store), models)
        made = cls(folder, store, launcher or processes_in(folder / "sets"), code)
        sys.path.insert(0, str(models))
        with redirect_stdout(sys.stderr):  # stdout is for the report alone
            made.data = prepare(store, folder / "scratch", "digits", shards=4)
        return made

    def train(self, strategy: str, *, epochs: int, **more: Any) -> Training:
        """A training of the digits under way; ``more`` is of the job, or of its arguments."""
        self.runs += 1
        parts = {"deadlines": Deadlines, "restarts": Restarts}
        of_job = {name: part(**more.pop(name)) for name, part in parts.items() if name in more}
        arguments = {
            "model": "digits",
            "data": self.data,
            "epochs": epochs,
            "checkpoint_interval": 2,
            "steps_per_execution": 10,
            **more,
        }
        run = f"run-{self.runs}"
        job = training_job(self.store, run, strategy, arguments, self.code, **of_job)
        return Training(self.launcher, job)

    def again(self, job: Job) -> Training:
        """The same job launched on another host, which only knows its own replica groups."""
        self.runs += 1
        launcher = processes_in(self.folder / f"host-{self.runs}")
        return Training(launcher, job, attempt=f"{self.runs}")
