"""Input by other replicas, if reading is the bottleneck: TensorFlow's tf.data service.

Each ``input`` replica reads, parses and transforms the records of its own shards repeatedly, and
the training replicas take whatever batch is ready. So the order of batches no longer follows the
seed. The service detects which input replicas are available; while one is missing, the others
continue, and a restarted one begins where the training began. See
https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import tensorflow as tf

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.replicas import Role
from aerotrain.replica import Replica
from aerotrain.training.background.watchdog import answers

#: Milliseconds after which an unresponsive replica is dropped, and between two heartbeats.
_LOST, _BEAT = 5_000, 1_000

#: Milliseconds until an iteration without readers is dropped: a restarted chief continues to read.
_DROPPED = 600_000

_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Service:
    """The service with the dispatcher at ``address``; readers with one ``name`` share batches."""

    address: str
    name: str

    @classmethod
    def of(cls, replica: Replica) -> Self | None:
        """The service of the replica's job, if the job has input replicas."""
        if not replica.job.count(Role.INPUT):
            return None
        [address] = replica.cluster[Role.DISPATCHER]
        return cls(address, replica.attempt)

    def read(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """The batches that ``make`` reads in each ``input`` replica, without end and in any order.

        It may be called while a function is traced; ``make`` is called outside of it.
        """
        url = f"grpc://{self.address}"
        with tf.init_scope():
            made = make()
            registered = tf.data.experimental.service.register_dataset(
                url, made, compression=None, dataset_id=self.name
            )
            number = registered.numpy()
        brought = tf.data.experimental.service.from_dataset_id(
            tf.data.experimental.service.ShardingPolicy.OFF,
            url,
            number,
            element_spec=made.element_spec,
            job_name=self.name,
        )
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return brought.apply(endless)


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
    # TensorFlow would wait with Python's lock held, and this replica would send no heartbeat.
    until = time.monotonic() + seconds
    while not answers(dispatcher):
        if time.monotonic() > until:
            raise TemporaryError(
                f"the dispatcher at {dispatcher} did not answer within {seconds:g} s; see its own "
                "log, and try again"
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=address,
        port=_port(address),
        heartbeat_interval_ms=_BEAT,
    )
    return tf.data.experimental.service.WorkerServer(config)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
