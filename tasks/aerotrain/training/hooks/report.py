"""The report of a running training: log lines, curves, and event files for TensorBoard."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.event_log import EventType
from aerotrain.contract.layout import TENSORBOARD
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Progress, StepTime
from aerotrain.training.background.writers import CurveWriter, Interval
from aerotrain.training.checkpoints.checkpoints import SavedState
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState
from aerotrain.training.step_runner import Spent

#: The most executions of a replica whose mean is taken.
_EXECUTIONS = 20


class StepTimes(Hook):
    """Reports the time of the last steps of this replica, or of each worker of its coordinator.

    After the first execution it reports that this replica trains: only then its start has ended,
    by which the timeline and the goodput of a run have it.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._own = context.replica.name
        self._status = context.services.status_writer
        self._note = context.services.event_writer.note
        self._is_ready = False
        self._spent: dict[ReplicaName, deque[Spent]] = defaultdict(
            lambda: deque(maxlen=_EXECUTIONS)
        )

    def on_execution(self, state: TrainState) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._status.ready()
            self._note(EventType.READY, step=state.step)
        for spent in state.spent:
            name = self._own if spent.worker is None else ReplicaName(Role.WORKER, spent.worker)
            self._spent[name].append(spent)
        self._status.step_times = {str(each): mean(found) for each, found in self._spent.items()}

    def shares(self) -> dict[str, float]:
        """The shares of the time in which steps waited for input, and communicated if known."""
        found = [mean(each) for each in self._spent.values()]
        whole = sum(each.seconds for each in found)
        if not whole:
            return {}
        shares = {"input_wait": sum(each.input for each in found) / whole}
        known = [each.communication for each in found if each.communication is not None]
        if len(known) == len(found):
            shares["communication"] = sum(known) / whole
        return shares


def mean(executions: "deque[Spent]") -> StepTime:
    """The mean time of a step."""
    steps = sum(each.steps for each in executions)
    seconds = sum(each.seconds for each in executions) / steps
    waiting = sum(each.input for each in executions) / steps
    known = [each.computing for each in executions if each.computing is not None]
    communication = None
    if len(known) == len(executions):
        communication = max(0.0, seconds - waiting - sum(known) / steps)
    return StepTime(seconds=seconds, input=waiting, communication=communication)


_SECONDS_BETWEEN_SCALARS = 1.0
_SECONDS_BETWEEN_LINES = 10.0
_POINTS_IN_PACE = 10

#: Epochs at the beginning of which each has a line in the log. With a line each, thousands of short
#: ones would hide the lines of progress.
_EPOCHS_WITH_LINES = 10
_SECONDS_BETWEEN_EPOCHS = 5.0


class Pace:
    """Examples per second, over the last few calls.

    What happens before the first call does not count: TensorFlow traces and compiles.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=_POINTS_IN_PACE)

    def at(self, now: float, examples: int) -> float | None:
        """The pace when ``examples`` are done at ``now`` seconds; None if it is unknown."""
        since, first = self._marks[0] if self._marks else (now, examples)
        self._marks.append((now, examples))
        return (examples - first) / (now - since) if now > since else None


class Report(Hook):
    """Prints progress, and writes the curves and TensorBoard's event files.

    A line is printed after the first execution, which shows that TensorFlow has traced and
    compiled; then after 1, 2, 4 and 8 seconds, each ten seconds, and at the end. Each of the first
    ten epochs has a line; then one each five seconds, and the last. The curves have a point for
    each execution of a short training, those of TensorBoard one for each second; and one for each
    epoch. They contain the shares of ``step_times``.
    """

    def __init__(
        self,
        context: TrainingContext,
        step_times: StepTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._step_times = step_times
        self._clock = clock
        self._events = EventFiles(context.replica.scratch / TENSORBOARD)
        services = context.services
        self._curves = CurveWriter(
            services.store,
            services.uploader,
            services.lease.put,
            steps=context.schedule.steps,
            data=context.arguments.data,
        )

    def on_start(self, state: TrainState, restored: SavedState) -> None:
        self._begun = False
        self._scalars = Interval(_SECONDS_BETWEEN_SCALARS, self._clock)
        self._line = Interval(_SECONDS_BETWEEN_SCALARS, self._clock, _SECONDS_BETWEEN_LINES)
        self._pace = Pace()
        self._epoch_line = Interval(_SECONDS_BETWEEN_EPOCHS, self._clock)
        self._epochs = 0
        #: The line of the last epoch, if it was not printed.
        self._epoch = ""

    def on_execution(self, state: TrainState) -> None:
        schedule = self._context.schedule
        is_first_or_last = not self._begun or state.step >= schedule.steps
        has_point, has_scalars = self._curves.due(), self._scalars.due()
        if not (has_point or has_scalars or is_first_or_last):
            return
        self._begun = True
        loss = main_loss(state.results(self._context.step.metrics))
        pace = self._pace.at(self._clock(), schedule.records_after(state.step))
        shares = self._step_times.shares()
        if self._line.due() or is_first_or_last:
            print(self._progress(state.step, loss, pace, shares), flush=True)
        values = {"loss": loss, **shares}
        if pace is not None:
            values["examples_per_second"] = pace
        if (optimizer := self._context.model.optimizer) is not None:
            # A strategy's variable is not a number, but TensorFlow converts it to a tensor.
            values["learning_rate"] = float(tf.convert_to_tensor(optimizer.learning_rate))
        if has_scalars or is_first_or_last:
            self._events.write(state.step, values)
        if has_point or is_first_or_last:
            self._curves.add(state.step, values, at_once=is_first_or_last)

    def _progress(
        self, step: int, loss: float, pace: float | None, shares: Mapping[str, float]
    ) -> Progress:
        schedule = self._context.schedule
        left = schedule.records_after(schedule.steps) - schedule.records_after(step)
        seconds = left / pace if pace else None
        return Progress(
            step=step,
            steps=schedule.steps,
            loss=loss,
            examples_per_second=pace,
            seconds_left=seconds if left else 0.0,
            **shares,
        )

    def on_epoch_end(self, state: TrainState) -> None:
        schedule = self._context.schedule
        values = " ".join(f"{name}={value:.4f}" for name, value in state.metrics.items())
        self._epoch = f"epoch {state.epoch + 1} of {schedule.epochs}: {values}"
        self._epochs += 1
        if self._epochs <= _EPOCHS_WITH_LINES or self._epoch_line.due():
            self._print_epoch()
        step = (state.epoch + 1) * schedule.steps_per_epoch
        self._events.write(step, {f"epoch/{name}": each for name, each in state.metrics.items()})
        self._curves.add_epoch(state.epoch, step, state.metrics)

    def on_end(self, state: TrainState) -> None:
        self._print_epoch()
        self._curves.publish()

    def _print_epoch(self) -> None:
        """Print the line of the last epoch, unless it is printed."""
        if self._epoch:
            print(self._epoch, flush=True)
        self._epoch = ""

    def on_save(self, state: TrainState) -> None:
        self._events.flush()
        self._context.services.upload(TENSORBOARD, self._events.files())


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
