"""The report of a running training: log lines, and event files for TensorBoard."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from aerotrain.contract.status import Progress
from aerotrain.store import Store
from aerotrain.training.background.uploader import Uploader
from aerotrain.training.hooks.tensorboard import Events
from aerotrain.training.intervals import Interval
from aerotrain.training.schedule import Plan
from aerotrain.training.steps.metric_state import MetricState, MetricValues

_FOLDER = "tensorboard"
_LOGS = "logs"
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


def main_loss(metrics: Mapping[str, float]) -> float:
    """The loss among ``metrics``; of a model with several losses and no total, the first."""
    first = next((name for name in metrics if "loss" in name), next(iter(metrics)))
    return metrics.get("loss", metrics[first])


class Report:
    """Prints progress, keeps the metrics, and writes TensorBoard's event files to ``store``.

    ``metrics`` are those of the last finished epoch, by name. ``start`` steps were done before.
    ``look`` is called before anything is written to the store, and raises an error if this process
    may not write there any more.
    """

    def __init__(
        self,
        plan: Plan,
        model: keras.Model,
        sums: MetricState,
        store: Store,
        scratch: Path,
        metrics: Mapping[str, float],
        start: int,
        uploader: Uploader,
        look: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = dict(metrics)
        self._plan = plan
        self._model = model
        self._sums = sums
        self._store = store
        self._events = Events(scratch / _FOLDER)
        self._uploader = uploader
        self._look = look
        self._clock = clock
        self._line = Interval(_SECONDS_BETWEEN_LINES, clock)
        self._pace = Pace(plan.batch_size, clock(), start)
        self._begun = False

    def progress(self, step: int, sums: MetricValues) -> None:
        """Report that ``step`` steps are done, with the ``sums`` of their epoch so far.

        It is printed once a second, at the end, and after the first execution, which shows that
        TensorFlow has traced and compiled.
        """
        if self._begun and step < self._plan.steps and not self._line.due():
            return
        self._begun = True
        loss = main_loss(self._sums.results(sums))
        pace = self._pace.at(self._clock(), step)
        left = (self._plan.steps - step) * self._plan.batch_size
        line = Progress(
            step=step,
            steps=self._plan.steps,
            loss=loss,
            examples_per_second=pace,
            seconds_left=left / pace if pace else 0.0,
        )
        print(line, flush=True)
        values = {"loss": loss, "examples_per_second": pace}
        if self._model.optimizer is not None:
            # A strategy's variable is not a number, but TensorFlow converts it to a tensor.
            rate = tf.convert_to_tensor(self._model.optimizer.learning_rate)
            values["learning_rate"] = float(rate)
        self._events.write(step, values)

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of the epoch ``number``, counted from 0."""
        self.metrics = dict(metrics)
        values = " ".join(f"{name}={value:.4f}" for name, value in self.metrics.items())
        print(f"epoch {number + 1} of {self._plan.epochs}: {values}", flush=True)
        step = (number + 1) * self._plan.steps_per_epoch
        self._events.write(step, {f"epoch/{name}": each for name, each in self.metrics.items()})

    def publish(self, logs: Sequence[Path] = ()) -> None:
        """Upload the event files and ``logs``, in their state at the time of the upload."""
        self._events.flush()

        def upload() -> None:
            self._look()
            for file in logs:
                self._store.upload(file, f"{_LOGS}/{file.name}")
            for file in self._events.files():
                self._store.upload(file, f"{_FOLDER}/{file.name}")

        self._uploader.send("events", upload)
