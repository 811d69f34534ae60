"""The report of a running training: log lines, and event files for TensorBoard."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.status import Progress
from aerotrain.training.checkpoints.checkpoints import SavedState
from aerotrain.training.checkpoints.interval import Interval
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState

_FOLDER = "tensorboard"
_SECONDS_BETWEEN_LINES = 1.0
_LINES_IN_PACE = 10


class Pace:
    """Examples per second, over the last few calls.

    Training starts at ``now`` seconds, with ``step`` steps done before.
    """

    def __init__(self, batch_size: int, now: float, step: int) -> None:
        self._batch_size = batch_size
        self._marks = deque([(now, step)], maxlen=_LINES_IN_PACE)

    def at(self, now: float, step: int) -> float:
        """The pace when ``step`` steps are done at ``now`` seconds; 0 if it is unknown."""
        since, first = self._marks[0]
        self._marks.append((now, step))
        return (step - first) * self._batch_size / (now - since) if now > since else 0.0


class Report(Hook):
    """Prints progress, and writes TensorBoard's event files.

    A line is printed once a second, at the end, and after the first execution, which shows that
    TensorFlow has traced and compiled.
    """

    def __init__(
        self, context: TrainingContext, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._clock = clock
        self._events = EventFiles(context.replica.scratch / _FOLDER)

    def on_start(self, state: TrainState, restored: SavedState) -> None:
        self._begun = False
        self._line = Interval(_SECONDS_BETWEEN_LINES, self._clock)
        self._pace = Pace(self._context.schedule.batch_size, self._clock(), state.step)

    def on_execution(self, state: TrainState) -> None:
        schedule = self._context.schedule
        if self._begun and state.step < schedule.steps and not self._line.due():
            return
        self._begun = True
        loss = main_loss(state.results(self._context.step.metrics))
        pace = self._pace.at(self._clock(), state.step)
        left = (schedule.steps - state.step) * schedule.batch_size
        line = Progress(
            step=state.step,
            steps=schedule.steps,
            loss=loss,
            examples_per_second=pace,
            seconds_left=left / pace if pace else 0.0,
        )
        print(line, flush=True)
        values = {"loss": loss, "examples_per_second": pace}
        if (optimizer := self._context.model.optimizer) is not None:
            # A strategy's variable is not a number, but TensorFlow converts it to a tensor.
            values["learning_rate"] = float(tf.convert_to_tensor(optimizer.learning_rate))
        self._events.write(state.step, values)

    def on_epoch_end(self, state: TrainState) -> None:
        schedule = self._context.schedule
        values = " ".join(f"{name}={value:.4f}" for name, value in state.metrics.items())
        print(f"epoch {state.epoch + 1} of {schedule.epochs}: {values}", flush=True)
        step = (state.epoch + 1) * schedule.steps_per_epoch
        self._events.write(step, {f"epoch/{name}": each for name, each in state.metrics.items()})

    def on_save(self, state: TrainState) -> None:
        self._events.flush()
        self._context.services.upload(_FOLDER, self._events.files())


def main_loss(metrics: Mapping[str, float]) -> float:
    """The loss among ``metrics``; of a model with several losses and no total, the first."""
    first = next((name for name in metrics if "loss" in name), next(iter(metrics)))
    return metrics.get("loss", metrics[first])


class EventFiles:
    """Writes scalars into TensorBoard's event files in ``folder``.

    On a full disk, scalars are dropped with one warning, because training matters more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = tf.summary.create_file_writer(str(folder))
        self._has_warned = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the ``values``, by name, of ``step``."""
        with self._ignoring_full_disk(), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def flush(self) -> None:
        """Write everything that is buffered to the files."""
        with self._ignoring_full_disk():
            self._writer.flush()

    def files(self) -> list[Path]:
        """The current files."""
        return list(self._folder.glob("*"))

    @contextmanager
    def _ignoring_full_disk(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            if not self._has_warned:
                print(f"warning: curves for TensorBoard are lost: {error.message}", flush=True)
            self._has_warned = True
