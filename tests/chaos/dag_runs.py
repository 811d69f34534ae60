"""Faults of Airflow itself, injected into a live run of the digits pipeline in its own Airflow.

The training is the task ``train`` of the run: its replicas are watched in their folder,
independently of Airflow, and the outcome is read from the event log that the task writes to the
store.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from benchmarks.fault_injection import Mark, Outcome, processes_of, steps_lost
from benchmarks.report import ROOT

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.contract.layout import path_segment
from aerotrain.contract.status import Progress, State
from aerotrain.store import open_store
from aerotrain_airflow.goodput import goodput_of
from devtools.components import Component
from devtools.home import Home
from devtools.stack import Stack, running_stack
from support.airflow_runs import Runs

DAG, TASK = "digits", "train"

#: Short, because trials wait for it: seconds without heartbeat after which Airflow fails a task.
SETTINGS: Mapping[str, str] = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    # How often Airflow looks for tasks of a killed scheduler, once that sent no heartbeat for 30 s.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
}

_LOOK_EVERY = 0.25


@contextmanager
def running_airflow(folder: Path) -> Iterator[tuple[Stack, Path]]:
    """A complete Airflow that has parsed the pipeline, and the folder of its replicas."""
    home = Home(folder)
    os.environ |= SETTINGS
    try:
        with running_stack(home, ROOT) as stack:
            stack.wait_for_dag(DAG)
            yield stack, home.scratch
    finally:
        for name in SETTINGS:
            os.environ.pop(name)


@dataclass
class DagTraining:
    """A run of the pipeline whose task ``train`` is running."""

    stack: Stack
    scratch: Path
    conf: Mapping[str, Any]
    marks: list[Mark] = field(default_factory=list)
    handle: str = ""
    _read: int = 0
    _others: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._others = {*self.scratch.glob("*")}  # an earlier run may still end
        self.runs = Runs(self.stack, DAG)
        self.run = self.runs.trigger({**self.conf, "reuse": False})

    def until_under_way(self, lines: int) -> None:
        """Wait for so many lines of progress."""
        while len(self.marks) < lines:
            if not self._is_live():
                raise RuntimeError(f"it ended too soon:\n{self.runs.errors(self.run)}")
            self._look()

    def follow(self) -> State:
        """Wait for the end of the whole run."""
        while self._is_live():
            self._look()
        return State.SUCCEEDED if self._state() == "success" else State.FAILED

    def inject(self, harm: "Harm", *, lines: int) -> Outcome:
        """Inject ``harm`` into the run's Airflow once it trains, and follow the run to its end."""
        self.until_under_way(lines)
        at = time.time()
        harm(self)
        state = self.follow()
        entries = self.entries()
        sets = [each for each in entries if each.event is EventType.START and not each.replica]
        adopted = [each for each in entries if each.event is EventType.ADOPT]
        times = [each.at for each in self.marks]
        return Outcome(
            state=state,
            verdict=f"{len(sets)} replica groups launched, adopted {len(adopted)} times",
            back=sorted({each.replica for each in entries if each.event is EventType.RESTART}),
            detect=adopted[0].at - at if adopted else None,
            full_pace=None,
            longest_gap=max(later - before for before, later in itertools.pairwise(times)),
            steps_lost=steps_lost(self.marks),
            steps_twice=goodput_of(entries).steps_twice,
            goodput=goodput_of(entries).goodput,
            stalls=[],
            left=self._left(),
            sets=len(sets),
            adoptions=len(adopted),
        )

    def tail(self) -> str:
        """The last lines of the task's last try, and the errors of failed tasks."""
        lines = self.runs.log(self.run, TASK).splitlines()[-40:]
        return "\n".join([*lines, self.runs.errors(self.run)])

    def _left(self) -> list[str]:
        """Processes and folders of replica groups that remain after the run has ended."""
        processes = [f"process {pid}" for pid in processes_of(str(self.scratch))]
        return processes + [str(each) for each in {*self.scratch.glob("*")} - self._others]

    def task(self) -> psutil.Process:
        """The process that runs the task's code; its parent is Airflow's worker."""
        [instance] = [each for each in self.runs.instances(self.run) if each["task_id"] == TASK]
        if instance["pid"] is None:  # psutil would take it for this process
            raise RuntimeError(f"the task {TASK!r} does not run, it is {instance['state']}")
        return psutil.Process(instance["pid"])

    def component(self, name: str) -> Component:
        return next(each for each in self.stack.components if each.name == name)

    def entries(self) -> list[Event]:
        """The event log that the task has written to the store."""
        url = f"s3://aerotrain/{DAG}/runs/{path_segment(self.run)}/{TASK}"
        store = open_store(url, self.stack.s3.environment)
        whole = json.loads(store.get("events.json"))
        return read(json.dumps(each) for each in whole["events"])

    def _state(self) -> str:
        return self.runs.api.run_state(DAG, self.run)

    def _is_live(self) -> bool:
        return self._state() not in ("success", "failed")

    def _look(self) -> None:
        """Read the chief's new lines, wherever its replica group is."""
        time.sleep(_LOOK_EVERY)
        for started in self.scratch.glob(f"{TASK}-*/*/started"):
            if started.parent.parent not in self._others:
                self.handle = str(started.parent)
        try:
            said = (Path(self.handle) / "chief" / "log").read_text()
        except FileNotFoundError:
            return  # not there yet, or removed already
        whole = said[: said.rfind("\n") + 1]
        for line in whole[self._read :].splitlines():
            if (progress := Progress.parse(line)) is not None:
                self.marks.append(Mark(time.time(), progress.step))
        self._read = len(whole)


def restart(component: Component) -> None:
    """Kill a component of Airflow with its children, and start it again."""
    with suppress(psutil.NoSuchProcess):  # it has already ended
        for child in psutil.Process(component.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    component.kill()
    component.start()


Harm = Callable[[DagTraining], None]


def kill_task(training: DagTraining) -> None:
    training.task().kill()


def kill_worker(training: DagTraining) -> None:
    """Kill Airflow's worker, which supervises the task; the task's own process survives."""
    worker = training.task().parent()
    assert worker is not None
    worker.kill()


def kill_scheduler(training: DagTraining) -> None:
    """Kill and restart the scheduler alone: its forked workers survive, and so do their tasks."""
    scheduler = training.component("scheduler")
    scheduler.kill()
    restart(scheduler)


def kill_triggerer(training: DagTraining) -> None:
    restart(training.component("triggerer"))


def kill_all(training: DagTraining) -> None:
    """Kill the scheduler, the triggerer and the task's own process, then restart the components."""
    components = [training.component(name) for name in ("scheduler", "triggerer")]
    kill_task(training)
    for component in components:
        component.kill()
    for component in components:
        restart(component)


def kill_in_turn(training: DagTraining) -> None:
    """Kill one after another, each after recovery from the one before."""
    kill_triggerer(training)
    kill_task(training)
    while not _adoptions(training):
        training.until_under_way(len(training.marks) + 1)
    kill_scheduler(training)


def _adoptions(training: DagTraining) -> int:
    log = (Path(training.handle) / "events.jsonl").read_text().splitlines()
    return sum(each.event is EventType.ADOPT for each in read(log))
