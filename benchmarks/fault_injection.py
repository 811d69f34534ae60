"""Trainings of local processes with one injected fault, and measurements of the recovery.

The caller supplies the fault: a function of the live training. What is measured is what a user
would notice: when the failure was detected, when training was at its full pace again, and how many
steps were lost or repeated.
"""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Self

import psutil

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.status import Progress, State
from aerotrain.launch.backend import LogLine
from aerotrain.launch.decision import Ended
from aerotrain.launch.launcher import Launcher
from aerotrain.store import open_store
from aerotrain_airflow.goodput import Goodput, events_of_chief, record

#: Full pace is at least this share of the pace before the fault.
FULL = 0.7


@dataclass(frozen=True)
class Mark:
    """A progress line, and when it came by ``time.time()``."""

    at: float
    step: int


class Training:
    """A live training, watched in a thread; a context that stops it and removes its processes."""

    def __init__(self, launcher: Launcher[Any], job: Job, attempt: str = "1") -> None:
        self.launcher = launcher
        self.job = job
        self.lines: list[tuple[float, str]] = []
        self.marks: list[Mark] = []
        self.harmed = 0.0  # when the fault struck
        self.handle = launcher.start(launcher.plan(job, attempt))
        self._thread = ThreadPoolExecutor(1)
        self.end: Future[Ended] = self._thread.submit(self._watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.launcher.stop(self.handle)
        self._thread.shutdown()

    def _watch(self) -> Ended:
        ended = self.launcher.watch(self.handle, self._take, until=None)
        assert ended is not None  # it is watched without a time limit
        return ended

    def _take(self, line: LogLine) -> None:
        now = time.time()
        self.lines.append((now, str(line)))
        progress = Progress.parse(line.text)
        if progress is not None:
            self.marks.append(Mark(now, progress.step))

    def until(self, what: Callable[[], Any], seconds: float = 240.0) -> Any:
        """Poll until ``what`` returns something true; None if the training ended before."""
        until = time.monotonic() + seconds
        while not (found := what()):
            if self.end.done():
                return what()
            if time.monotonic() > until:
                raise RuntimeError(f"this did not happen in {seconds:.0f} s:\n{self.tail()}")
            time.sleep(0.05)
        return found

    def until_under_way(self, lines: int = 5) -> None:
        self.until(lambda: len(self.marks) >= lines)

    def tail(self) -> str:
        return "\n".join(line for _, line in self.lines[-40:])

    def process(self, name: str) -> psutil.Process:
        """The process of a replica."""
        return psutil.Process(replica_pid(self.handle, name))

    def events(self) -> list[Event]:
        return self.launcher.events(self.handle)

    def events_since(self, kind: EventType, at: float) -> list[Event]:
        """The events of that kind since a time."""
        return [each for each in self.events() if each.event is kind and each.at >= at]

    def stalls(self) -> list[float]:
        """The seconds of each stop for a checkpoint, as the chief has recorded them."""
        events = events_of_chief(open_store(self.job.prefix))
        return [each.seconds for each in events if each.event is EventType.SAVE_STALL]

    def account(self) -> Goodput | None:
        """The goodput of its closed event log, once it has ended."""
        return record(self.events(), open_store(self.job.prefix), time.time())

    def pace(self) -> float:
        """Steps a second so far: the median over the progress lines."""
        paces = [
            (later.step - mark.step) / (later.at - mark.at)
            for mark, later in itertools.pairwise(self.marks)
            if later.step > mark.step and later.at > mark.at
        ]
        return median(paces or [0.0])

    def longest_gap(self, at: float) -> float:
        """The most seconds between two progress lines, from the last one before a time."""
        times = [each.at for each in self.marks]
        first = sum(each < at for each in times) - 1
        gaps = [later - before for before, later in itertools.pairwise(times[max(0, first) :])]
        return max(gaps, default=0.0)

    def at_full_pace(self, since: float, before: float) -> float | None:
        """When the training first reached full pace again, after its first progress since then."""
        marks = [each for each in self.marks if each.at > since]
        for mark, later in itertools.pairwise(marks):
            seconds = later.at - mark.at
            if seconds > 0 and (later.step - mark.step) / seconds >= FULL * before:
                return mark.at
        return None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The measured outcome of a fault. None is what did not happen, or could not be measured.

    ``sets`` is how many replica groups were started, ``adoptions`` how often one was adopted.
    """

    state: State
    verdict: str
    back: Sequence[str]
    detect: float | None
    full_pace: float | None
    longest_gap: float
    steps_lost: int
    steps_twice: int | None
    goodput: float | None
    stalls: Sequence[float]
    left: Sequence[str]
    sets: int = 1
    adoptions: int = 0


def inject(
    training: Training,
    harm: Callable[[Training], None],
    *,
    lines: int = 5,
    left: Callable[[Training], list[str]] | None = None,
) -> Outcome:
    """Inject ``harm`` once the training is under way, and follow it to its end.

    ``left`` lists what a stopped replica group has left behind; by default local processes and
    files.
    """
    with training:
        training.until_under_way(lines)
        before = training.pace()
        training.harmed = time.time()
        harm(training)
        at = training.harmed  # later, if the fault had a preparation
        end = training.end.result(600)
        restarted = training.events_since(EventType.RESTART, at)
        full = training.at_full_pace(restarted[0].at if restarted else at, before)
        account = training.account()
        outcome = Outcome(
            state=end.state,
            verdict="; ".join(dict.fromkeys(each.because for each in restarted)) or "goes on",
            back=sorted({each.replica for each in restarted}),
            detect=next((e.at - at for e in training.events_since(EventType.DETECT, at)), None),
            full_pace=None if full is None else full - at,
            longest_gap=training.longest_gap(at),
            steps_lost=steps_lost(training.marks),
            steps_twice=account.steps_twice if account else None,
            goodput=account.goodput if account else None,
            stalls=training.stalls(),
            left=(),
        )
    return replace(outcome, left=(left or left_behind)(training))


def steps_lost(marks: Sequence[Mark]) -> int:
    """By how much the step counter fell when the chief restarted."""
    falls = [mark.step - later.step for mark, later in itertools.pairwise(marks)]
    return max(0, *falls)


def left_behind(training: Training) -> list[str]:
    """Processes and files of a stopped replica group."""
    folder = Path(training.handle)
    processes = [f"process {pid}" for pid in processes_of(training.handle)]
    return processes + [str(folder)] * folder.exists()


def replica_pid(folder: str, name: str) -> int:
    """The process id of a local replica, as its supervisor recorded it."""
    status = json.loads((Path(folder) / "status.json").read_text())
    return int(status["replicas"][name]["pid"])


def processes_of(folder: str) -> list[int]:
    """The live processes of a folder: by their working directory, and their output."""
    found = []
    for process in psutil.process_iter():
        try:
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            places = [Path(f"/proc/{process.pid}/{each}").readlink() for each in ("cwd", "fd/1")]
        except (psutil.NoSuchProcess, OSError):
            continue
        if is_alive and any(str(each).startswith(folder) for each in places):
            found.append(process.pid)
    return found
