"""The training loop."""

from typing import Protocol

from aerotrain.training.checkpoints import Checkpoints
from aerotrain.training.drive import Drive
from aerotrain.training.observer import Observer
from aerotrain.training.plan import Plan
from aerotrain.training.when import Every


class Counter(Protocol):
    """The number of steps that were really done, wherever they ran."""

    def numpy(self) -> int: ...


def train(
    plan: Plan,
    counter: Counter,
    drive: Drive,
    checkpoints: Checkpoints,
    observer: Observer,
    checkpoint: Every,
) -> None:
    """Train from where ``counter`` stands to the end of ``plan``, or until told to stop."""
    while not observer.stop and (step := int(counter.numpy())) < plan.steps:
        epoch, done = plan.position(step)
        observer.epoch_begins(epoch)
        before = 0
        for ran in drive.run(plan.left_in_epoch(step)):
            observer.ran(step, done, ran, before)
            before = ran.steps
            if checkpoint.due():
                drive.settle()
                checkpoints.save(*observer.remember())
                observer.publish()
            if observer.stop:
                break
        drive.settle()
        observer.epoch_ends(epoch, ran.sums)
