"""The training loop."""

from collections.abc import Callable
from typing import Protocol

from aerotrain.departure import ToldToGo
from aerotrain.training.attending.watchdog import Watchdog
from aerotrain.training.drive import Drive
from aerotrain.training.observing.observer import Observer
from aerotrain.training.plan import Plan
from aerotrain.training.saving import Saving


class Counter(Protocol):
    """The number of steps that were really done, wherever they ran."""

    def numpy(self) -> int: ...


def train(
    plan: Plan,
    counter: Counter,
    drive: Drive,
    saving: Saving,
    observer: Observer,
    watchdog: Watchdog,
    told: Callable[[], bool],
) -> None:
    """Train from where ``counter`` stands to the end of ``plan``, or until told to stop.

    Raises:
        ToldToGo: this replica, or one that it computes with, is to go, and all is saved.
    """
    epoch, done = plan.position(int(counter.numpy()))
    if observer.sums is not None and not done:
        observer.epoch_ends(epoch - 1, observer.sums)  # it was saved when that was yet to come
    while not observer.stop and (step := int(counter.numpy())) < plan.steps:
        epoch, done = plan.position(step)
        observer.epoch_begins(epoch)
        before = 0
        for ran in watchdog.over(drive.run(plan.left_in_epoch(step), observer.sums, told), step):
            observer.ran(step, done, ran, before)
            before = ran.steps
            if saving.due() or ran.told:
                with watchdog.watching():
                    drive.settle()
                saving.save(observer)
            if ran.told:
                saving.hurry()
                raise ToldToGo(f"told to go after step {int(counter.numpy())}, which is saved")
            if observer.stop:
                break
        with watchdog.watching():
            drive.settle()
        if not observer.stop:
            saving.note_doubled(int(counter.numpy()) - step - ran.steps)
        observer.epoch_ends(epoch, ran.sums)
        if observer.is_best and not observer.stop and int(counter.numpy()) < plan.steps:
            saving.save(observer)
