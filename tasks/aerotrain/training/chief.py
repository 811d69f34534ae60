"""The chief of a training: it builds the parts, trains, and writes the model manifest."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SupersededError
from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Job, Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.training.background.services import BackgroundServices
from aerotrain.training.checkpoint_policy import CheckpointPolicy
from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.checkpoints.retention import NOTHING, Name
from aerotrain.training.distribution import ChiefDecisions, Distribution, wait_for_all
from aerotrain.training.error_messages import errors_translated
from aerotrain.training.hooks.hooks import Hooks
from aerotrain.training.hooks.report import Report
from aerotrain.training.hooks.validation import Validation
from aerotrain.training.input.service import Service
from aerotrain.training.input.shards import TRAIN_SPLIT, share, split_of
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.intervals import Interval, OptimalInterval
from aerotrain.training.loop import train as train_to_the_end
from aerotrain.training.model.callbacks import Callbacks
from aerotrain.training.model.checks import (
    check_asynchronous,
    check_deterministic,
    warn_of_slow_dtype_policy,
)
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.model_manifest import KEY, ModelManifest
from aerotrain.training.peer import PeerReport
from aerotrain.training.schedule import Plan
from aerotrain.training.steps.step import TrainStep
from aerotrain.training.strategies import ENGINES


def train(replica: Replica) -> str:
    """Train the job's model from its newest checkpoint, or from the start.

    Returns:
        The URL of the manifest of the trained model.

    Raises:
        FinalError: the job cannot be trained; the message says why.
        SupersededError: another launch's chief has taken over.
        TemporaryError: another process of the job failed, or the store is unavailable.
    """
    job = replica.job
    arguments = TrainArguments.of(job.arguments)
    KERAS.check_strategy(job.strategy, jit_compile=arguments.jit_compile)
    if arguments.deterministic:
        check_deterministic(job)
    dataset = load_dataset(arguments.data)
    split = split_of(dataset, TRAIN_SPLIT)
    share(split.shards, 0, max(1, job.count(job.reader)))  # checked before anything starts
    pipeline = InputPipeline(
        job=job,
        arguments=arguments,
        dataset=dataset,
        code=UserCode.load(arguments.model, arguments.data).weighing(arguments.class_weight),
        plan=Plan(records=split.records, batch_size=arguments.batch_size, epochs=arguments.epochs),
        scratch=replica.scratch,
        service=_service(replica),
    )
    explaining = errors_translated(
        pipeline.code, dataset, arguments.data, TRAIN_SPLIT, replica.scratch
    )
    with explaining, pipeline.supplied(), BackgroundServices.of(replica, arguments) as services:
        distribution = ENGINES[job.strategy].build(arguments)
        trained = _train(pipeline, distribution, replica, services)
        if replica.is_chief:
            services.deliver(KEY, trained.to_json().encode())
        wait_for_all(distribution)
    return f"{job.prefix}/{KEY}"


def _service(replica: Replica) -> Service | None:
    """The input service, if the job has input replicas."""
    if not replica.job.count(Role.INPUT):
        return None
    [address] = replica.cluster[Role.DISPATCHER]
    return Service(address, replica.attempt)


def _train(
    pipeline: InputPipeline,
    distribution: Distribution,
    replica: Replica,
    services: BackgroundServices,
) -> ModelManifest:
    arguments, plan, is_chief = pipeline.arguments, pipeline.plan, replica.is_chief
    engine = ENGINES[pipeline.job.strategy]
    decisions = ChiefDecisions(distribution, is_chief=is_chief)
    warn_of_slow_dtype_policy(arguments.dtype_policy)
    with distribution.scope():
        model, counter = _variables(pipeline)
        step = engine.step(model, counter, pipeline.spec)
    kind = engine.checkpoints if is_chief else engine.peer_checkpoints
    checkpoints = _checkpoints(kind, pipeline, model, counter, engine.io_device, services)
    with services.event_writer.timed(EventType.RESTORE, step=lambda: int(counter.numpy())):
        token, *name = decisions.numbers(
            [services.lease.token, *(checkpoints.choose() if is_chief else NOTHING)]
        )
        restored = checkpoints.restore(Name(*name), token)
    start = int(counter.numpy())
    if start:
        print(f"going on from the checkpoint of step {start}", flush=True)
    step_runner = engine.step_runner(distribution, step, pipeline, start)
    metrics = restored.about.get("metrics", {})
    report = (Report if is_chief else PeerReport)(
        plan,
        model,
        step.metrics,
        services.store,
        pipeline.scratch,
        metrics,
        start,
        services.uploader,
        services.lease.look,
    )
    hooks = _observer(pipeline, distribution, step, report, decisions)
    hooks.begin(restored)
    policy = _saving(checkpoints, services, counter, distribution.clock, pipeline, replica)
    watchdog = services.watchdog(replica, pipeline.is_short)
    replica.notice.promise()
    with last_good_named(checkpoints):
        train_to_the_end(plan, counter, step_runner, policy, hooks, watchdog, replica.notice.given)
        if model.optimizer is not None:
            with distribution.scope():
                # An optimizer that averages the weights assigns the averages only now.
                model.optimizer.finalize_variable_values(model.trainable_variables)
        hooks.end()
        url = policy.finish(hooks)
    services.event_writer.note(EventType.END, step=int(counter.numpy()))
    return ModelManifest(
        module=arguments.model,
        code=pipeline.job.code,
        hparams=arguments.all_hparams,
        data=arguments.data,
        strategy=pipeline.job.strategy,
        step=int(counter.numpy()),
        checkpoint=url,
        metrics=report.metrics,
        dtype_policy=arguments.dtype_policy,
    )


def _checkpoints(
    kind: type[Checkpoints],
    pipeline: InputPipeline,
    model: keras.Model,
    counter: tf.Variable,
    io_device: str | None,
    services: BackgroundServices,
) -> Checkpoints:
    return kind(
        services.store,
        pipeline.scratch,
        model,
        counter,
        keep=pipeline.arguments.keep,
        recipe=recipe_of(pipeline.arguments),
        setting=setting_of(pipeline.job),
        io_device=io_device,
        uploader=services.uploader,
        lease=services.lease,
    )


def recipe_of(arguments: TrainArguments) -> dict[str, Any]:
    """The arguments that determine the course of a training, except its length and its strategy."""
    hparams = {key: value for key, value in arguments.all_hparams.items() if key != "epochs"}
    return {"data": arguments.data, "dtype_policy": arguments.dtype_policy, **hparams}


def _variables(pipeline: InputPipeline) -> tuple[keras.Model, Any]:
    """The user's model, and the counter of its steps. Call it in the strategy's scope."""
    arguments = pipeline.arguments
    KERAS.seed(arguments.seed)
    model = pipeline.code.build(arguments.all_hparams, pipeline.spec, arguments.dtype_policy)
    check_asynchronous(pipeline.job.strategy, model)
    counter = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name="aerotrain_step",
    )
    return model, counter


def setting_of(job: Job) -> dict[str, Any]:
    """The cluster of a training, which may change when it resumes."""
    workers, ps = job.count(Role.WORKER), job.count(Role.PS)
    return {"strategy": job.strategy, "workers": workers, "ps": ps}


def _saving(
    checkpoints: Checkpoints,
    services: BackgroundServices,
    counter: tf.Variable,
    clock: Callable[[], float],
    pipeline: InputPipeline,
    replica: Replica,
) -> CheckpointPolicy:
    asked = pipeline.arguments.checkpoint_interval
    if asked is None:
        interval: Interval = OptimalInterval(
            clock, services.event_writer.mean_time_between_failures()
        )
    else:
        interval = Interval(asked, clock)
    return CheckpointPolicy(
        checkpoints,
        services.event_writer,
        interval,
        lambda: int(counter.numpy()),
        pipeline.plan,
        grace=replica.notice.grace,
        clock=time.monotonic,
    )


def _observer(
    pipeline: InputPipeline,
    distribution: Distribution,
    step: TrainStep,
    report: Report,
    decisions: ChiefDecisions,
) -> Hooks:
    arguments, model = pipeline.arguments, step.model
    given = pipeline.code.callbacks(arguments.all_hparams)
    callbacks = Callbacks(pipeline.code.name, given, model, arguments.epochs)
    validation = None
    validated = arguments.validate or callbacks.monitor_validation
    if callbacks.monitored:
        callbacks.check_monitored(
            step.metrics.names(), step.metrics.measured_names() if validated else []
        )
    if validated and decisions.is_chief:
        # Without class weights: in validation, every example has the same weight.
        code = UserCode.load(arguments.model, arguments.data)
        validation = Validation(arguments, pipeline.dataset, code, pipeline.scratch)
    return Hooks(
        distribution,
        model,
        step.metrics,
        report,
        callbacks,
        validation,
        decisions,
        validated=validated,
    )


@contextmanager
def last_good_named(checkpoints: Checkpoints) -> Iterator[None]:
    """Add the last complete checkpoint to the message of a final error."""
    try:
        yield
    except SupersededError:
        raise  # its checkpoints belong to its successor now
    except FinalError as error:
        newest = checkpoints.newest()
        # Bad weights that were saved earlier are the cause of the current error.
        raise FinalError(f"{checkpoints.fault() or error}; {newest}") from error
