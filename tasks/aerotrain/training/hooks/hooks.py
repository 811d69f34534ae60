"""The interface of hooks, the state of the loop that they share, and two of them."""

import inspect
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import keras

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.contract.layout import LOGS
from aerotrain.data.dataset import load_statistics
from aerotrain.training.checkpoints.checkpoints import SavedState
from aerotrain.training.checkpoints.snapshot import random_state, restore_random_state
from aerotrain.training.context import TrainingContext
from aerotrain.training.input.order import Schedule
from aerotrain.training.model.callbacks import AFTER, BEFORE, Callbacks, variables_of
from aerotrain.training.model.checks import validates
from aerotrain.training.step_runner import Spent, StepsRun
from aerotrain.training.steps.state import MetricState, MetricValues

#: The strategy whose model computes whatever a callback asks for.
ALONE = "one_device"


@dataclass(kw_only=True)
class TrainState:
    """The state of the training loop between two executions."""

    #: Steps done, and the epoch, from 0, with its number of steps done.
    step: int
    epoch: int
    epoch_step: int
    #: The time of the last execution.
    spent: tuple[Spent, ...] = ()
    #: The metric state of the epoch so far, None between two epochs.
    sums: MetricValues | None = None
    #: The metrics of the last finished epoch, by name.
    metrics: dict[str, float] = field(default_factory=dict)
    #: Whether the current weights are the best that were measured.
    is_best: bool = False
    #: Whether training ends before its schedule does.
    stop: bool = False
    #: Whether a replica that computes with this one was preempted.
    preempted: bool = False

    @classmethod
    def at(cls, step: int, schedule: Schedule) -> Self:
        """The state after ``step`` steps, before anything else is known."""
        epoch, epoch_step = schedule.position(step)
        return cls(step=step, epoch=epoch, epoch_step=epoch_step)

    def move_to(self, step: int, schedule: Schedule) -> None:
        """Continue after ``step`` steps."""
        self.step, (self.epoch, self.epoch_step) = step, schedule.position(step)

    def advance(self, step: int, ran: StepsRun) -> None:
        """Take over the result of an execution, after which ``step`` steps are done."""
        self.step, self.epoch_step = step, self.epoch_step + step - self.step
        self.sums, self.is_best, self.preempted = ran.sums, False, ran.preempted
        self.spent = ran.spent

    def results(self, metrics: MetricState) -> dict[str, float]:
        """The metrics of the epoch so far, by name."""
        assert self.sums is not None
        return metrics.results(self.sums)


class Hook:
    """What happens at fixed points of the training loop; by default nothing.

    At each point the loop calls its hooks in their order. A hook may end the training by setting
    ``state.stop`` or by an error.
    """

    #: Whether it must be called before and after each single step.
    each_step = False

    def on_start(self, state: TrainState, restored: SavedState) -> None:
        """Called once, with what was restored from a checkpoint; empty without one."""

    def on_epoch_begin(self, state: TrainState) -> None:
        """Called before the first execution of an epoch, or of what is left of it."""

    def on_execution_begin(self, state: TrainState) -> None:
        """Called before each execution; under a coordinator, others are in flight."""

    def on_execution(self, state: TrainState) -> None:
        """Called after each execution."""

    def on_epoch_end(self, state: TrainState) -> None:
        """Called when the steps of an epoch are done, or training is stopped in it.

        ``state.metrics`` are those of the epoch.
        """

    def on_end(self, state: TrainState) -> None:
        """Called once, after the last epoch, when the weights are final but for callbacks."""

    def on_save(self, state: TrainState) -> None:
        """Called when a checkpoint was saved, which is uploaded meanwhile."""

    def to_save(self, state: TrainState) -> SavedState:
        """What a checkpoint keeps of this hook: it is passed to ``on_start`` of a later process."""
        return SavedState()


class FiniteValues(Hook):
    """Ends a training whose loss or weights are not finite."""

    def __init__(self, context: TrainingContext) -> None:
        self._metrics = context.step.metrics
        self._data = context.arguments.data

    def on_execution(self, state: TrainState) -> None:
        """Raises FinalError after a step with a value that is not finite, with the first one."""
        assert state.sums is not None
        step = self._metrics.bad_step(state.sums)
        if step is None:
            return
        columns = ""
        with suppress(AerotrainError):  # the error itself says more
            columns = ", ".join(
                f"{name} ({column['missing']})"
                for name, column in load_statistics(self._data).items()
                if column["missing"]
            )
        raise FinalError(
            f"the loss of step {step}, or a weight after it, is no finite number, so training has "
            "stopped there; lower the learning rate, clip the gradients, or look for such values "
            f"in the data{f': these columns have missing values: {columns}' if columns else ''}"
        )


class UserCallbacks(Hook):
    """Calls the user's callbacks in the chief; all other replicas follow what they decide and set.

    Raises:
        FinalError: a callback is not accepted, or monitors what is never logged.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        code, arguments, metrics = context.pipeline.code, context.arguments, context.step.metrics
        given = code.reads.call(code.callbacks, arguments.all_hparams)
        measured = metrics.measured_names()
        self._callbacks = Callbacks(
            code.name,
            given,
            context.model,
            arguments.epochs,
            arguments.export_best,
            [*metrics.names(), *(f"val_{name}" for name in measured or ())],
            context.schedule.steps_per_epoch,
        )
        #: Whether the chief saves each best epoch, and measures the validation split after each.
        self.saves_best = bool(arguments.validate) or self._callbacks.monitor_validation
        self.validates = self.saves_best or validates(
            context.replica.job, arguments, context.pipeline.dataset, context.model
        )
        self._callbacks.check_monitored(metrics.names(), measured if self.validates else [])
        self._logs: dict[str, float] = {}
        self._variables = self._callbacks.variables(context.distribution.created())
        if context.is_chief and self._callbacks.given and context.replica.job.strategy != ALONE:
            compute_locally(context)
        if hook := self._callbacks.own_by_batch:
            self._set_steps(hook)

    def _set_steps(self, hook: str) -> None:
        """Call ``hook`` at each step, unless the user, or asynchronous steps, need more of them."""
        asynchronous = bool(self._context.replica.job.rules.ps)
        given = self._context.arguments.steps_per_execution
        self.each_step = given is None and not asynchronous
        if not self._context.is_chief or given == 1:
            return
        if self.each_step:
            print(f"steps_per_execution is 1, because of {hook}", flush=True)
            return
        steps = self._context.arguments.steps_of_execution
        print(f"{hook} is called once for up to {steps} steps (steps_per_execution)", flush=True)

    def watched(self) -> Callbacks:
        """The callbacks, to be called in the chief; before the next step, all have to agree."""
        self._context.distribution.watch(self._variables)
        return self._callbacks

    def on_start(self, state: TrainState, restored: SavedState) -> None:
        stopped = False
        if self._context.is_chief:
            stopped = self.watched().begin(restored.about, restored.files)
        # What stops a training as it begins lets one step run, as under ``fit``.
        state.stop = self._context.distribution.reach(stopped, self._variables)
        if state.stop:
            print("a callback has ended this training before; it stays as it is", flush=True)

    def on_epoch_begin(self, state: TrainState) -> None:
        if self._callbacks.defines("on_train_begin", "on_epoch_begin"):
            self._call(state, lambda callbacks: callbacks.list.on_epoch_begin(state.epoch))

    def on_execution_begin(self, state: TrainState) -> None:
        if self._callbacks.defines(*BEFORE):
            first = state.epoch_step
            self._call(state, lambda callbacks: callbacks.list.on_train_batch_begin(first))

    def on_execution(self, state: TrainState) -> None:
        if self._callbacks.defines(*AFTER):
            metrics, last = self._context.step.metrics, state.epoch_step - 1
            self._call(
                state, lambda each: each.list.on_train_batch_end(last, state.results(metrics))
            )

    def on_epoch_end(self, state: TrainState) -> None:
        # A replica that does not validate waits here for the one that does, and not in the next
        # step.
        if self._callbacks.given or self.validates:
            # Callbacks add to them, and get the last ones at the end of the training.
            self._logs = dict(state.metrics)
            self._call(state, lambda each: each.list.on_epoch_end(state.epoch, self._logs))

    def on_end(self, state: TrainState) -> None:
        if self._context.is_chief:
            self._callbacks.list.on_train_end(self._logs or dict(state.metrics))

    def on_save(self, state: TrainState) -> None:
        if logs := self._callbacks.logs():
            self._context.services.upload(LOGS, logs)

    def to_save(self, state: TrainState) -> SavedState:
        about, files = self._callbacks.remember()
        return SavedState(about=about, files=files)

    def _call(self, state: TrainState, function: Callable[[Callbacks], None]) -> None:
        """Call callbacks in the chief, and let all replicas take over what they have set."""
        if self._context.is_chief:
            function(self.watched())
        state.stop = self._context.distribution.reach(self._callbacks.stop, self._variables)


#: Computed by a copy of the model with the current weights.
_BY_COPY = ("evaluate", "export", "predict", "predict_on_batch", "save", "test_on_batch")

#: What would train another model than the job's steps do.
_REFUSED = ("compile", "fit", "train_on_batch")


def compute_locally(context: TrainingContext) -> None:
    """Let the model compute in this process alone; what it cannot is a FinalError."""
    pipeline, arguments = context.pipeline, context.arguments

    @cache
    def copy() -> keras.Model:
        before = random_state()  # of which new weights would draw
        model = pipeline.code.build(arguments.all_hparams, pipeline.spec, arguments.dtype_policy)
        restore_random_state(before)
        return model

    def by_copy(name: str, *given: Any, **options: Any) -> Any:
        copy_variables(context.model, copy(), optimizers=True)
        return getattr(copy(), name)(*given, **options)

    def refuse(name: str, *_given: Any, **_options: Any) -> None:
        raise FinalError(
            f"{_caller()} calls {name} of the model that is being trained, and under "
            f"{context.replica.job.strategy!r} several processes or devices train it by steps of "
            "their own; leave that call out, or call it on a model that the callback creates"
        )

    for name in _BY_COPY:
        setattr(context.model, name, partial(by_copy, name))
    for name in _REFUSED:
        setattr(context.model, name, partial(refuse, name))


def copy_variables(trained: keras.Model, copy: keras.Model, *, optimizers: bool = False) -> None:
    """Give a copy of a model outside any strategy the values of the trained one."""
    values = variables_of(trained, optimizers=optimizers)
    for own, value in zip(variables_of(copy, optimizers=optimizers), values, strict=True):
        own.assign(value.numpy())


def _caller() -> str:
    """The callback, and its line, that has called this."""
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.callbacks.Callback):
            if isinstance(owner, keras.callbacks.CallbackList):
                break
            file, name = Path(frame.f_code.co_filename).name, frame.f_code.co_name
            return f"{type(owner).__name__} (line {line} of {file}, in {name})"
    return "a callback"
