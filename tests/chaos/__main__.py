"""Inject faults into live trainings, one after another, and print the outcomes as one table.

``python -m chaos --runs 30 --seed 1``, with ``tests`` on the import path. The faults are those of
``faults.py`` in a random order, each at a random moment; the same seed gives the same order and
moments. A fault that this machine cannot inject, such as dropping packets without being root, is a
row of the table that says why.

``make chaos RUNS=30 SEED=1 > benchmarks/results/chaos.md`` keeps the table with its command;
progress is printed to stderr.

``--launcher kubernetes`` does the same to pods, on the cluster that KUBECONFIG names, with the
image that AEROTRAIN_TEST_IMAGE names.

``--elastic`` carries out RUNS seeds from SEED on of each kind of training in ``elastic.py``.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from benchmarks.fault_injection import Outcome
from benchmarks.report import print_table
from benchmarks.testbed import processes_in

from chaos import elastic
from chaos.faults import FAULTS
from chaos.trials import Ground, Named, Scenes, schedule

COLUMNS = (
    "run",
    "strategy",
    "fault",
    "verdict",
    "restarted",
    "detected after s",
    "full pace after s",
    "longest stop s",
    "steps lost",
    "steps twice",
    "left behind",
    "wrong",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=len(FAULTS))
    parser.add_argument("--launcher", choices=("process", "kubernetes"), default="process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="regular expression for STRATEGY: FAULT; only these"
    )
    parser.add_argument("--elastic", action="store_true")
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    # Replica groups outlive the process that started them; on SIGTERM, this ends them first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        # Runs last of all, also if SIGTERM ends the tool early.
        stack.callback(lambda: print_all(asked, rows))
        if asked.elastic:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            launcher = processes_in(folder / "sets")
            trainings = elastic.Trainings(folder, (folder / "store").as_uri(), launcher)
            for seed, kind in product(range(asked.seed, asked.seed + asked.runs), elastic.KINDS):
                if re.search(asked.only, kind.name):
                    found, tail = trainings.judge(kind, seed)
                    rows.append(found)
                    print(found, tail, file=sys.stderr, flush=True)
            sys.exit(any(each["wrong"] != "-" for each in rows))
        ground, every = ground_of(asked.launcher, stack)
        faults = [each for each in every if re.search(asked.only, f"{each.strategy}: {each.name}")]
        for number, trial in enumerate(schedule(asked.runs, asked.seed, faults), 1):
            if lacks := ground.lacks(trial.fault):
                rows.append(row_of_none(number, trial.fault, lacks))
                continue
            judged = ground.judge(trial.fault, trial.after)
            rows.append(row(number, trial.fault, judged.outcome, judged.wrong))
            print(rows[-1], judged.tail, file=sys.stderr, flush=True)
    sys.exit(any(each["wrong"] != "-" for each in rows))


def ground_of(launcher: str, stack: ExitStack) -> tuple[Ground, Sequence[Named]]:
    """Where the launcher's trials run, until the stack closes, and their faults."""
    if launcher == "process":
        return Scenes(stack), FAULTS
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    # Must precede the import of Airflow, which holds the connection to the cluster.
    os.environ.setdefault("AIRFLOW_HOME", str(folder / "airflow"))
    from chaos import pods

    kubeconfig, image = os.environ["KUBECONFIG"], os.environ["AEROTRAIN_TEST_IMAGE"]
    return stack.enter_context(pods.on_cluster(folder, Path(kubeconfig), image)), pods.POD_FAULTS


def print_all(asked: argparse.Namespace, rows: Sequence[dict[str, object]]) -> None:
    """Print the command, a summary, and the table."""
    on = " --elastic" if asked.elastic else ""
    on += "" if asked.launcher == "process" else f" --launcher {asked.launcher}"
    only = f" --only {asked.only!r}" if asked.only else ""
    print(
        f"    PYTHONPATH=tests python -m chaos --runs {asked.runs} --seed {asked.seed}{on}{only}\n"
    )
    one, _, quarter = os.getloadavg()
    wrong = sum(each["wrong"] != "-" for each in rows)
    print(
        f"{len(rows)} runs, {wrong} with a wrong outcome; {os.cpu_count()} cores, load "
        f"average at the end {one:.1f} (15 min: {quarter:.1f}).\n"
    )
    if rows:
        print_table(rows)


def row(number: int, fault: Named, outcome: Outcome, wrong: str) -> dict[str, object]:
    values = (
        number,
        fault.strategy,
        fault.name,
        outcome.verdict.replace("|", "/").replace("\n", " "),
        ", ".join(sorted(outcome.back)) or "none",
        shown(outcome.detect),
        shown(outcome.full_pace),
        shown(outcome.longest_gap),
        outcome.steps_lost,
        shown(outcome.steps_twice),
        len(outcome.left),
        wrong or "-",
    )
    return dict(zip(COLUMNS, values, strict=True))


def row_of_none(number: int, fault: Named, lacks: str) -> dict[str, object]:
    """The row of a fault that cannot be injected here."""
    known = {"run": number, "strategy": fault.strategy, "fault": fault.name}
    return {
        **dict.fromkeys(COLUMNS, "-"),
        **known,
        "verdict": f"not injected: this machine {lacks}",
    }


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
