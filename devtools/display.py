"""The display of a running DAG: a line for each change of a task, and for a training's progress."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any

from aerotrain.contract.status import Progress

#: The states of Airflow's task instances that have ended, and of those that are under way.
_ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
_UNDER_WAY = ("running", "deferred", "up_for_retry", "restarting", "queued", "scheduled")

#: The state of a mapped task is the first of these that one of its instances has.
_PRECEDENCE = ("failed", "upstream_failed", *_UNDER_WAY, "success", "skipped", "removed")

#: Seconds between two lines of training progress.
_LINE_EVERY = 5.0


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task of a run, with all of its instances."""

    task: str
    state: str | None
    seconds: float | None
    done: int = 0
    mapped: int = 0

    @property
    def label(self) -> str:
        """``prepare.partition 3/4`` for a mapped task, ``train`` for another."""
        return f"{self.task} {self.done}/{self.mapped}" if self.mapped else self.task


def in_order(tasks: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks in topological order; ``tasks`` maps each to its downstream tasks."""
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(tasks, ()))
    for task, followers in tasks.items():
        for follower in followers:
            sorter.add(follower, task)
    return list(sorter.static_order())


def task_rows(
    tasks: Iterable[str], instances: Iterable[Mapping[str, Any]], now: datetime
) -> list[TaskRow]:
    """One row per task, from the task instances as the REST API returns them."""
    of_task: dict[str, list[Mapping[str, Any]]] = {task: [] for task in tasks}
    for instance in instances:
        of_task.setdefault(instance["task_id"], []).append(instance)
    return [_row(task, found, now) for task, found in of_task.items()]


def _row(task: str, instances: Sequence[Mapping[str, Any]], now: datetime) -> TaskRow:
    states = [instance["state"] for instance in instances]
    mapped = sum(instance["map_index"] >= 0 for instance in instances)
    return TaskRow(
        task=task,
        state=next((state for state in _PRECEDENCE if state in states), None),
        seconds=_seconds(instances, now),
        done=sum(state in _ENDED for state in states) if mapped else 0,
        mapped=mapped,
    )


def _seconds(instances: Sequence[Mapping[str, Any]], now: datetime) -> float | None:
    """From the first instance's start to the last one's end, or to now."""
    starts = [
        datetime.fromisoformat(each["start_date"]) for each in instances if each["start_date"]
    ]
    if not starts:
        return None
    ends = [
        datetime.fromisoformat(each["end_date"]) if each["end_date"] else now
        for each in instances
        if each["start_date"]
    ]
    return max(0.0, (max(ends) - min(starts)).total_seconds())


class Display:
    """Prints a line for every change of a task, and the progress of a training now and then."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._training: Progress | None = None
        self._line_due = 0.0

    def show(self, rows: Sequence[TaskRow], training: Progress | None) -> None:
        for row in rows:
            state = f"{row.label} {row.state}"
            if row.state is not None and self._shown.get(row.task) != state:
                self._shown[row.task] = state
                ended = row.state in _ENDED and row.seconds is not None
                self.say(f"{state} ({row.seconds:.1f} s)" if ended else state)
        if training not in (None, self._training) and time.monotonic() >= self._line_due:
            self._training = training
            self._line_due = time.monotonic() + _LINE_EVERY
            self.say(f"train {training}")

    def say(self, line: str) -> None:
        print(line, flush=True)
