"""The chief of a training: it puts the parts together, trains, and leaves the manifest."""

import time
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.job import Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.store import Store, open_store
from aerotrain.training.checkpoints import Checkpoints
from aerotrain.training.code import UserCode
from aerotrain.training.failures import explained
from aerotrain.training.feed import Feed
from aerotrain.training.input import batch_spec
from aerotrain.training.loop import train as train_to_the_end
from aerotrain.training.plan import Plan
from aerotrain.training.report import Report
from aerotrain.training.shards import TRAIN_SPLIT, share, split_of
from aerotrain.training.step import TrainStep
from aerotrain.training.strategies import ENGINES
from aerotrain.training.trained import KEY, TrainedModel
from aerotrain.training.when import Every


def train(replica: Replica) -> str:
    """Train the job's model from its newest checkpoint, or from the beginning.

    Returns:
        The URL of the manifest of the trained model.

    Raises:
        FinalError: the job cannot be trained as it is; the message says why.
        TemporaryError: another process of the job was lost, or the store is away.
    """
    job = replica.job
    arguments = TrainArguments.of(job.arguments)
    dataset = load_dataset(arguments.data)
    split = split_of(dataset, TRAIN_SPLIT)
    share(split.shards, 0, max(1, job.count(Role.WORKER)))  # refuse before anything starts
    feed = Feed(
        job=job,
        arguments=arguments,
        dataset=dataset,
        code=UserCode.load(arguments.model),
        plan=Plan(records=split.records, batch_size=arguments.batch_size, epochs=arguments.epochs),
        scratch=replica.scratch,
    )
    store = open_store(job.prefix)
    with explained(feed.code, dataset, arguments.data, TRAIN_SPLIT, replica.scratch):
        trained = _train(feed, store)
    store.put(KEY, trained.to_json().encode())
    return f"{job.prefix}/{KEY}"


def _train(feed: Feed, store: Store) -> TrainedModel:
    arguments, plan = feed.arguments, feed.plan
    engine = ENGINES[feed.job.strategy]
    strategy = engine.build()
    with strategy.scope():
        model, counter = _variables(feed)
    step = TrainStep(model, counter)
    checkpoints = Checkpoints(
        store, feed.scratch, model, counter, keep=arguments.keep, io_device=engine.io_device
    )
    metrics = checkpoints.restore()
    start = int(counter.numpy())
    if start:
        print(f"going on from the checkpoint of step {start}", flush=True)
    drive = engine.drive(strategy, step, feed, start)
    report = Report(plan, model, step.metrics, store, feed.scratch, metrics, start)
    checkpoint = Every(arguments.checkpoint_seconds, time.monotonic)
    train_to_the_end(plan, counter, drive, checkpoints, report, checkpoint)
    with strategy.scope():
        # An optimizer that averages the weights hands the averages over only now.
        model.optimizer.finalize_variable_values(model.trainable_variables)
    url = checkpoints.save(report.metrics)
    report.publish()
    return TrainedModel(
        module=arguments.model,
        code=feed.job.code,
        hparams=arguments.all_hparams,
        data=arguments.data,
        strategy=feed.job.strategy,
        step=int(counter.numpy()),
        checkpoint=url,
        metrics=report.metrics,
    )


def _variables(feed: Feed) -> tuple[keras.Model, Any]:
    """The user's model, and the counter of its steps; to be called in a strategy's scope."""
    keras.utils.set_random_seed(feed.arguments.seed)
    batch = batch_spec(feed.dataset.schema, feed.code.transform)
    model = feed.code.build(feed.arguments.all_hparams, batch)
    counter = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name="aerotrain_step",
    )
    return model, counter
