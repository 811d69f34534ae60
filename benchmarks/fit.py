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
from aerotrain.data.dataset import TRAIN_SPLIT, load_dataset
from aerotrain.replica import Replica
from aerotrain.training.input.batches import ready


class Clock(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """The seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, _epoch: int, logs: Any = None) -> None:
        self._began = time.monotonic()

    def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.monotonic() - self._began)


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
    module = importlib.import_module(arguments.model)
    dataset = load_dataset(arguments.data)
    split = dataset.splits[TRAIN_SPLIT]
    paths = [f"{arguments.data.removeprefix('file://')}/{each.file}" for each in split.shards]

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """The share of one input pipeline, read and shuffled as TensorFlow's guide shows."""
        count = context.num_input_pipelines
        batch_size = context.get_per_replica_batch_size(arguments.batch_size)
        files = tf.data.Dataset.from_tensor_slices(paths[context.input_pipeline_id :: count])
        records = (
            files.interleave(tf.data.TFRecordDataset, cycle_length=8)
            .shuffle(split.records, arguments.seed)
            .repeat()
            .batch(batch_size * (context.num_replicas_in_sync // count or 1))
        )
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return ready(records, dataset.schema, module.transform).with_options(options)

    with strategy.scope():
        model = module.build_model({**arguments.all_hparams, "steps_per_execution": per_execution})
    steps = split.records // arguments.batch_size
    steps -= steps % per_execution
    if name == "parameter_server":
        x = tf.keras.utils.experimental.DatasetCreator(batches)
    elif name == "multi_worker_mirrored":
        x = strategy.distribute_datasets_from_function(batches)
    else:
        x = batches(tf.distribute.InputContext())
    clock = Clock()
    model.fit(x, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return float(steps / clock.seconds[1])


if __name__ == "__main__":
    main()
