"""Which tables of ``results/`` are older than the code that they measure.

A table is stale if a commit after the one that it names changed its benchmark, or what that
measures. Some of these commits change no figure: whether to run a benchmark again is a judgment.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import git, print_table

RESULTS = Path(__file__).parent / "results"

_TRAINING = ("tasks/aerotrain/training", "benchmarks/models")
_PREPARING = ("tasks/aerotrain/data",)

#: The code that each table measures, in addition to the benchmark itself.
MEASURED: Mapping[str, Sequence[str]] = {
    "chaos": ("plugins", "tasks", "tests/chaos", "benchmarks/fault_injection.py"),
    "gate": (
        "tasks/aerotrain/evaluation",
        "tasks/aerotrain/prediction",
        "tasks/aerotrain/serving/served.py",
    ),
    "input": (*_TRAINING, *_PREPARING, "tasks/aerotrain/store", "benchmarks/orders.py"),
    "network": _TRAINING,
    "pipeline": ("plugins", "tasks", "dags", "devtools"),
    "prepare": _PREPARING,
    "records": (*_PREPARING, "benchmarks/beam_writer.py"),
    "recovery": ("plugins", "tasks", "benchmarks/fault_injection.py", "benchmarks/testbed.py"),
    "seeds": _TRAINING,
    "serving": ("tasks/aerotrain/serving", "tasks/aerotrain/serve_check.py"),
    "strategies": (
        *_TRAINING,
        *(f"benchmarks/{name}.py" for name in ("fit", "replicas", "shares", "workloads")),
    ),
    "triggerer": ("plugins/aerotrain_airflow/kubernetes", "tasks/aerotrain/launch"),
}

#: Lists the commits after the first argument, newest first, that changed a path of the second.
Later = Callable[[str, Sequence[str]], Sequence[str]]


def main() -> None:
    print_table(rows({path.stem: path.read_text() for path in RESULTS.glob("*.md")}, later))


def rows(tables: Mapping[str, str], later: Later) -> list[dict[str, Any]]:
    """A row for each table, of which ``tables`` has the text by name."""
    found = []
    for name, text in sorted(tables.items()):
        commit = re.search(r"[Oo]f commit ([0-9a-f]{7,40})", text)
        since = later(commit[1], paths(name)) if commit else ["its commit is not named"]
        found.append(
            {
                "table": name,
                "of commit": commit[1] if commit else "–",
                "later commits": len(since) if commit else "–",
                "newest of them": since[0] if since else "–",
            }
        )
    return found


def paths(name: str) -> list[str]:
    """The files and folders whose changes make that table stale."""
    return [*MEASURED[name], *([] if name == "chaos" else [f"benchmarks/{name}.py"])]


def later(commit: str, changed: Sequence[str]) -> list[str]:
    """The commits since ``commit`` that changed one of the paths; merges are omitted."""
    if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        return ["commit is not in this repository"]
    log = git("log", "--no-merges", "--format=%h %s", f"{commit}..HEAD", "--", *changed)
    return log.splitlines()


if __name__ == "__main__":
    main()
