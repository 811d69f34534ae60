"""Waits for a DAG over the REST API, and follows one run of it to its end."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.status import Progress
from aerotrain_airflow.local.api import AirflowApi
from aerotrain_airflow.local.progress import Display, in_order, task_rows, utc_now

#: Seconds between two requests for the state of a run. The API takes about 20 ms for one.
_LOOK_EVERY = 0.5
#: Seconds between two requests for what the DAG processor has parsed.
_PARSED_EVERY = 0.2
#: Seconds to wait for a DAG to be parsed: in all, and after the last new DAG was parsed.
_PARSE_SECONDS = 120.0
_STRAGGLER_SECONDS = 20.0

#: Marks of log groups that Airflow's UI folds.
_FOLDS = ("::group::", "::endgroup::")

#: The number of lines shown of a failed task's log.
_LAST_LINES = 20


@dataclass(frozen=True)
class Pace:
    """A training progress line, and the time at which it was written."""

    progress: Progress
    at: datetime


@dataclass
class Training:
    """The progress lines of the training task, read while it runs."""

    first: Pace | None = None
    last: Pace | None = None
    _tokens: dict[str, str | None] = field(default_factory=dict)

    def read(self, api: AirflowApi, instances: list[dict[str, Any]]) -> None:
        """Read new progress lines in the logs of the tasks that are running or have just ended."""
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
        """The latest progress, or None once no steps are left."""
        if self.last is None or self.last.progress.step >= self.last.progress.steps:
            return None
        return self.last.progress

    @property
    def seconds_a_step(self) -> float | None:
        """The mean from the first progress line to the last; None if there are not two."""
        if self.first is None or self.last is None:
            return None
        steps = self.last.progress.step - self.first.progress.step
        return (self.last.at - self.first.at).total_seconds() / steps if steps > 0 else None


def await_dag(api: AirflowApi, dag: str, since: datetime, check: Callable[[], None]) -> None:
    """Return once the DAG has been parsed after ``since``.

    What an earlier Airflow stored in the database may be older than the file.

    Raises:
        FinalError: its file cannot be imported, or the DAG does not exist.
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
    """Show the run until it has ended; returns its last state and the training progress."""
    tasks = in_order(api.tasks(dag))
    training = Training()
    while True:
        state = api.run_state(dag, run)  # read first: once the run has ended, so have its tasks
        instances = api.task_instances(dag, run)
        training.read(api, instances)
        display.show(task_rows(tasks, instances, utc_now()), training.now)
        if state in ("success", "failed"):
            return state, training
        check()
        time.sleep(_LOOK_EVERY)


def why_failed(api: AirflowApi, dag: str, run: str) -> str:
    """The end of the log and the error of every failed task instance."""
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
