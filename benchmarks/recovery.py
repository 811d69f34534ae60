"""What failures cost: local trainings of the digits whose processes are killed.

Replicas are forked from a process that has imported TensorFlow, as is the default. The goodput is
that of one training of 15 minutes, in which a random process is killed every 3 minutes. ``--quick``
kills one process of each kind and omits that run: it projects the goodput from the kills.
"""

import argparse
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from aerotrain.contract.status import State
from aerotrain.supervisor.processes import send
from benchmarks.fault_injection import Training, inject, replica_pid
from benchmarks.report import print_origin, print_report
from benchmarks.testbed import Testbed

SERVED, GANG, ALONE = "parameter_server", "multi_worker_mirrored", "one_device"

#: Which replica is killed in which strategy, and the epochs of a training that outlives it.
KILLS = (
    (SERVED, "worker-1", 100),
    (SERVED, "ps-0", 100),
    (SERVED, "chief", 100),
    (GANG, "worker-0", 100),
    (ALONE, "chief", 250),
)

#: The long run: its seconds, those between two kills, and those between two checkpoints, by Young's
#: formula for the cost of a checkpoint here (0.09 s) and the failures that lose steps: one in six
#: minutes, because a worker's loses none.
WHOLE, BETWEEN, SAVED = 900.0, 180.0, 8.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one kill per kind, no training of 15 minutes"
    )
    quick = parser.parse_args().quick
    print_origin()
    # Replica groups outlive the process that started them; on SIGTERM, this ends them first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        testbed = Testbed.open(stack)
        rounds = 1 if quick else 3
        rows = [
            killed(testbed, strategy, victim, epochs)
            for _ in range(rounds)
            for strategy, victim, epochs in KILLS
        ]
        figures = figures_of(rows)
        if not quick:
            figures["goodput"] = long_run(testbed)
    print_report(rows, figures)


def killed(testbed: Testbed, strategy: str, victim: str, epochs: int) -> dict[str, Any]:
    """One training with one kill: a row of the table."""
    training = testbed.train(strategy, epochs=epochs)

    def kill(live: Training) -> None:
        live.harmed = time.time()
        live.process(victim).kill()

    outcome = inject(training, kill)
    if outcome.state is not State.SUCCEEDED or outcome.left:
        raise RuntimeError(f"{strategy}, {victim} killed: {outcome}\n{training.tail()}")
    back = outcome.full_pace
    if victim.startswith("worker") and strategy == SERVED:
        back = _serves_again(training, victim)
    return {
        "strategy": strategy,
        "killed": victim,
        "detect_s": outcome.detect,
        "back_s": back,
        "longest_stop_s": outcome.longest_gap,
        "steps_lost": outcome.steps_lost,
        "save_stall_s": max(outcome.stalls, default=None),
    }


def _serves_again(training: Training, worker: str) -> float | None:
    """Seconds from the kill until the restarted worker serves: then the chief gives it work."""
    times = [at for at, line in training.lines if line.endswith(f"{worker} serves")]
    return times[1] - training.harmed if len(times) > 1 else None


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of ``rows``."""

    def median(column: str, **like: str) -> float | None:
        found = [
            row[column]
            for row in rows
            if row[column] is not None and all(row[name] == value for name, value in like.items())
        ]
        return statistics.median(found) if found else None

    stalls = [row["save_stall_s"] for row in rows if row["save_stall_s"] is not None]
    stops = [row["longest_stop_s"] for row in rows if row["strategy"] == SERVED]
    cost = len(stops) and sum(stops) / len(stops)
    kills = WHOLE / BETWEEN
    named = {
        "detect_seconds": max(row["detect_s"] for row in rows if row["detect_s"] is not None),
        "worker_back_seconds": median("back_s", strategy=SERVED, killed="worker-1"),
        "worker_longest_stop_seconds": median("longest_stop_s", strategy=SERVED, killed="worker-1"),
        "gang_back_seconds": median("back_s", strategy=GANG),
        "save_stall_seconds": max(stalls, default=None),
        "goodput_projected": 1 - kills * cost / WHOLE,
    }
    return {name: value for name, value in named.items() if value is not None}


def long_run(testbed: Testbed, seed: int = 1) -> float:
    """The goodput of a long training under parameter servers, killed at random."""
    chance = random.Random(seed)
    training = testbed.train(SERVED, epochs=1_000_000, checkpoint_interval=SAVED)
    with training:
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
    print(account, file=sys.stderr)
    return account.goodput


if __name__ == "__main__":
    main()
