"""One run of a DAG over the REST API: found, triggered, and followed to its end."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.contract.progress import Progress
from aerotrain.contract.strategy import nearest
from aerotrain_airflow.local.api import AirflowApi
from aerotrain_airflow.local.progress import Display, in_order, task_rows, utc_now

#: Seconds between two looks at a run. The API answers one in about 20 ms.
_LOOK_EVERY = 0.5
#: Seconds between two looks at what the DAG processor has read.
_PARSED_EVERY = 0.2
#: Seconds in which a DAG has to be read; and how long it may take more after any other one was.
_PARSE_SECONDS = 120.0
_STRAGGLER_SECONDS = 20.0

#: Lines by which Airflow's UI folds a log.
_FOLDS = ("::group::", "::endgroup::")

#: How many of a failing task's last lines are shown.
_LAST_LINES = 20


@dataclass(frozen=True)
class Pace:
    """A line of training progress, and when it was written."""

    progress: Progress
    at: datetime


@dataclass
class Training:
    """The progress lines of the task that trains, read as they come."""

    first: Pace | None = None
    last: Pace | None = None
    _tokens: dict[str, str | None] = field(default_factory=dict)

    def read(self, api: AirflowApi, instances: list[dict[str, Any]]) -> None:
        """Look for new progress lines in the logs of the tasks that run, or have just ended."""
        for instance in instances:
            key = f"{instance['id']} {instance['try_number']}"
            running = instance["state"] == "running"
            if instance["map_index"] >= 0 or not (running or self._tokens.get(key)):
                continue
            chunk = api.log(instance, self._tokens.get(key))
            self._tokens[key] = chunk.token if running else None
            for event in chunk.events:
                progress = Progress.parse(str(event.get("event", "")))
                if progress is not None:
                    self._add(Pace(progress, datetime.fromisoformat(event["timestamp"])))

    def _add(self, pace: Pace) -> None:
        if self.first is None or pace.progress.step < self.first.progress.step:
            self.first = pace
        self.last = pace

    @property
    def now(self) -> Progress | None:
        """The newest line, as long as steps are left."""
        if self.last is None or self.last.progress.step >= self.last.progress.steps:
            return None
        return self.last.progress

    @property
    def seconds_a_step(self) -> float | None:
        """The mean between the first line and the last; None where there are not two."""
        if self.first is None or self.last is None:
            return None
        steps = self.last.progress.step - self.first.progress.step
        return (self.last.at - self.first.at).total_seconds() / steps if steps > 0 else None


def await_dag(api: AirflowApi, dag: str, since: datetime, check: Callable[[], None]) -> None:
    """Return once the DAG has been read anew since that moment.

    What an earlier Airflow left in the database may be older than the file.

    Raises:
        FinalError: its file cannot be imported, or there is no such DAG.
    """
    deadline = latest = time.monotonic() + _PARSE_SECONDS
    seen = 0
    while True:
        fresh = [name for name, parsed in api.parsed().items() if parsed > since]
        if dag in fresh:
            return
        errors = api.import_errors()
        if errors:
            shown = "\n".join(f"{path}:\n{trace}" for path, trace in errors.items())
            raise FinalError(f"DAG {dag!r} is not there, and dags/ has errors:\n{shown}")
        if len(fresh) > seen:
            seen = len(fresh)
            deadline = min(latest, time.monotonic() + _STRAGGLER_SECONDS)
        if time.monotonic() > deadline:
            raise FinalError(
                f"dags/ has no DAG {dag!r}{nearest(dag, fresh)}; "
                f"it has {', '.join(sorted(fresh)) or 'none'}"
            )
        check()
        time.sleep(_PARSED_EVERY)


def follow(
    api: AirflowApi, dag: str, run: str, display: Display, check: Callable[[], None]
) -> tuple[str, Training]:
    """Show the run until it has ended; returns its last state and how the training went."""
    tasks = in_order(api.tasks(dag))
    training = Training()
    while True:
        state = api.run_state(dag, run)  # asked first: what ended has all its tasks ended
        instances = api.task_instances(dag, run)
        training.read(api, instances)
        display.show(task_rows(tasks, instances, utc_now()), training.now)
        if state in ("success", "failed"):
            return state, training
        check()
        time.sleep(_LOOK_EVERY)


def why_failed(api: AirflowApi, dag: str, run: str) -> str:
    """The last lines and the error of every task instance that failed."""
    failed = [each for each in api.task_instances(dag, run) if each["state"] == "failed"]
    return "\n".join(_last_words(api, instance) for instance in failed)


def _last_words(api: AirflowApi, instance: Mapping[str, Any]) -> str:
    name = instance["task_id"]
    if instance["map_index"] >= 0:
        name += f"[{instance['map_index']}]"
    events = api.log(instance).events
    errors = [detail for event in events for detail in event.get("error_detail") or ()]
    lines = [str(event.get("event", json.dumps(event))) for event in events]
    shown = [line for line in lines if not line.startswith(_FOLDS)][-_LAST_LINES:]
    words = [f"task {name} failed; its log ends:", *(f"  {line}" for line in shown)]
    if errors:
        words.append(f"error: {errors[-1]['exc_value']}")
    return "\n".join(words)
