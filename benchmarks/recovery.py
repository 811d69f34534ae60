"""What failures cost: local trainings of the digits whose processes are killed.

Replicas are forked from a process that has imported TensorFlow, as is the default. Each training
lasts until it has recovered. The goodput is that of one training of 15 minutes, in which a random
process is killed every 3 minutes. ``--quick`` kills one worker, and omits that run. A replica in a
pod is not forked: what its imports take is measured in processes of their own.
"""

import math
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerotrain.contract.event_log import EventType
from aerotrain.supervisor.processes import send
from benchmarks.fault_injection import Training, left_behind, replica_pid, steps_lost
from benchmarks.report import ROOT, Report, run
from benchmarks.testbed import Testbed

SERVED, GANG, ALONE = "parameter_server", "multi_worker_mirrored", "one_device"

#: Which replica is killed in which strategy.
KILLS = (
    (SERVED, "worker-1"),
    (SERVED, "ps-0"),
    (SERVED, "chief"),
    (GANG, "worker-0"),
    (ALONE, "chief"),
)

ENDLESS = 1_000_000  # epochs

STALL = "save_stall_s"  # the column of the longest stop for a checkpoint

#: The long run: its seconds, and those between two kills.
WHOLE, BETWEEN = 900.0, 180.0


def measure(given: Namespace, folder: Path) -> Report:
    """A row for each kill, and the goodput of a long training."""
    testbed = Testbed(folder)
    kills = KILLS[:1] if given.quick else KILLS * 3
    imports = [import_seconds() for _ in range(1 if given.quick else 5)]
    rows = [killed(testbed, strategy, victim) for strategy, victim in kills]
    workers = [row for row in rows if row["killed"] == "worker-1"]
    gangs = [row for row in rows if row["strategy"] == GANG]
    served = [row for row in rows if row["strategy"] == SERVED]
    figures = {
        "detect_seconds": max(row["detect_s"] for row in rows),
        "worker_back_seconds": median(workers, "back_s"),
        "worker_longest_stop_seconds": median(workers, "longest_stop_s"),
        "gang_back_seconds": median(gangs, "back_s"),
        "save_stall_seconds": max(row[STALL] for row in rows),
        "import_cpu_seconds": imports,
        "goodput": None if given.quick else goodput_of_long_run(testbed, median(served, STALL)),
    }
    return Report(rows, figures)


def median(rows: Sequence[dict[str, Any]], column: str) -> Any:
    """The median of a column; None without rows."""
    return statistics.median(row[column] for row in rows) if rows else None


def import_seconds() -> float:
    """The CPU seconds of a chief that starts in a new process, until it has imported all."""
    program = (
        "from aerotrain.replica import imported; imported('aerotrain.training.chief', 'train')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tasks")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def killed(testbed: Testbed, strategy: str, victim: str) -> dict[str, Any]:
    """One training with one kill: a row of the table."""
    with testbed.train(strategy, epochs=ENDLESS) as training:
        training.until_under_way()
        happened(training, training.stalls)
        before, at = training.pace(), time.time()
        training.process(victim).kill()

        def back() -> float | None:
            """When the restarted worker serves, and gets work, or all are at full pace again."""
            restarted = training.events_since(EventType.RESTART, at)
            if victim.startswith("worker") and strategy == SERVED:
                times = [when for when, line in training.lines if line.endswith(f"{victim} serves")]
                return times[1] if len(times) > 1 else None
            return training.at_full_pace(restarted[0].at, before) if restarted else None

        came_back = happened(training, back)
        happened(training, lambda: training.marks[-1].at > came_back)
        row = {
            "strategy": strategy,
            "killed": victim,
            "detect_s": training.events_since(EventType.DETECT, at)[0].at - at,
            "back_s": came_back - at,
            "longest_stop_s": training.longest_gap(at),
            "steps_lost": steps_lost(training.marks),
            STALL: max(training.stalls()),
        }
    if left := left_behind(training):
        raise RuntimeError(f"{strategy}, {victim} killed: {left} were left behind")
    return row


def happened(training: Training, what: Any) -> Any:
    """Wait until ``what`` is true.

    Raises:
        RuntimeError: the training ended before.
    """
    if not (found := training.until(what)):
        raise RuntimeError(f"{training.end.result()}\n{training.tail()}")
    return found


def goodput_of_long_run(testbed: Testbed, stall: float, seed: int = 1) -> float:
    """The goodput of a long training under parameter servers, killed at random.

    The seconds between two checkpoints are by Young's formula, from the ``stall`` for each and the
    failures that lose steps: every other one, because a worker's loses none.
    """
    chance, saved = random.Random(seed), math.sqrt(2 * stall * 2 * BETWEEN)
    with testbed.train(SERVED, epochs=ENDLESS, checkpoint_interval=saved) as training:
        training.until_under_way()
        end = time.time() + WHOLE
        while time.time() < end:
            time.sleep(min(BETWEEN, max(0.0, end - time.time())))
            if end - time.time() > BETWEEN / 2:
                victim = chance.choice(["chief", "worker-0", "worker-1", "ps-0"])
                send([replica_pid(training.handle, victim)], signal.SIGKILL)
            if training.end.done():
                raise RuntimeError(f"{training.end.result()}\n{training.tail()}")
        account = training.account()
    if account is None or account.goodput is None:
        raise RuntimeError(f"the chief has written no event log:\n{training.tail()}")
    print(account)
    return account.goodput


if __name__ == "__main__":
    run(measure, __doc__)
