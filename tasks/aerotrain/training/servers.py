"""The replicas that serve: parameter servers, workers that compute for the chief, and input.

They do not import Keras, because they only run graphs that the chief sends. They serve until they
are ended, because TensorFlow's servers do not notice the end of their chief.
"""

import os
import time
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import TemporaryError, counted
from aerotrain.contract.replicas import CLUSTERED, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, load_dataset
from aerotrain.replica import Replica
from aerotrain.training import departure
from aerotrain.training.background.services import wait_for_answer
from aerotrain.training.background.writers import StatusWriter
from aerotrain.training.input.order import Order
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shards import share, split_of

#: Milliseconds after which an unresponsive replica is dropped, and between two heartbeats.
_LOST, _BEAT = 5_000, 1_000

#: Seconds between two looks at whether a worker is preempted.
_SECONDS_BETWEEN_LOOKS = 0.05

#: Milliseconds until an iteration without readers is dropped: a restarted chief continues to read.
_DROPPED = 600_000


def serve(replica: Replica) -> None:
    """Serve in this replica's role, and download the shards of a role that reads.

    Raises:
        CorruptError: a shard does not match the data set's manifest.
        FinalError: there are fewer shards than input replicas.
        TemporaryError: the port is taken, or the store is unavailable.
    """
    role, cluster = replica.name.role, replica.cluster
    address = cluster[role][replica.name.index]
    with StatusWriter.of(replica) as status_writer:
        cache = _supply_of_own(replica) if role is replica.job.reader else None
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
                f"{replica.name} could not serve at {address} ({why}); the port may be taken: try "
                "again"
            ) from error
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
    """The cache of this reader's shards, which the chief's graph reads from the disk."""
    arguments = TrainArguments.from_dict(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    split = split_of(dataset, TRAIN_SPLIT)
    if replica.name.role is Role.INPUT:
        own = share(split.shards, replica.name.index, replica.job.count(Role.INPUT))
        order = Order.of(arguments, own)
        read = f"{counted(sum(shard.records for shard in own), 'record')} in "
    else:
        order = Order.of(arguments, split.shards, leased=True)
        read = "what the chief leases to it of "
    cache = ShardCache.of(arguments, dataset, order, replica.scratch, ends=False)
    cache.start()
    print(f"{replica.name} reads {read}{counted(len(order.shards), 'shard')}", flush=True)
    return cache


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


def dispatcher(address: str) -> Any:
    """The dispatcher, which tells readers the addresses of input replicas, at ``host:port``."""
    config = tf.data.experimental.service.DispatcherConfig(
        port=_port(address),
        worker_timeout_ms=_LOST,
        job_gc_check_interval_ms=_BEAT,
        job_gc_timeout_ms=_DROPPED,
    )
    return tf.data.experimental.service.DispatchServer(config)


def input_server(address: str, dispatcher: str, seconds: float) -> Any:
    """The server of one ``input`` replica, started when the dispatcher answers; all ``host:port``.

    Raises:
        TemporaryError: the dispatcher does not answer within ``seconds``.
    """
    if not wait_for_answer(dispatcher, seconds):
        raise TemporaryError(
            f"the dispatcher at {dispatcher} did not answer within {seconds:g} s; see its own log, "
            "and try again"
        )
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=address,
        port=_port(address),
        heartbeat_interval_ms=_BEAT,
    )
    return tf.data.experimental.service.WorkerServer(config)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
