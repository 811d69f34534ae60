"""The chief of a training: it puts the parts together, trains, and leaves the manifest."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SupersededError
from aerotrain.contract.job import Job, Role
from aerotrain.contract.ledger import What
from aerotrain.contract.steps import TrainArguments
from aerotrain.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.training.agreement import Agreement
from aerotrain.training.attending.attendants import Attendants
from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.checkpoints.retention import NOTHING, Name
from aerotrain.training.failures import explained
from aerotrain.training.feed import Feed
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.input.service import Service
from aerotrain.training.input.shards import TRAIN_SPLIT, share, split_of
from aerotrain.training.loop import train as train_to_the_end
from aerotrain.training.model.callbacks import Callbacks
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.flavour import KERAS
from aerotrain.training.model.refusals import compute_the_same_in_each_run
from aerotrain.training.observing.observer import Observer
from aerotrain.training.observing.report import Report
from aerotrain.training.observing.validation import Validation
from aerotrain.training.peer import PeerReport
from aerotrain.training.plan import Plan
from aerotrain.training.saving import Saving
from aerotrain.training.steps.compiled import refuse_under, warn_of_precision
from aerotrain.training.steps.step import TrainStep
from aerotrain.training.strategies import ENGINES, wait_for_all
from aerotrain.training.trained import KEY, TrainedModel
from aerotrain.training.when import BestInterval, Every


def train(replica: Replica) -> str:
    """Train the job's model from its newest checkpoint, or from the beginning.

    Returns:
        The URL of the manifest of the trained model.

    Raises:
        FinalError: the job cannot be trained as it is; the message says why.
        SupersededError: another launch's chief has taken over.
        TemporaryError: another process of the job was lost, or the store is away.
    """
    job = replica.job
    arguments = TrainArguments.of(job.arguments)
    KERAS.refuse(job.strategy, jit_compile=arguments.jit_compile)
    if arguments.deterministic:
        compute_the_same_in_each_run(job)
    dataset = load_dataset(arguments.data)
    split = split_of(dataset, TRAIN_SPLIT)
    share(split.shards, 0, max(1, job.count(job.reader)))  # refuse before anything starts
    feed = Feed(
        job=job,
        arguments=arguments,
        dataset=dataset,
        code=UserCode.load(arguments.model, arguments.data).weighing(arguments.class_weight),
        plan=Plan(records=split.records, batch_size=arguments.batch_size, epochs=arguments.epochs),
        scratch=replica.scratch,
        service=_service(replica),
    )
    explaining = explained(feed.code, dataset, arguments.data, TRAIN_SPLIT, replica.scratch)
    with explaining, feed.supplied(), Attendants.of(replica, arguments) as attendants:
        strategy = ENGINES[job.strategy].build(arguments)
        trained = _train(feed, strategy, replica, attendants)
        if replica.is_chief:
            attendants.deliver(KEY, trained.to_json().encode())
        wait_for_all(strategy)
    return f"{job.prefix}/{KEY}"


def _service(replica: Replica) -> Service | None:
    """Where the training finds its input, if other replicas bring it."""
    if not replica.job.count(Role.INPUT):
        return None
    [address] = json.loads(os.environ["AEROTRAIN_CLUSTER"])[Role.DISPATCHER]
    return Service(address, replica.attempt)


def _train(
    feed: Feed, strategy: tf.distribute.Strategy, replica: Replica, attendants: Attendants
) -> TrainedModel:
    arguments, plan, is_chief = feed.arguments, feed.plan, replica.is_chief
    engine = ENGINES[feed.job.strategy]
    agreement = Agreement(strategy, is_chief=is_chief)
    warn_of_precision(arguments.precision)
    with strategy.scope():
        model, counter = _variables(feed)
        step = engine.step(model, counter, batch_spec(feed.dataset.schema, feed.code.transform))
    kind = engine.checkpoints if is_chief else engine.peer_checkpoints
    checkpoints = _checkpoints(kind, feed, model, counter, engine.io_device, attendants)
    with attendants.chronicle.timed(What.RESTORE, step=lambda: int(counter.numpy())):
        token, *name = agreement.numbers(
            [attendants.lease.token, *(checkpoints.choose() if is_chief else NOTHING)]
        )
        restored = checkpoints.restore(Name(*name), token)
    start = int(counter.numpy())
    if start:
        print(f"going on from the checkpoint of step {start}", flush=True)
    drive = engine.drive(strategy, step, feed, start)
    metrics = restored.about.get("metrics", {})
    report = (Report if is_chief else PeerReport)(
        plan,
        model,
        step.metrics,
        attendants.store,
        feed.scratch,
        metrics,
        start,
        attendants.courier,
        attendants.lease.look,
    )
    observer = _observer(feed, strategy, step, report, agreement)
    observer.begin(restored)
    saving = _saving(checkpoints, attendants, counter, engine.clock(strategy), feed, replica)
    watchdog = attendants.watchdog(replica, feed.is_short)
    replica.notice.promise()
    with last_good_named(checkpoints):
        train_to_the_end(plan, counter, drive, saving, observer, watchdog, replica.notice.given)
        if model.optimizer is not None:
            with strategy.scope():
                # An optimizer that averages the weights hands the averages over only now.
                model.optimizer.finalize_variable_values(model.trainable_variables)
        observer.end()
        url = saving.finish(observer)
    attendants.chronicle.note(What.END, step=int(counter.numpy()))
    return TrainedModel(
        module=arguments.model,
        code=feed.job.code,
        hparams=arguments.all_hparams,
        data=arguments.data,
        strategy=feed.job.strategy,
        step=int(counter.numpy()),
        checkpoint=url,
        metrics=report.metrics,
        precision=arguments.precision,
    )


def _checkpoints(
    kind: type[Checkpoints],
    feed: Feed,
    model: keras.Model,
    counter: tf.Variable,
    io_device: str | None,
    attendants: Attendants,
) -> Checkpoints:
    return kind(
        attendants.store,
        feed.scratch,
        model,
        counter,
        keep=feed.arguments.keep,
        recipe=recipe_of(feed.arguments),
        setting=setting_of(feed.job),
        io_device=io_device,
        courier=attendants.courier,
        lease=attendants.lease,
    )


def recipe_of(arguments: TrainArguments) -> dict[str, Any]:
    """What decides the course of a training, all but its length and its strategy."""
    hparams = {key: value for key, value in arguments.all_hparams.items() if key != "epochs"}
    return {"data": arguments.data, "precision": arguments.precision, **hparams}


def _variables(feed: Feed) -> tuple[keras.Model, Any]:
    """The user's model, and the counter of its steps; to be called in a strategy's scope."""
    arguments = feed.arguments
    KERAS.seed(arguments.seed)
    batch = batch_spec(feed.dataset.schema, feed.code.transform)
    model = feed.code.build(arguments.all_hparams, batch, arguments.precision)
    refuse_under(feed.job.strategy, model)
    counter = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name="aerotrain_step",
    )
    return model, counter


def setting_of(job: Job) -> dict[str, Any]:
    """On what a training runs, which may be another when it goes on."""
    workers, ps = job.count(Role.WORKER), job.count(Role.PS)
    return {"strategy": job.strategy, "workers": workers, "ps": ps}


def _saving(
    checkpoints: Checkpoints,
    attendants: Attendants,
    counter: tf.Variable,
    clock: Callable[[], float],
    feed: Feed,
    replica: Replica,
) -> Saving:
    asked = feed.arguments.checkpoint_seconds
    if isinstance(asked, str):
        interval: Every = BestInterval(clock, attendants.chronicle.mean_time_between_failures())
    else:
        interval = Every(asked, clock)
    return Saving(
        checkpoints,
        attendants.chronicle,
        interval,
        lambda: int(counter.numpy()),
        feed.plan,
        grace=replica.notice.grace,
        clock=time.monotonic,
    )


def _observer(
    feed: Feed,
    strategy: tf.distribute.Strategy,
    step: TrainStep,
    report: Report,
    agreement: Agreement,
) -> Observer:
    arguments, model = feed.arguments, step.model
    given = feed.code.callbacks(arguments.all_hparams)
    callbacks = Callbacks(feed.code.name, given, model, arguments.epochs)
    validation = None
    validated = arguments.validate or callbacks.monitor_validation
    if validated and agreement.is_chief:
        # Examples count alike where a model is measured, whatever their class.
        code = UserCode.load(arguments.model, arguments.data)
        validation = Validation(arguments, feed.dataset, code, feed.scratch)
    return Observer(
        strategy,
        model,
        step.metrics,
        report,
        callbacks,
        validation,
        agreement,
        validated=validated,
    )


@contextmanager
def last_good_named(checkpoints: Checkpoints) -> Iterator[None]:
    """Have a training that stops for good say which checkpoint is whole and sound."""
    try:
        yield
    except SupersededError:
        raise  # its checkpoints are its successor's by now
    except FinalError as error:
        newest = checkpoints.newest()
        # What is found in weights that were saved before came first, and led to this.
        raise FinalError(f"{checkpoints.fault() or error}; {newest}") from error
