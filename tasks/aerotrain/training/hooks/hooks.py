"""The hooks of a training: what runs between executions and epochs."""

import math
from collections.abc import Mapping
from typing import Any

import keras

from aerotrain.contract.errors import FinalError
from aerotrain.training.checkpoints.checkpoints import Restored
from aerotrain.training.checkpoints.state import (
    optimizer_state,
    random_state,
    restore_random,
    sums_as_file,
    sums_of,
)
from aerotrain.training.distribution import ChiefDecisions, Distribution
from aerotrain.training.hooks.report import Report
from aerotrain.training.hooks.validation import Validation, weights_of
from aerotrain.training.model.callbacks import Callbacks, Files
from aerotrain.training.step_runner import StepsRun
from aerotrain.training.steps.metric_state import MetricState, MetricValues


class Hooks:
    """Called after every execution and epoch; decides when the training stops.

    Callbacks run in the scope of ``distribution``, so that assignments reach the variables wherever
    they are. They run in the chief only, and all other replicas follow it.
    """

    def __init__(
        self,
        distribution: Distribution,
        model: keras.Model,
        sums: MetricState,
        report: Report,
        callbacks: Callbacks,
        validation: Validation | None,
        decisions: ChiefDecisions,
        *,
        validated: bool,
    ) -> None:
        self._distribution = distribution
        self._model = model
        self._sums = sums
        self._report = report
        self._callbacks = callbacks
        self._validation = validation
        self._is_chief = decisions.is_chief
        self._agreement = decisions
        #: Whether the chief validates at the end of each epoch, if this is not the chief.
        self._validated = validated
        #: Whether the training ends before its plan does.
        self.stop = False
        #: The sums of the epoch so far, None between two epochs.
        self.sums: MetricValues | None = None
        #: Whether the current model is the best that was measured.
        self.is_best = False
        self._best = math.inf
        self._loss: float | None = None

    def begin(self, restored: Restored) -> None:
        """Start, or resume from a checkpoint."""
        if self._is_chief:
            with self._distribution.scope():
                self._callbacks.begin(restored.about, restored.files)
        restore_random(restored.files)
        self.sums = sums_of(restored.files, self._sums.zero)
        self._best = restored.about.get("best_val_loss") or math.inf
        self.stop = self._agreement.reach(self._callbacks.stop, self._model)
        if self.stop:
            print("a callback has ended this training before; it stays as it is", flush=True)

    def epoch_begins(self, epoch: int) -> None:
        if self._is_chief:
            with self._distribution.scope():
                self._callbacks.epoch_begins(epoch)

    def ran(self, step: int, done: int, ran: StepsRun, before: int) -> None:
        """Handle the result ``ran`` of an execution; ``ran`` counts steps from ``step`` on.

        ``done`` steps of the epoch were done at ``step``, and ``before`` more when the execution
        started.

        Raises:
            FinalError: the loss is not finite.
        """
        check_loss(self._sums, ran.sums)
        self.sums, self.is_best, self._loss = ran.sums, False, None
        self._report.progress(step + ran.steps, ran.sums)
        if not self._callbacks.by_batch:
            return
        if self._is_chief:
            logs = self._sums.results(ran.sums)
            with self._distribution.scope():
                self._callbacks.execution(done + before, done + ran.steps - 1, logs)
        self.stop = self._agreement.reach(self._callbacks.stop, self._model)

    def epoch_ends(self, epoch: int, sums: MetricValues) -> None:
        self.sums = None
        metrics = self._sums.results(sums)
        if self._validation is not None:
            measured = self._validation.measure(weights_of(self._model))
            metrics |= {f"val_{name}": value for name, value in measured.items()}
            self._loss = metrics.get("val_loss", math.inf)
            self.is_best = self._loss < self._best
            self._best = min(self._loss, self._best)
        self._report.epoch(epoch, metrics)
        if not (self._callbacks.given or self._validated):
            return
        if self._is_chief:
            with self._distribution.scope():
                self._callbacks.epoch_ends(epoch, metrics)
        # A replica that does not validate waits here for the one that does, and not in the next
        # step.
        self.stop = self._agreement.reach(self._callbacks.stop, self._model)

    def end(self) -> None:
        """End the training; a callback may still change the weights that are saved."""
        if self._is_chief:
            with self._distribution.scope():
                self._callbacks.end(self._report.metrics)

    def remember(self) -> tuple[Mapping[str, Any], Files]:
        """The metadata and files of a checkpoint."""
        if not self._is_chief:
            return {}, {}
        about, files = self._callbacks.remember()
        best = None if math.isinf(self._best) else self._best
        values = {"val_loss": self._loss, "best_val_loss": best, **optimizer_state(self._model)}
        about = {"metrics": self._report.metrics, **values, **about}
        return about, {**files, **random_state(), **sums_as_file(self.sums)}

    def publish(self) -> None:
        """Upload the logs in their current state."""
        self._report.publish(self._callbacks.logs())


def check_loss(sums: MetricState, reached: MetricValues) -> None:
    """Raise FinalError if the loss of a step was not finite, with the first such step."""
    step = sums.bad_step(reached)
    if step is not None:
        raise FinalError(
            f"the loss of step {step} is no finite number, so training has stopped there; lower "
            "the learning rate, clip the gradients, or look for such values in the data"
        )
