"""The replicas that serve: parameter servers, workers that compute for the chief, and input.

They do not import Keras, because they only run graphs that the chief sends. They serve until they
are ended, because TensorFlow's servers do not notice the end of their chief.
"""

import os
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import TemporaryError, counted
from aerotrain.contract.replicas import CLUSTERED, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.training.background.status_writer import StatusWriter
from aerotrain.training.input.service import dispatcher, input_server
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shards import TRAIN_SPLIT, share, split_of


def serve(replica: Replica) -> None:
    """Serve in this replica's role, and download the shards of a role that reads.

    Raises:
        CorruptError: a shard does not match the data set's manifest.
        FinalError: there are fewer shards than readers.
        TemporaryError: the port is taken, or the store is unavailable.
    """
    with StatusWriter.of(replica) as status_writer:
        _serve(replica, status_writer)


def _serve(replica: Replica, status_writer: StatusWriter) -> None:
    role, cluster = replica.name.role, replica.cluster
    cache = _supply_of_own(replica) if role is replica.job.reader else None
    address = cluster[role][replica.name.index]
    try:
        if role is Role.DISPATCHER:
            server: Any = dispatcher(address)
        elif role is Role.INPUT:
            [dispatched] = cluster[Role.DISPATCHER]
            server = input_server(address, dispatched, replica.job.deadlines.start)
        else:
            server = _member(replica)
    except (tf.errors.UnknownError, RuntimeError) as error:
        why = getattr(error, "message", error)
        raise TemporaryError(
            f"{replica.name} could not serve at {address} ({why}); the port may be taken: try again"
        ) from error
    print(f"{replica.name} serves", flush=True)
    status_writer.ready()
    if cache is None:
        server.join()
    else:
        raise cache.failed()


def _supply_of_own(replica: Replica) -> ShardCache:
    """Start the download of this reader's shards, which the chief's graph reads from the disk."""
    arguments = TrainArguments.from_dict(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    split = split_of(dataset, TRAIN_SPLIT)
    own = share(split.shards, replica.name.index, replica.job.count(replica.name.role))
    cache = ShardCache.of(arguments, dataset, own, replica.scratch, ends=False)
    cache.start()
    records = sum(shard.records for shard in own)
    read = f"{counted(records, 'record')} in {counted(len(own), 'shard')}"
    print(f"{replica.name} reads {read}", flush=True)
    return cache


def _member(replica: Replica) -> tf.distribute.Server:
    """The server of a member of the cluster."""
    members = {role: replica.cluster[role] for role in CLUSTERED if role in replica.cluster}
    return tf.distribute.Server(
        tf.train.ClusterSpec(members),
        job_name=replica.name.role,
        task_index=replica.name.index,
        protocol="grpc",
        config=_config(replica.job.count(Role.WORKER)),
    )


def _config(workers: int) -> tf.compat.v1.ConfigProto:
    """Enough threads for the requests of all workers, which would deadlock on few cores.

    See https://www.tensorflow.org/tutorials/distribute/parameter_server_training
    """
    threads = max(workers + 1, os.cpu_count() or 1)
    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
