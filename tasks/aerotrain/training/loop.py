"""The training loop."""

from collections.abc import Callable
from typing import Protocol

from aerotrain.replica import Preempted
from aerotrain.training.background.watchdog import Watchdog
from aerotrain.training.checkpoint_policy import CheckpointPolicy
from aerotrain.training.hooks.hooks import Hooks
from aerotrain.training.schedule import Plan
from aerotrain.training.step_runner import StepRunner


class Counter(Protocol):
    """The number of steps that were completed, on any worker."""

    def numpy(self) -> int: ...


def train(
    plan: Plan,
    counter: Counter,
    step_runner: StepRunner,
    policy: CheckpointPolicy,
    hooks: Hooks,
    watchdog: Watchdog,
    is_preempted: Callable[[], bool],
) -> None:
    """Train from the step of ``counter`` to the end of ``plan``, or until a stop or a preemption.

    Raises:
        Preempted: this replica, or one that it computes with, was preempted, and all is saved.
    """
    epoch, done = plan.position(int(counter.numpy()))
    if hooks.sums is not None and not done:
        hooks.epoch_ends(epoch - 1, hooks.sums)  # it was saved just before that epoch ended
    while not hooks.stop and (step := int(counter.numpy())) < plan.steps:
        epoch, done = plan.position(step)
        hooks.epoch_begins(epoch)
        before = 0
        running = step_runner.run(plan.left_in_epoch(step), hooks.sums, is_preempted)
        for ran in watchdog.over(running, step):
            hooks.ran(step, done, ran, before)
            before = ran.steps
            if policy.due() or ran.preempted:
                with watchdog.watching():
                    step_runner.wait_until_idle()
                policy.save(hooks)
            if ran.preempted:
                policy.hurry()
                raise Preempted(f"preempted after step {int(counter.numpy())}, which is saved")
            if hooks.stop:
                break
        with watchdog.watching():
            step_runner.wait_until_idle()
        if not hooks.stop:
            policy.note_doubled(int(counter.numpy()) - step - ran.steps)
        hooks.epoch_ends(epoch, ran.sums)
        if hooks.is_best and not hooks.stop and int(counter.numpy()) < plan.steps:
            policy.save(hooks)
