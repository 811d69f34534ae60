"""The replicas that serve: parameter servers, workers that compute for the chief, and data workers.

The first two do not import Keras, because they only run graphs that the chief sends. All serve
until they are ended, because TensorFlow's servers do not notice the end of their chief.
"""

import os
import socket
import time
from functools import partial
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import TemporaryError, counted
from aerotrain.contract.replicas import CLUSTERED, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, load_dataset
from aerotrain.replica import Replica
from aerotrain.training import departure
from aerotrain.training.background.writers import StatusWriter
from aerotrain.training.input.batches import layout_of, transformed
from aerotrain.training.input.data_workers import BatchServer
from aerotrain.training.input.order import Order
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shards import split_of

#: Seconds between two looks at whether a worker is preempted.
_SECONDS_BETWEEN_LOOKS = 0.05

#: The most windows that a data worker keeps.
_WINDOWS = 16


def serve(replica: Replica) -> None:
    """Serve in this replica's role, and download the shards of a role that reads.

    Raises:
        CorruptError: a shard does not match the data set's manifest.
        FinalError: the user's transform does not fit the data set.
        TemporaryError: the port is taken, or the store is unavailable.
    """
    role, cluster = replica.name.role, replica.cluster
    address = cluster[role][replica.name.index]
    with StatusWriter.of(replica) as status_writer:
        cache = _supply_of_own(replica) if role is replica.job.reader else None
        try:
            if role is Role.INPUT:  # whose server does not tell
                socket.create_server(("", int(address.rpartition(":")[2]))).close()
            else:
                server: Any = _member(replica)
        except (tf.errors.UnknownError, OSError) as error:
            why = getattr(error, "message", error)
            raise TemporaryError(
                f"{replica.name} could not serve at {address} ({why}); the port may be taken: try "
                "again"
            ) from error
        if role is Role.INPUT:
            server = _data_worker(replica)
        print(f"{replica.name} serves", flush=True)
        status_writer.ready()
        if role is not Role.WORKER:
            _join(server, cache)
        departure.prepare(replica)
        while cache is None or cache.failure is None:
            if departure.is_due(replica):
                departure.leave(replica)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        raise cache.failure


def _join(server: Any, cache: ShardCache | None) -> None:
    """Serve until this process is ended, or its shards cannot be read."""
    if cache is not None:
        raise cache.failed()
    server.join()


def _supply_of_own(replica: Replica) -> ShardCache:
    """The cache of the shards that this replica reads for others, from this disk."""
    arguments = TrainArguments.from_dict(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    shards = split_of(dataset, TRAIN_SPLIT).shards
    order = Order.of(arguments, shards, leased=replica.job.rules.ps > 0)
    cache = ShardCache.of(arguments, dataset, order, replica.scratch)
    cache.start()
    who = "readers ask it for" if replica.name.role is Role.INPUT else "the chief leases to it"
    print(f"{replica.name} reads what {who} of {counted(len(shards), 'shard')}", flush=True)
    return cache


def _data_worker(replica: Replica) -> BatchServer:
    """The server of a data worker, which runs the user's transform."""
    # Here, because it imports Keras.
    from aerotrain.training.model.code import UserCode

    arguments = TrainArguments.from_dict(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(arguments.model, arguments.data).weighing(arguments.class_weight)
    return BatchServer(
        replica.cluster[Role.INPUT][replica.name.index],
        partial(transformed, dataset.schema, code.transform),
        arguments.gradient_accumulation_steps,
        replica.scratch,
        layout_of(dataset.schema, split_of(dataset, TRAIN_SPLIT).shards),
        # Those of each reader, which may be in two.
        min(2 * (1 + replica.job.count(Role.WORKER)), _WINDOWS),
    )


def _member(replica: Replica) -> tf.distribute.Server:
    """The server of a member of the cluster.

    It has threads for the requests of all workers, which would deadlock on few cores, see
    https://www.tensorflow.org/tutorials/distribute/parameter_server_training
    """
    threads = max(replica.job.count(Role.WORKER) + 1, os.cpu_count() or 1)
    members = {role: replica.cluster[role] for role in CLUSTERED if role in replica.cluster}
    return tf.distribute.Server(
        tf.train.ClusterSpec(members),
        job_name=replica.name.role,
        task_index=replica.name.index,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
    )
