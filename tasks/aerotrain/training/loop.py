"""The training loop: it says when something happens, and its hooks say what."""

from collections.abc import Iterator, Sequence

from aerotrain.training.background.services import Watchdog
from aerotrain.training.checkpoints.checkpoints import SavedState
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState
from aerotrain.training.step_runner import StepRunner


class Executions:
    """Runs the steps of a training, which the watchdog watches while they are awaited."""

    def __init__(
        self, context: TrainingContext, step_runner: StepRunner, watchdog: Watchdog
    ) -> None:
        self._context = context
        self._step_runner = step_runner
        self._watchdog = watchdog
        watchdog.compiling = lambda: step_runner.compiles
        self._step = context.steps_done()

    def of_epoch(self, state: TrainState, hooks: Sequence[Hook]) -> Iterator[None]:
        """Run what is left of an epoch, and yield when ``state`` has the result of an execution.

        Hooks are called before each, which is one step if one of them must see each step, or if a
        hook has ended the training: as under ``fit``, one more step is run.
        """
        notice = self._context.replica.notice
        stepwise = state.stop or any(hook.each_step for hook in hooks)
        while (left := self._context.schedule.steps_per_epoch - state.epoch_step) > 0:
            first = state.step
            results = self._step_runner.run(1 if stepwise else left, state.sums, notice.given)
            done = 0
            while done < (1 if stepwise else left):
                for hook in hooks:
                    hook.on_execution_begin(state)
                with self._watchdog.watching(state.step) as ended:
                    ran = next(results)
                    ended(ran.steps - done)
                done = ran.steps
                state.advance(first + done, ran)
                self._step = state.step
                yield

    def wait_until_idle(self) -> None:
        """Wait until no step is in flight, so that the variables can be read."""
        with self._watchdog.watching(self._step):
            self._step_runner.wait_until_idle()


def train(
    context: TrainingContext, executions: Executions, hooks: Sequence[Hook], restored: SavedState
) -> TrainState:
    """Train from the step of the counter to the end of the schedule, unless a hook ends it before.

    Raises:
        Preempted: this replica, or one that it computes with, was preempted, and all is saved.
    """
    state = TrainState.at(context.steps_done(), context.schedule)
    for hook in hooks:
        hook.on_start(state, restored)
    if state.sums is not None and not state.epoch_step:  # saved just before that epoch ended
        state.epoch, state.epoch_step = state.epoch - 1, context.schedule.steps_per_epoch
        _end_epoch(context, state, hooks)
    while not state.stop and state.step < context.schedule.steps:
        for hook in hooks:
            hook.on_epoch_begin(state)
        for _ in executions.of_epoch(state, hooks):
            for hook in hooks:
                hook.on_execution(state)
            if state.stop:
                break
        executions.wait_until_idle()
        _end_epoch(context, state, hooks)
    if context.model.optimizer is not None:  # one that averages the weights assigns the averages
        with context.distribution.scope():
            context.model.optimizer.finalize_variable_values(context.model.trainable_variables)
    for hook in hooks:
        hook.on_end(state)
    return state


def _end_epoch(context: TrainingContext, state: TrainState, hooks: Sequence[Hook]) -> None:
    """End an epoch, and move on to the next one."""
    state.metrics, state.sums = state.results(context.step.metrics), None
    for hook in hooks:
        hook.on_epoch_end(state)
    # Workers may have run more steps than were counted here; see ``Checkpointing.on_epoch_end``.
    state.move_to(context.steps_done(), context.schedule)
