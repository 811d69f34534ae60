"""The policy that decides when a training is saved, and records what that costs."""

from collections.abc import Callable

from aerotrain.contract.event_log import EventType
from aerotrain.training.background.event_writer import EventWriter
from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.hooks.hooks import Hooks
from aerotrain.training.intervals import Interval
from aerotrain.training.schedule import Plan

#: Seconds between two TRAIN events of the event log.
_BETWEEN_ENTRIES = 30.0

#: Seconds after which the pace is known, and the length of a training that needs no warning.
_PACE_KNOWN, _SHORT = 5.0, 60.0

#: The share of the grace period that may pass until the last checkpoint is in the store.
_MOST_OF_GRACE = 0.8


class CheckpointPolicy:
    """Saves a training at an interval, and records its steps and stalls in the event log."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        event_writer: EventWriter,
        interval: Interval,
        step: Callable[[], int],
        plan: Plan,
        *,
        grace: float,
        clock: Callable[[], float],
    ) -> None:
        self._checkpoints = checkpoints
        self._event_writer = event_writer
        self._interval = interval
        self._step = step
        self._plan = plan
        self._grace = grace
        self._clock = clock
        self._began: tuple[float, int] | None = None
        self._warned = False
        self._entry = Interval(_BETWEEN_ENTRIES, clock)
        self._since = clock()

    def due(self) -> bool:
        """Whether it is time to save. Call it after each execution."""
        self._checkpoints.check()
        self._warn_of_interval()
        if self._entry.due():
            self._note_steps()
        return self._interval.due()

    def save(self, hooks: Hooks) -> None:
        """Save the current state; the upload continues in the background."""
        self._note_steps()
        began = self._clock()
        self._checkpoints.save(*self._state(hooks))
        stall = self._clock() - began
        self._interval.cost(stall)
        self._event_writer.note(EventType.SAVE_STALL, seconds=stall, step=self._step())
        self._since = self._clock()
        hooks.publish()

    def finish(self, hooks: Hooks) -> str:
        """Save, wait for the upload, and return the URL of the checkpoint."""
        self._note_steps()
        url = self._checkpoints.finish(*self._state(hooks))
        hooks.publish()
        self._checkpoints.hurry(self._grace)
        return url

    def hurry(self) -> None:
        """Wait for the upload of the last checkpoint, within the grace period."""
        self._event_writer.note(EventType.PREEMPTED, step=self._step())
        if not self._checkpoints.hurry(self._grace * _MOST_OF_GRACE):
            print("warning: the last checkpoint did not reach the store in time", flush=True)

    def note_doubled(self, steps: int) -> None:
        """Record that ``steps`` steps ran twice: closures that a failed worker had partly run."""
        if steps > 0:
            why = f"{steps} steps ran twice, on a worker that was lost and on another"
            self._event_writer.note(EventType.REWORK, step=self._step(), because=why)
            print(f"{why}, by step {self._step()}", flush=True)

    def _state(self, hooks: Hooks) -> tuple[dict[str, object], dict[str, bytes]]:
        about, files = hooks.remember()
        epoch, batches = self._plan.position(self._step())
        return {"epoch": epoch, "batches": batches, **about}, dict(files)

    def _warn_of_interval(self) -> None:
        """Warn once, when the pace is known, if the training will end before its first save."""
        if self._began is None:
            self._began = self._clock(), self._step()
        since, first = self._began
        seconds = self._clock() - since
        if self._warned or seconds < _PACE_KNOWN or (steps := self._step() - first) <= 0:
            return
        self._warned = True
        whole = seconds / steps * (self._plan.steps - first)
        if self._interval.seconds > max(whole, _SHORT):
            print(
                f"warning: checkpoint_interval is {self._interval.seconds:g}, and this training "
                f"takes about {whole:.0f} s: a failure would lose all of it; choose a shorter "
                "interval, or leave it empty",
                flush=True,
            )

    def _note_steps(self) -> None:
        now = self._clock()
        self._event_writer.note(EventType.TRAIN, seconds=now - self._since, step=self._step())
        self._since = now
