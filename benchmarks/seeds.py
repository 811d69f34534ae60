"""The accuracy of asynchronous workers on Fashion-MNIST, over three seeds.

The same network, data and number of steps are trained under ``one_device`` and under
``parameter_server`` with two workers; the accuracy is of records that were not trained on.
"""

import argparse
import re
import statistics
import tempfile
from pathlib import Path

from aerotrain.contract.job import Job
from benchmarks.replicas import Processes
from benchmarks.report import print_origin, print_report
from benchmarks.workloads import DENSE, Jobs

SEEDS = (0, 1, 2)
EPOCHS = 3
SPLITS = {"train": 0.85, "validation": 0.15}
STRATEGIES = ("one_device", "parameter_server")

_ACCURACY = re.compile(rf"epoch {EPOCHS} of {EPOCHS}:.* val_accuracy=(\S+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    seeds = SEEDS[:1] if parser.parse_args().quick else SEEDS
    print_origin()
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        jobs = Jobs(Path(name), SPLITS)
        rows = [
            {"strategy": strategy, "seed": seed, "accuracy": f"{accuracy:.4f}"}
            for strategy in STRATEGIES
            for seed in seeds
            for accuracy in [
                accuracy_of(
                    jobs.train(DENSE, strategy, seed=seed, epochs=EPOCHS, validate=True), processes
                )
            ]
        ]
    means, spreads = {}, {}
    for strategy in STRATEGIES:
        reached = [float(row["accuracy"]) for row in rows if row["strategy"] == strategy]
        means[f"{strategy}_accuracy"] = statistics.mean(reached)
        spreads[f"{strategy}_spread"] = max(reached) - min(reached)
    print_report(rows, means | spreads)


def accuracy_of(job: Job, processes: Processes) -> float:
    """The accuracy on the validation split, once ``job`` has ended."""
    said = "".join(each.line for each in processes.run(job).said)
    [accuracy] = _ACCURACY.findall(said)
    return float(accuracy)


if __name__ == "__main__":
    main()
