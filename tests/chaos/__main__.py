"""Do harm to live trainings, one after another, and print what followed.

``python -m chaos --runs 20 --seed 1``, with ``tests`` on the path: the faults are those of
``faults.py`` in a random order, each at a random moment, both the same for the same seed.
"""

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.mishaps import Outcome, Workshop, mishap
from benchmarks.report import print_table

from chaos.faults import EPOCHS, FAULTS, Fault

#: Seconds without a sign of life after which a replica is ended: short, for it is waited for.
PATIENCE = 12.0


@dataclass(frozen=True)
class Trial:
    """A fault, and after how many progress lines it strikes."""

    fault: Fault
    after: int


def schedule(runs: int, seed: int, faults: Sequence[Fault] = FAULTS) -> list[Trial]:
    """Every fault once in a random order, then again in another, until there are enough."""
    chance = random.Random(seed)
    order: list[Fault] = []
    while len(order) < runs:
        order += chance.sample(list(faults), len(faults))
    return [Trial(fault, chance.randint(4, 8)) for fault in order[:runs]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=len(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="faults that have this in their name")
    asked = parser.parse_args()
    faults = [each for each in FAULTS if asked.only in f"{each.strategy}: {each.name}"]
    rows, failures = [], 0
    # Their sets outlive whoever started them; told to go, this ends them first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        workshop = Workshop.open(stack)
        for number, trial in enumerate(schedule(asked.runs, asked.seed, faults), 1):
            fault = trial.fault
            training = workshop.train(
                fault.strategy,
                epochs=EPOCHS[fault.strategy],
                deadlines={"patience": PATIENCE},
            )
            outcome = mishap(training, fault.harm, lines=trial.after)
            wrong = what_is_wrong(fault, outcome)
            failures += bool(wrong)
            rows.append(row(number, fault, outcome, wrong))
            print(rows[-1], file=sys.stderr, flush=True)
            if wrong:
                print(training.tail(), file=sys.stderr, flush=True)
    print(f"seed {asked.seed}, {asked.runs} runs, {failures} with anything wrong\n")
    print_table(rows)
    sys.exit(bool(failures))


def what_is_wrong(fault: Fault, outcome: Outcome) -> str:
    """In what the outcome differs from what the matrix promises."""
    found = []
    if outcome.state is not fault.ends:
        found.append(f"it {outcome.state}")
    if set(outcome.back) != fault.back:
        found.append(f"who came back: {', '.join(sorted(outcome.back)) or 'nobody'}")
    if outcome.left:
        found.append(f"left behind: {', '.join(outcome.left)}")
    return "; ".join(found)


def row(number: int, fault: Fault, outcome: Outcome, wrong: str) -> dict[str, object]:
    return {
        "run": number,
        "strategy": fault.strategy,
        "fault": fault.name,
        "verdict": outcome.verdict.replace("|", "/").replace("\n", " "),
        "came back": ", ".join(sorted(outcome.back)) or "nobody",
        "detected after s": shown(outcome.detect),
        "full pace after s": shown(outcome.full_pace),
        "longest stop s": shown(outcome.longest_gap),
        "steps lost": outcome.steps_lost,
        "steps twice": shown(outcome.steps_twice),
        "left behind": len(outcome.left),
        "wrong": wrong or "-",
    }


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
