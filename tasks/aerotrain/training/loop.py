"""The training loop."""

from typing import Protocol

from aerotrain.training.checkpoints import Checkpoints
from aerotrain.training.drive import Drive
from aerotrain.training.plan import Plan
from aerotrain.training.report import Report
from aerotrain.training.when import Every


class Counter(Protocol):
    """The number of steps that were really done, wherever they ran."""

    def numpy(self) -> int: ...


def train(
    plan: Plan,
    counter: Counter,
    drive: Drive,
    checkpoints: Checkpoints,
    report: Report,
    checkpoint: Every,
) -> None:
    """Train from where ``counter`` stands to the end of ``plan``."""
    while (step := int(counter.numpy())) < plan.steps:
        for ran in drive.run(plan.left_in_epoch(step)):
            report.progress(step + ran.steps, ran.sums)
            if checkpoint.due():
                drive.settle()
                checkpoints.save(report.metrics)
                report.publish()
        report.epoch(plan.position(step)[0], ran.sums)
