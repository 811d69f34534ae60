"""The replicas that serve: parameter servers, and the workers that compute for the chief.

They load no Keras, for all they run is graphs that the chief sends. They serve until they
are told to go, since TensorFlow's servers do not notice that their chief has ended.
"""

import os

import tensorflow as tf

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.job import Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.training.input.shards import TRAIN_SPLIT, share, split_of
from aerotrain.training.input.supply import Supply, supply_of


def serve(replica: Replica) -> None:
    """Serve the cluster that TF_CONFIG describes; to a worker its shards come meanwhile.

    Raises:
        CorruptError: a shard is not what the data set's manifest says.
        FinalError: there are fewer shards than workers.
        TemporaryError: the port is taken, or the store is away.
    """
    supply = _supply_of_own(replica) if replica.name.role is Role.WORKER else None
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            config=_config(replica.job.count(Role.WORKER)),
        )
    except tf.errors.UnknownError as error:
        address = resolver.cluster_spec().task_address(resolver.task_type, resolver.task_id)
        raise TemporaryError(
            f"{replica.name} could not serve at {address} ({error.message}); the port may be "
            "taken: try again"
        ) from error
    print(f"{replica.name} serves", flush=True)
    if supply is None:
        server.join()
    else:
        raise supply.failed()


def _supply_of_own(replica: Replica) -> Supply:
    """Have this worker's share of the shards come; the chief's graph reads what is there."""
    arguments = TrainArguments.of(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    split = split_of(dataset, TRAIN_SPLIT)
    own = share(split.shards, replica.name.index, replica.job.count(Role.WORKER))
    supply = supply_of(arguments, dataset, own, replica.scratch, ends=False)
    supply.start()
    records = sum(shard.records for shard in own)
    print(f"{replica.name} reads {records} records in {len(own)} shards", flush=True)
    return supply


def _config(workers: int) -> tf.compat.v1.ConfigProto:
    """Threads enough for every worker's requests, which on few cores would else deadlock.

    See https://www.tensorflow.org/tutorials/distribute/parameter_server_training
    """
    threads = max(workers + 1, os.cpu_count() or 1)
    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
