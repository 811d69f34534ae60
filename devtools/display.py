"""The display of a running DAG: a line per task, and a bar for a training in progress."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aerotrain.contract.status import Progress

#: The final states of Airflow's task instances, with their appearance.
_ENDED = {
    "success": ("✔", "green"),
    "failed": ("✘", "red"),
    "upstream_failed": ("-", "red"),
    "skipped": ("-", "dim"),
    "removed": ("-", "dim"),
}
_UNDER_WAY = {
    "running": ("▶", "yellow"),
    "deferred": ("▶", "yellow"),
    "up_for_retry": ("↻", "yellow"),
    "restarting": ("↻", "yellow"),
    "queued": ("·", "cyan"),
    "scheduled": ("·", "cyan"),
}
_WAITING = ("·", "dim")

#: The state of a mapped task is the first of these that one of its instances has.
_PRECEDENCE = ("failed", "upstream_failed", *_UNDER_WAY, "success", "skipped", "removed")

#: Seconds between two lines of training progress where no bar can be drawn.
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


class Board:
    """One line per task, and a bar below the one that trains."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, rows: Sequence[TaskRow], training: Progress | None) -> None:
        table = Table.grid(padding=(0, 2))
        for row in rows:
            sign, style = _WAITING if row.state is None else (_ENDED | _UNDER_WAY)[row.state]
            seconds = "" if row.seconds is None else f"{row.seconds:.1f} s"
            table.add_row(
                Text(sign, style), row.label, Text(row.state or "waiting", style), seconds
            )
        parts: list[RenderableType] = [table]
        if training is not None:
            parts.append(_bar(training))
        self._live.update(Group(*parts))

    def say(self, line: str) -> None:
        """Print a message above the table."""
        self._live.console.print(line, highlight=False, markup=False)


def _bar(training: Progress) -> Table:
    bar = Table.grid(padding=(0, 2))
    pace, left = training.examples_per_second, training.seconds_left
    bar.add_row(
        f"step {training.step}/{training.steps}",
        ProgressBar(total=training.steps, completed=training.step, width=30),
        f"loss {training.loss:.4f}",
        *([] if pace is None else [f"{pace:.0f} examples/s"]),
        *([] if left is None else [f"{left:.0f} s left"]),
    )
    return bar


class Lines:
    """A line for every change, for a log file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
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
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


Display = Board | Lines


@contextmanager
def display() -> Iterator[Display]:
    """A table that is redrawn on a terminal; elsewhere, lines for what has changed."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield Board(live)
