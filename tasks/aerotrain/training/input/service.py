"""Input by other replicas, where it is the bottleneck: TensorFlow's tf.data service.

Each replica ``input`` reads, parses and transforms the records of its own shards, again and
again, and who trains takes whatever is there: batches are no longer those of the seed. The
service finds by itself which of these replicas are there, so one of several is not missed while
it is gone; then it begins again where the training began. See https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import TemporaryError
from aerotrain.training.server_probe import answers

#: Milliseconds until who gives no sign is no longer asked, and between two signs of life.
_LOST, _BEAT = 5_000, 1_000

#: Milliseconds until what nobody reads any more is dropped: a chief that comes back reads on.
_DROPPED = 600_000

_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Service:
    """The service whose dispatcher is at ``address``; all who read by ``name`` share what comes."""

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


def input_server(address: str, dispatcher: str, seconds: float) -> Any:
    """The server of one replica ``input``, once the dispatcher answers; addresses as host:port.

    Raises:
        TemporaryError: it does not within ``seconds``.
    """
    # TensorFlow would wait with Python's lock held, and this replica give no sign of life.
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
