"""The hooks of a training, called directly: what each does at which point of the loop."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from aerotrain.contract.event_log import EventType, read
from aerotrain.contract.layout import CHIEF_LOG
from aerotrain.contract.status import Progress
from aerotrain.contract.training import TrainArguments
from aerotrain.replica import Preempted
from aerotrain.training import chief
from aerotrain.training.background.writers import Interval
from aerotrain.training.checkpoints.checkpoints import Checkpoints, SavedState
from aerotrain.training.hooks.checkpointing import Checkpointing
from aerotrain.training.hooks.hooks import TrainState, UserCallbacks
from aerotrain.training.hooks.report import Report, StepTimes
from aerotrain.training.hooks.validation import ValidationHook
from aerotrain.training.model.checks import validates
from aerotrain.training.step_runner import StepRunner, StepsRun
from support.described_jobs import job

pytestmark = pytest.mark.process

EPOCHS, STEPS = 2, 40  # of one epoch
EVERY = 20  # steps of one execution


@pytest.fixture(scope="module")
def context(digits):
    """The parts of a training of two epochs, of which no step was run."""
    callbacks = {"Telling": {}, "EarlyStopping": {"monitor": "loss"}}
    with parts_of(
        digits,
        "hooks",
        model="calling",
        epochs=EPOCHS,
        hparams={"callbacks": callbacks},
        validate=True,
    ) as context:
        yield context


@pytest.fixture(scope="module")
def short_epochs(digits):
    """The parts of a training of 50,000 epochs with one step each."""
    with parts_of(digits, "short", model="small", epochs=50_000, batch_size=4096) as context:
        yield context


@contextmanager
def parts_of(digits, run, **arguments):
    replica = digits.replica("train", run, data=digits.data, **arguments)
    with chief.begun(replica) as (context, _):
        yield context


class Recording(Checkpoints):
    """Also keeps the steps at which it has saved, and what was saved last."""

    def __init__(self, context):
        super().__init__(context, None)
        self.steps, self.last = [], SavedState()

    def save(self, state):
        self.steps.append(self._name().step)
        self.last = state
        super().save(state)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Idle(StepRunner):
    """No step is in flight."""

    def run(self, steps, sums=None, is_preempted=None):
        raise AssertionError("hooks run no steps")


def checkpointing(context, seconds=0.0, clock=None, saved=()):
    clock = clock or Clock()
    checkpoints = Recording(context)
    interval = Interval(seconds, clock)
    hook = Checkpointing(context, checkpoints, interval, saved, Idle(), clock)
    return hook, checkpoints


def begin(context, hook, step=0, **about):
    context.counter.assign(step)
    state = TrainState.at(step, context.schedule)
    hook.on_start(state, SavedState(about=about))
    return state


def execute(context, hook, state, preempted=False):
    step = state.step + EVERY
    context.counter.assign(step)
    state.advance(step, StepsRun(state.epoch_step + EVERY, context.step.metrics.zero, preempted))
    hook.on_execution(state)


def end_epoch(context, hook, state, *, best=False):
    state.sums, state.is_best = None, best
    hook.on_epoch_end(state)
    state.move_to(context.steps_done(), context.schedule)


def events_of(context):
    """The event log of the chief, with all that was recorded so far."""
    context.services.uploader.wait(60)
    return read(context.services.store.get(CHIEF_LOG).decode().splitlines())


@pytest.mark.parametrize(
    ("seconds", "best", "steps"),
    [
        (0.0, False, [20, 40, 60, 80]),
        (0.0, True, [20, 40, 60, 80]),
        (1e9, True, [40, 80]),
        (1e9, False, [80]),
    ],
)
def test_no_step_is_saved_twice_whatever_is_due_with_it(context, seconds, best, steps):
    hook, checkpoints = checkpointing(context, seconds)
    state = begin(context, hook)
    for _ in range(EPOCHS):
        for _ in range(STEPS // EVERY):
            execute(context, hook, state)
        end_epoch(context, hook, state, best=best)
    hook.on_end(state)
    assert checkpoints.steps == steps
    assert checkpoints.last.about["ended"] is True
    assert hook.url.endswith("/checkpoints/0001-0000000080")


def test_a_training_that_a_callback_stops_is_saved_once(context):
    hook, checkpoints = checkpointing(context)
    state = begin(context, hook)
    state.stop = True
    execute(context, hook, state)
    end_epoch(context, hook, state, best=True)
    hook.on_end(state)
    assert checkpoints.steps == [20]


def test_a_retry_of_a_training_that_has_ended_saves_nothing(context):
    hook, checkpoints = checkpointing(context)
    state = begin(context, hook, step=80, ended=True)
    checkpoints.restored = checkpoints._name()
    hook.on_start(state, SavedState(about={"ended": True, "step": 80}))
    hook.on_end(state)
    assert checkpoints.steps == []
    assert hook.url.endswith("/checkpoints/0001-0000000080")


def test_a_preempted_training_saves_at_once_and_ends(context):
    hook, checkpoints = checkpointing(context, 1e9)
    state = begin(context, hook)
    with pytest.raises(Preempted, match="preempted after step 20, which is saved"):
        execute(context, hook, state, preempted=True)
    assert checkpoints.steps == [20]
    assert EventType.PREEMPTED in [each.event for each in events_of(context)]


def test_a_process_has_started_when_its_first_execution_has_ended(context):
    hook, state = StepTimes(context), TrainState.at(0, context.schedule)
    for _ in range(2):
        execute(context, hook, state)
    [ready] = [each for each in events_of(context) if each.event is EventType.READY]
    assert ready.step == 20
    status = context.services.status_writer._process
    assert status.ready == pytest.approx(ready.at, abs=1.0)


def test_the_pace_counts_records(short_epochs, capsys):
    clock = Clock()
    hook = Report(short_epochs, StepTimes(short_epochs), clock)
    state = begin(short_epochs, hook)
    for step in range(1, 4):
        state.advance(step, StepsRun(1, short_epochs.step.metrics.zero))
        hook.on_execution(state)
        state.move_to(step, short_epochs.schedule)
        clock.now += 2.0
    lines = capsys.readouterr().out.splitlines()
    last = [seen for line in lines if (seen := Progress.parse(line))][-1]
    assert last.examples_per_second == pytest.approx(1249 / 2, abs=1)
    assert last.seconds_left == pytest.approx(2.0 * (50_000 - 3), rel=0.01)


@pytest.mark.parametrize(
    ("epochs", "seconds", "lines"),
    [
        (10, 0.1, [*range(1, 11)]),
        (30, 5.0, [*range(1, 31)]),
        (3000, 1 / 128, [*range(1, 11), 640, 1280, 1920, 2560, 3000]),
    ],
)
def test_few_epochs_and_long_ones_have_a_line_each_and_others_one_each_five_seconds(
    short_epochs, capsys, epochs, seconds, lines
):
    clock = Clock()
    hook = Report(short_epochs, StepTimes(short_epochs), clock)
    state = begin(short_epochs, hook)
    for epoch in range(epochs):
        clock.now += seconds
        state.move_to(epoch, short_epochs.schedule)
        state.metrics = {"loss": 1.0}
        hook.on_epoch_end(state)
    hook.on_end(state)
    said = capsys.readouterr().out
    found = [int(each) for each in re.findall(r"^epoch (\d+) of 50000: loss=1.0000$", said, re.M)]
    assert found == lines


def test_validation_measures_the_current_weights_and_remembers_the_best(context):
    hook = ValidationHook(context, UserCallbacks(context))
    state = begin(context, hook)
    weights = context.model.get_weights()
    context.model.set_weights([np.zeros_like(each) for each in weights])
    state.metrics = {"loss": 1.0}
    hook.on_epoch_end(state)
    assert state.metrics["val_loss"] == pytest.approx(np.log(10))  # all classes are equally likely
    assert state.is_best
    best = hook.to_save(state).about
    assert best["val_loss"] == best["best_val_loss"] == state.metrics["val_loss"]
    hook.on_execution(state)
    assert hook.to_save(state).about["val_loss"] is None, "these weights were not measured"
    context.model.set_weights([np.full_like(each, 9.0 * (each.ndim == 1)) for each in weights])
    context.model.layers[-1].bias.assign(np.arange(10.0))
    hook.on_epoch_end(state)
    assert not state.is_best
    later = ValidationHook(context, UserCallbacks(context))
    later.on_start(state, SavedState(about=best))
    later.on_epoch_end(state)
    assert not state.is_best, "the best of the process before is better"
    context.model.set_weights(weights)


def of_records(records):
    return SimpleNamespace(splits={"validation": SimpleNamespace(records=records)})


class Sampler(keras.Sequential):
    """A model with a training step of its own, and no test step."""

    def train_step(self, data):
        return {"loss": 0.0}


def model_of(batch=None, kind=keras.Sequential):
    return kind([keras.Input((2,), batch), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("given", "replicas", "records", "model", "expected"),
    [
        ({}, {}, 10, model_of(), True),
        ({}, {}, 0, model_of(), False),
        ({"validate": False}, {}, 10, model_of(), False),
        ({"validate": True}, {}, 0, model_of(), True),  # which is an error
        ({}, {"evaluator": 1}, 10, model_of(), False),
        ({}, {"strategy": "dtensor", "worker": 1}, 10, model_of(), False),
        ({}, {"strategy": "multi_worker_mirrored", "worker": 1}, 10, model_of(), True),
        ({}, {"strategy": "tpu"}, 10, model_of(), False),
        ({}, {}, 10, model_of(4), False),
        ({}, {}, 8, model_of(4), True),
        ({"drop_remainder": True}, {}, 10, model_of(4), True),
        ({"drop_remainder": True}, {}, 3, model_of(4), False),
        ({}, {}, 10, model_of(kind=Sampler), False),
    ],
)
def test_a_split_with_records_is_measured_unless_that_is_not_possible(
    given, replicas, records, model, expected
):
    replicas = dict(replicas)
    strategy = replicas.pop("strategy", "one_device")
    roles = [{"role": role, "count": each} for role, each in {"chief": 1, **replicas}.items()]
    arguments = TrainArguments(model="", data="", **given)
    found = validates(job(strategy, roles), arguments, of_records(records), model)
    assert found is expected


def test_callbacks_are_called_at_the_points_of_the_loop_and_their_state_is_saved(context, capsys):
    import calling

    hook = UserCallbacks(context)
    calling.TOLD.clear()
    state = begin(context, hook)
    hook.on_epoch_begin(state)
    state.sums, state.epoch_step = context.step.metrics.zero, EVERY
    hook.on_execution(state)
    state.metrics = {"loss": 2.0}
    hook.on_epoch_end(state)
    assert [each[:2] for each in calling.TOLD] == [("batch", 19), ("epoch", 0)]
    assert not state.stop
    kept = hook.to_save(state)
    assert kept.about["callbacks"][0] == {"kind": "Telling", "state": {"epochs": 1}}
    assert kept.about["callbacks"][1]["state"]["best"] == 2.0

    state.epoch, state.metrics = 1, {"loss": 3.0}
    hook.on_epoch_end(state)
    assert state.stop, "EarlyStopping has found no improvement"

    later = UserCallbacks(context)
    state = begin(context, later, **kept.about)
    assert not state.stop
    later.on_epoch_end(state)
    assert "told of 2 epochs" in capsys.readouterr().out
    assert isinstance(context.model, keras.Model)
