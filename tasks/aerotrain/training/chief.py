"""The chief of a training, and the workers that run the same loop with it.

It builds the parts of the training, runs the loop, and writes the manifest of the trained model.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from aerotrain.contract.errors import FinalError
from aerotrain.contract.event_log import EventType
from aerotrain.contract.layout import MODEL
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, load_dataset
from aerotrain.replica import Replica
from aerotrain.training import loop
from aerotrain.training.background.services import BackgroundServices
from aerotrain.training.background.writers import Interval
from aerotrain.training.checkpoints.checkpoints import Checkpoints, SavedState
from aerotrain.training.checkpoints.retention import NOTHING, Name, highest_token
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.checkpointing import Checkpointing
from aerotrain.training.hooks.hooks import FiniteValues, Hook, UserCallbacks
from aerotrain.training.hooks.report import Report, StepTimes
from aerotrain.training.hooks.validation import ValidationHook
from aerotrain.training.input_pipeline import InputPipeline, check_shards, data_workers_of
from aerotrain.training.internals import tensorflow2
from aerotrain.training.model.checks import check_job, check_validation
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.error_messages import errors_translated, lost_processes_explained
from aerotrain.training.model_manifest import ModelManifest, packages
from aerotrain.training.starting_point import begin, started_from
from aerotrain.training.step_runner import StepRunner
from aerotrain.training.strategies import ENGINES, Engine, create_model
from aerotrain.user_code import code_of


def train(replica: Replica) -> str:
    """Train the job's model from its newest checkpoint, or from the start.

    Returns:
        The URL of the manifest of the trained model.

    Raises:
        FinalError: the job cannot be trained; the message says why.
        SupersededError: another launch's chief has taken over.
        TemporaryError: another process of the job failed, or the store is unavailable.
    """
    with begun(replica) as (context, engine):
        trained = _train(context, engine)
        if replica.is_chief:
            context.services.deliver(MODEL, trained.to_json().encode())
        context.distribution.wait_for_all()
    return f"{replica.job.prefix}/{MODEL}"


@contextmanager
def begun(replica: Replica) -> Iterator[tuple[TrainingContext, Engine]]:
    """The parts of a training that exist before its first step, in a scope that explains errors.

    The strategy is built first: TensorFlow connects no processes once it has created a tensor or a
    table, as the user's module may do on import. It is imported in the scope of the strategy, as if
    it had built it.
    """
    job, arguments = replica.job, TrainArguments.from_dict(replica.job.arguments)
    check_job(job, arguments)
    engine, dataset = ENGINES[job.strategy], load_dataset(arguments.data)
    check_shards(job, arguments, dataset)
    with BackgroundServices.of(replica, arguments, highest_token) as services:
        with lost_processes_explained():
            distribution = engine.build(arguments)
        distribution.is_chief = replica.is_chief
        tensorflow2.allow_numbers_of_distributed_variables()
        with distribution.recording():
            code = UserCode.load(arguments.model, arguments.data)
        pipeline = InputPipeline(
            job=job,
            arguments=arguments,
            dataset=dataset,
            code=code.weighing(arguments.class_weight),
            scratch=replica.scratch,
            data_workers=data_workers_of(replica),
        )
        with (
            errors_translated(pipeline.code, dataset, arguments.data, TRAIN_SPLIT, replica.scratch),
            pipeline.caching_shards(),
        ):
            model, counter, step = create_model(
                replica.job.strategy, engine, distribution, pipeline
            )
            context = TrainingContext(
                replica=replica,
                pipeline=pipeline,
                services=services,
                distribution=distribution,
                model=model,
                counter=counter,
                step=step,
            )
            yield context, engine


def build(context: TrainingContext, engine: Engine) -> None:
    """Make all checks of a training, without a step."""
    step_runner = engine.step_runner(context.distribution, context.step, context.pipeline, 0)
    _hooks(context, step_runner)


def _train(context: TrainingContext, engine: Engine) -> ModelManifest:
    checkpoints = engine.checkpoints(context, engine.io_device)
    restored = _restore(context, checkpoints)
    step_runner = engine.step_runner(
        context.distribution, context.step, context.pipeline, context.steps_done()
    )
    step_runner.restore(restored.about.get("position", {}))
    watchdog = context.services.watchdog(
        context.replica, lambda: context.pipeline.is_short() or step_runner.is_alone()
    )
    executions = loop.Executions(context, step_runner, watchdog)
    hooks = _hooks(context, step_runner)
    saving = Checkpointing(
        context,
        checkpoints,
        Interval(context.arguments.checkpoint_interval, context.distribution.clock),
        hooks if context.is_chief else [],
        step_runner,
    )
    with checkpoints.newest_named():
        state = loop.train(context, executions, [*hooks, saving], restored)
    step_runner.close()
    job = context.replica.job
    return ModelManifest(
        module=context.arguments.model,
        code=job.code,
        hparams=context.arguments.all_hparams,
        data=context.arguments.data,
        strategy=job.strategy,
        step=context.steps_done(),
        checkpoint=saving.url,
        metrics=state.metrics,
        dtype_policy=context.arguments.dtype_policy,
        environment={**packages(), **job.made_from},
        started_from=started_from(context),
        recipe={**job.recipe(), "modules": code_of(context.arguments.model)},
    )


def _restore(context: TrainingContext, checkpoints: Checkpoints) -> SavedState:
    """Restore the chief's newest checkpoint on all replicas."""
    began = time.monotonic()
    newest = checkpoints.choose() if context.is_chief else NOTHING
    token, *name = context.distribution.numbers([context.services.lease.token, *newest])
    restored = checkpoints.restore(Name(*name), token)
    if checkpoints.restored == NOTHING and context.arguments.start_from is not None:
        begin(context, checkpoints)
    seconds = time.monotonic() - began
    note = context.services.event_writer.note
    note(EventType.RESTORE, seconds=seconds, step=context.steps_done())
    start, schedule = context.steps_done(), context.schedule
    if start >= schedule.steps + schedule.steps_per_epoch:
        raise FinalError(
            f"the checkpoint {checkpoints.url(checkpoints.restored)} has {start} steps, of which "
            f"epochs={schedule.epochs} are {schedule.steps}; set epochs to "
            f"{start // schedule.steps_per_epoch} or more, or begin a new run"
        )
    if start:
        print(f"resuming from the checkpoint of step {start}", flush=True)
    return restored


def _hooks(context: TrainingContext, step_runner: StepRunner) -> list[Hook]:
    """The hooks of this replica but for checkpointing, in the order in which they are called."""
    callbacks = UserCallbacks(context)
    code = context.pipeline.code
    code.reads.check(code.name, context.arguments.given_hparams)
    step_times = StepTimes(context)
    hooks: list[Hook] = [FiniteValues(context), step_times]
    if callbacks.validates:
        check_validation(context.replica.job)
        if context.is_chief:
            hooks.append(ValidationHook(context, callbacks))
    if context.is_chief:
        hooks.append(Report(context, step_times))
    return [*hooks, callbacks]
