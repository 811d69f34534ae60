"""Checkpointing: when a training is saved, and the record of what that costs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aerotrain.contract.event_log import EventType
from aerotrain.replica import Preempted
from aerotrain.training.background.writers import Interval
from aerotrain.training.checkpoints.checkpoints import Checkpoints, SavedState
from aerotrain.training.checkpoints.snapshot import (
    metric_state_of,
    metric_state_to_file,
    random_state,
    restore_random_state,
)
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState
from aerotrain.training.step_runner import StepRunner

#: Seconds between two TRAIN events of the event log.
_BETWEEN_EVENTS = 30.0

#: The share of the grace period that may pass until the last checkpoint is in the store.
_MOST_OF_GRACE = 0.8


@dataclass
class Checkpointing(Hook):
    """Saves a training: at an interval, when preempted, after its best epochs, and at its end.

    No step is saved twice: what is due with the last execution of an epoch is saved when the epoch
    has ended, and what is due with the last step when the training has ended.

    It comes after all other hooks, of which ``saved`` are those whose state a checkpoint keeps.
    ``step_runner`` brings the training to rest. The event log gets the steps of the training and
    the time for which saving stops it.
    """

    context: TrainingContext
    checkpoints: Checkpoints
    interval: Interval
    saved: Sequence[Hook]
    step_runner: StepRunner
    clock: Callable[[], float] = time.monotonic
    #: The URL of the last checkpoint, when the training has ended.
    url: str = ""

    def __post_init__(self) -> None:
        self._note = self.context.services.event_writer.note

    def on_start(self, state: TrainState, restored: SavedState) -> None:
        """Restore what ``_save`` has saved; after this, a preempted training saves."""
        # Last of all hooks, because callbacks may draw numbers as they start.
        restore_random_state(restored.files)
        state.sums = metric_state_of(restored.files, self.context.step.metrics.zero)
        state.metrics = dict(restored.about.get("metrics", {}))
        #: The step at which the restored training had ended, -1 if it had not.
        self._ended_at = restored.about.get("step", -1) if restored.about.get("ended") else -1
        self._is_due = False
        self._events = Interval(_BETWEEN_EVENTS, self.clock)
        self._noted_at = self.clock()
        self._has_begun = False
        self.context.replica.notice.promise()

    def on_execution(self, state: TrainState) -> None:
        """Raises Preempted when a replica was preempted, and all is saved."""
        self.context.services.uploader.check()
        if not self._has_begun:  # the start has ended: see ``StepTimes``
            self._has_begun, self._noted_at = True, self.clock()
        if self._events.due():
            self._note_steps()
        self._is_due |= self.interval.due()
        ends = state.stop or state.epoch_step == self.context.schedule.steps_per_epoch
        if state.preempted or (self._is_due and not ends):
            if not self.step_runner.comes_to_rest():
                return
            self._save(state)
        if state.preempted:
            step, grace = self.context.steps_done(), self.context.replica.notice.grace
            self._note(EventType.PREEMPTED, step=step)
            if not self.context.services.uploader.wait(grace * _MOST_OF_GRACE):
                print("warning: the last checkpoint did not reach the store in time", flush=True)
            raise Preempted(f"preempted after step {step}, which is saved")

    def on_epoch_end(self, state: TrainState) -> None:
        step, schedule = self.context.steps_done(), self.context.schedule
        if (self._is_due or state.is_best) and not state.stop and step < schedule.steps:
            self._save(state)

    def on_end(self, state: TrainState) -> None:
        self._note_steps()
        if self._ended_at == self.context.steps_done():  # a retry of a training that had ended
            self.url = self.checkpoints.url(self.checkpoints.restored)
        else:
            self.url = self.checkpoints.finish(self._state_to_save(state, ended=True))
        for each in self.saved:
            each.on_save(state)
        self.context.services.uploader.wait(self.context.replica.notice.grace)
        self._note(EventType.END, step=self.context.steps_done())

    def _save(self, state: TrainState) -> None:
        """Save the current state; the upload continues in the background."""
        self._note_steps()
        self._is_due = False
        began = self.clock()
        self.checkpoints.save(self._state_to_save(state))
        stall = self.clock() - began
        self._note(EventType.SAVE_STALL, seconds=stall, step=self.context.steps_done())
        self._noted_at = self.clock()
        for each in self.saved:
            each.on_save(state)

    def _state_to_save(self, state: TrainState, *, ended: bool = False) -> SavedState:
        about: dict[str, Any] = {"metrics": state.metrics, "ended": ended}
        about["position"] = self.step_runner.position()
        files = metric_state_to_file(state.sums)
        for each in (hook.to_save(state) for hook in self.saved):
            about, files = {**about, **each.about}, {**files, **each.files}
        # Last, because a callback may draw numbers as its state is read.
        return SavedState(about=about, files={**files, **random_state()})

    def _note_steps(self) -> None:
        now = self.clock()
        step = self.context.steps_done()
        self._note(EventType.TRAIN, seconds=now - self._noted_at, step=step)
        self._noted_at = now
