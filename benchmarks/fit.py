"""One replica of a job that ``fit`` trains, started by ``benchmarks.strategies``.

It reads the same job, model and records as our replicas do, from the environment. The command line
argument is the number of steps per execution. The chief prints the steps a second of the second of
two epochs.
"""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import Dataset, load_dataset
from aerotrain.replica import Replica
from aerotrain.training.input.batches import ready
from aerotrain.training.input.shards import TRAIN_SPLIT


class Clock(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """When each epoch began and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[float] = []

    def on_epoch_begin(self, _epoch: int, logs: Any = None) -> None:
        self.marks.append(time.monotonic())

    def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
        self.marks.append(time.monotonic())


class Input:
    """The records of a job, in batches, read and shuffled as TensorFlow's guide shows."""

    def __init__(self, data: str, dataset: Dataset, arguments: TrainArguments) -> None:
        split = dataset.splits[TRAIN_SPLIT]
        self.files = [f"{data.removeprefix('file://')}/{each.file}" for each in split.shards]
        self.records = split.records
        self.transform = importlib.import_module(arguments.model).transform
        self._schema = dataset.schema
        self._arguments = arguments

    def batches(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """The batches of one input pipeline: its share of each, or whole ones without context."""
        count = context.num_input_pipelines
        batch_size = context.get_per_replica_batch_size(self._arguments.batch_size)
        files = tf.data.Dataset.from_tensor_slices(self.files[context.input_pipeline_id :: count])
        batches = (
            files.interleave(tf.data.TFRecordDataset, cycle_length=8)
            .shuffle(self.records, self._arguments.seed)
            .repeat()
            .batch(batch_size * (context.num_replicas_in_sync // count or 1))
        )
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return ready(batches, self._schema, self.transform).with_options(options)


def main() -> None:
    replica = Replica.from_environment(os.environ, Path.cwd())
    job = replica.job
    sys.path.insert(0, str(job.code))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    if job.strategy == "parameter_server" and replica.name.role is not Role.CHIEF:
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        ).join()
    strategy = {
        "one_device": tf.distribute.get_strategy,  # the default of `fit`
        "mirrored": lambda: tf.distribute.MirroredStrategy(
            [each.name for each in tf.config.list_logical_devices("CPU")]
        ),
        "multi_worker_mirrored": lambda: tf.distribute.MultiWorkerMirroredStrategy(resolver),
        "parameter_server": lambda: tf.distribute.ParameterServerStrategy(resolver),
    }[job.strategy]()
    arguments = TrainArguments.from_dict(job.arguments)
    rate = steps_a_second(strategy, job.strategy, arguments, int(sys.argv[1]))
    print(f"steps_per_second={rate}", flush=True)


def steps_a_second(
    strategy: tf.distribute.Strategy, name: str, arguments: TrainArguments, per_execution: int
) -> float:
    """Steps a second in the second epoch of two: the first also traces and compiles."""
    dataset = load_dataset(arguments.data)
    given = Input(arguments.data, dataset, arguments)
    module = importlib.import_module(arguments.model)
    with strategy.scope():
        model = module.build_model({**arguments.all_hparams, "steps_per_execution": per_execution})
    steps = given.records // arguments.batch_size
    steps -= steps % per_execution
    if name == "parameter_server":
        x = tf.keras.utils.experimental.DatasetCreator(given.batches)
    elif name == "multi_worker_mirrored":
        x = strategy.distribute_datasets_from_function(given.batches)
    else:
        x = given.batches(tf.distribute.InputContext())
    clock = Clock()
    model.fit(x, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return float(steps / (clock.marks[3] - clock.marks[2]))


if __name__ == "__main__":
    main()
