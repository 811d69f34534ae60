"""What a training says of itself while it runs: log lines, and event files for TensorBoard."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from aerotrain.contract.progress import Progress
from aerotrain.store import Store
from aerotrain.training.attending.courier import Courier
from aerotrain.training.observing.events import Events
from aerotrain.training.plan import Plan
from aerotrain.training.steps.step import MetricSums, Sums
from aerotrain.training.when import Every

_FOLDER = "tensorboard"
_LOGS = "logs"
_SECONDS_BETWEEN_LINES = 1.0
_LINES_IN_PACE = 10


class Pace:
    """Examples a second, over the last few times that it was asked for.

    Training begins at ``now`` seconds, with ``step`` steps done before.
    """

    def __init__(self, batch_size: int, now: float, step: int) -> None:
        self._batch_size = batch_size
        self._marks = deque([(now, step)], maxlen=_LINES_IN_PACE)

    def at(self, now: float, step: int) -> float:
        """The pace when ``step`` steps are done at ``now`` seconds; 0 where nothing is known."""
        since, first = self._marks[0]
        self._marks.append((now, step))
        return (step - first) * self._batch_size / (now - since) if now > since else 0.0


def main_loss(metrics: Mapping[str, float]) -> float:
    """The loss among ``metrics``; of a model that has several and no sum of them, the first."""
    first = next((name for name in metrics if "loss" in name), next(iter(metrics)))
    return metrics.get("loss", metrics[first])


class Report:
    """Prints progress, keeps the metrics, and writes TensorBoard's event files to ``store``.

    ``metrics`` are those of the last epoch that ended, by name. Training begins with ``start``
    steps done before. ``look`` is called before something is written to the store, and raises
    where this process may not write there any more.
    """

    def __init__(
        self,
        plan: Plan,
        model: keras.Model,
        sums: MetricSums,
        store: Store,
        scratch: Path,
        metrics: Mapping[str, float],
        start: int,
        courier: Courier,
        look: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = dict(metrics)
        self._plan = plan
        self._model = model
        self._sums = sums
        self._store = store
        self._events = Events(scratch / _FOLDER)
        self._courier = courier
        self._look = look
        self._clock = clock
        self._line = Every(_SECONDS_BETWEEN_LINES, clock)
        self._pace = Pace(plan.batch_size, clock(), start)
        self._begun = False

    def progress(self, step: int, sums: Sums) -> None:
        """Say that ``step`` steps are done, whose epoch has come to ``sums`` so far.

        It is said once a second, at the end, and after the first steps: with them the long
        wait for TensorFlow to trace and compile is over.
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
            # A strategy's variable is no number, but TensorFlow makes a tensor of any.
            rate = tf.convert_to_tensor(self._model.optimizer.learning_rate)
            values["learning_rate"] = float(rate)
        self._events.write(step, values)

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """Say what the epoch ``number``, counted from 0, came to."""
        self.metrics = dict(metrics)
        values = " ".join(f"{name}={value:.4f}" for name, value in self.metrics.items())
        print(f"epoch {number + 1} of {self._plan.epochs}: {values}", flush=True)
        step = (number + 1) * self._plan.steps_per_epoch
        self._events.write(step, {f"epoch/{name}": each for name, each in self.metrics.items()})

    def publish(self, logs: Sequence[Path] = ()) -> None:
        """Have the event files, and ``logs``, brought to the store, as they are then."""
        self._events.flush()

        def upload() -> None:
            self._look()
            for file in logs:
                self._store.upload(file, f"{_LOGS}/{file.name}")
            for file in self._events.files():
                self._store.upload(file, f"{_FOLDER}/{file.name}")

        self._courier.send("events", upload)
