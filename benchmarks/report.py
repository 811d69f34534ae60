"""The frame of every benchmark: arguments, turns, the table, and the JSON line of figures."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parent.parent

#: A folder of files in memory, for what must not measure the disk.
MEMORY = Path("/dev/shm")

Rows = Sequence[Mapping[str, Any]]

#: The end of the name of a figure's least and greatest value.
SPREAD = "_spread"

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """What a benchmark has measured; None in a row or figure is what it could not measure.

    ``rows`` share their columns. ``more`` are tables that are printed before. A figure that is
    measured in several rounds is their list: its median is printed, and, as ``NAME_spread``, the
    least and the greatest.
    """

    rows: Rows
    figures: Mapping[str, float | Sequence[float] | None]
    more: Sequence[Rows] = ()


def run(
    measure: Callable[[argparse.Namespace, Path], Report],
    description: str | None,
    *,
    in_memory: bool = False,
    **options: Mapping[str, Any],
) -> None:
    """The command of a benchmark: measures in a temporary folder, and prints the report.

    Args:
        measure: gets the arguments, of which ``quick`` is one, and the folder.
        in_memory: whether the folder is in memory.
        options: more arguments, each with those of ``add_argument``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="little of everything, in a minute")
    for name, option in options.items():
        parser.add_argument(f"--{name}", **option)
    given = parser.parse_args()
    # Replica groups outlive the process that started them; on SIGTERM, its contexts end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _print_origin()
    memory = MEMORY if in_memory and MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, _stdout_as_stderr():
        report = measure(given, Path(folder))
    for rows in report.more:
        print_table(rows)
        print()
    print_table(report.rows)
    print(json.dumps(dict(_figures(report.figures))))


def _figures(figures: Mapping[str, float | Sequence[float] | None]) -> Iterator[tuple[str, Any]]:
    """The figures that were measured, as they are printed."""
    for name, value in figures.items():
        if isinstance(value, Sequence):
            yield name, round(statistics.median(value), 4)
            yield f"{name}{SPREAD}", [round(min(value), 4), round(max(value), 4)]
        elif value is not None:
            yield name, round(value, 4)


def _print_origin() -> None:
    """Print what a run is of: the commit, and the machine's load before it."""
    commit = git("rev-parse", "--short", "HEAD").strip()
    changed = ", with uncommitted changes" if git("diff", "--name-only", "HEAD", "*.py") else ""
    load = os.getloadavg()[0]
    print(f"Of commit {commit}{changed}; {os.cpu_count()} cores, load average before {load:.1f}.\n")


def git(*words: str) -> str:
    """The output of a git command about this project; empty if it fails."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Let this process and its children print to stderr: stdout is for the report alone."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def print_table(rows: Rows) -> None:
    """Print ``rows``, which share their columns, as a Markdown table."""
    columns = list(rows[0])
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_shown(row[column]) for column in columns)} |")


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return with_spread(statistics.median(value), min(value), max(value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def with_spread(value: float, least: float, greatest: float) -> str:
    """A figure with the least and the greatest value of its rounds."""
    return f"{value:.2f} ({least:.2f} to {greatest:.2f})"


def in_turns(
    contestants: Mapping[K, Callable[[], T]], rounds: int, *, warm: bool = False
) -> dict[K, list[T]]:
    """The results of each contestant, one per round; every second round is in reversed order.

    So none always follows the same other one, and what changes during a run affects all. ``warm``
    adds an uncounted round before: the first calls load modules and trace functions.
    """
    results: dict[K, list[T]] = {name: [] for name in contestants}
    for number in range(-warm, rounds):
        for name in list(contestants)[:: -1 if number > 0 and number % 2 else 1]:
            result = contestants[name]()
            if number >= 0:
                results[name].append(result)
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio of two results of each round: what changes the machine's speed changes both."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def seconds(work: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """The seconds that a call takes."""
    begin = time.monotonic()
    work(*arguments, **options)
    return time.monotonic() - begin


def use_one_core() -> None:
    """Run this process and its children on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
