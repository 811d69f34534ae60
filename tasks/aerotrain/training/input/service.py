"""Input by other replicas, where it is the bottleneck: TensorFlow's tf.data service.

Each replica ``input`` reads, parses and transforms the records of its own shards, again and
again, and who trains takes whatever is there: batches are no longer those of the seed, a
training that goes on does not go on where it was in the data, and records that a lost replica
had begun to bring are left out of that epoch. The service finds by itself which of them are
there, so a lost one is missed by nobody. See https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

#: Milliseconds until who gives no sign is no longer asked, until what nobody reads any more is
#: dropped, and between two signs of life.
_LOST, _DROPPED, _BEAT = 5_000, 10_000, 1_000

#: Milliseconds that a replica waits for the dispatcher to begin.
_PATIENCE = 600_000


@dataclass(frozen=True)
class Service:
    """The service whose dispatcher is at ``address``, to one life of a training.

    ``name`` tells that life's readers from those of an earlier one.
    """

    address: str
    name: str

    def bring(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """What ``make`` reads without end in each replica ``input``, in whatever order it comes.

        May be called where a function is traced; ``make`` is called outside of it.
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
    """The server that tells readers where the input is, at ``host:port``."""
    config = tf.data.experimental.service.DispatcherConfig(
        port=_port(address),
        worker_timeout_ms=_LOST,
        job_gc_check_interval_ms=_BEAT,
        job_gc_timeout_ms=_DROPPED,
    )
    return tf.data.experimental.service.DispatchServer(config)


def input_server(address: str, dispatcher: str) -> Any:
    """The server of one replica ``input``, once the dispatcher answers; addresses as host:port."""
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=address,
        port=_port(address),
        heartbeat_interval_ms=_BEAT,
        dispatcher_timeout_ms=_PATIENCE,
    )
    return tf.data.experimental.service.WorkerServer(config)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
