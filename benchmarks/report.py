"""How every benchmark compares and prints: contestants in turns, tables, a JSON line of figures."""

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parent.parent

K = TypeVar("K")
T = TypeVar("T")


def in_turns(contestants: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """The results of each contestant, one per round; every second round is in reversed order.

    So none always follows the same other one, and what changes during a run affects all.
    """
    results: dict[K, list[T]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            results[name].append(contestants[name]())
    return results


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds of the ratio of two results of one round."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def print_origin() -> None:
    """Print what a run is of: the commit, and the machine's load before it."""
    commit = git("rev-parse", "--short", "HEAD").strip()
    changed = ", with uncommitted changes" if git("diff", "--name-only", "HEAD", "*.py") else ""
    load = os.getloadavg()[0]
    print(f"Of commit {commit}{changed}; {os.cpu_count()} cores, load average before {load:.1f}.\n")


def git(*words: str) -> str:
    """The output of a git command about this project; empty if it fails."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def print_report(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, float]) -> None:
    """Print ``rows``, which share their columns, as a Markdown table, and ``figures`` as JSON."""
    print_table(rows)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print ``rows``, which share their columns, as a Markdown table."""
    columns = list(rows[0])
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_shown(row[column]) for column in columns)} |")


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
