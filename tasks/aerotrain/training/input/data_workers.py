"""Data workers: replicas that read and transform batches for others, if input is the bottleneck.

A reader plans which records are in each batch, and calls a data worker for it. A data worker keeps
nothing between two calls but windows that it has read, so any of them can answer any call. The
calls for consecutive batches go to the data workers in turn. One that does not answer is left out
for some seconds, and the next one is called for the same batch. Before it is called again, it is
asked whether it is there: a call waits for a connection. So a reader gets each batch once,
in its own order, whichever data workers are lost, and of a lost one it needs nothing but an answer.

Calls are TensorFlow's own, operations that also run in a worker of a parameter server strategy. See
https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/rpc
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import tensorflow as tf

from aerotrain.training.input.batches import MicrobatchSpec, RowLayout
from aerotrain.training.input.shuffle_windows import no_records, read_window, slept
from aerotrain.training.internals import tensorflow2

#: A batch: the number of each window, how many of its shuffled records are before those of the
#: batch, and their number.
ROWS = tf.TensorSpec([None, 3], tf.int64)

#: The methods of a data worker.
_PING, _MICROBATCHES = "ping", "microbatches"

#: Milliseconds until a data worker is taken as lost that is not there, or is there and does not
#: answer a call. The latter may wait for shards, and is called again.
_PING_MILLISECONDS, _CALL_MILLISECONDS = 500, 20_000

#: Seconds for which a lost data worker is left out.
_SECONDS_LEFT_OUT = 2.0

#: Seconds for which a data worker keeps each window that it has used.
_SECONDS_KEPT = 2.0

#: Codes of https://github.com/tensorflow/tensorflow/blob/v2.21.0/third_party/xla/third_party/tsl/tsl/protobuf/error_codes.proto:
#: CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE.
_LOST = (1, 4, 14)


@dataclass(frozen=True)
class DataWorkers:
    """The data workers of a job, for one reader, which has ``calls`` calls at once."""

    addresses: Sequence[str]
    batch_size: int
    calls: int

    def bring(self, spec: Any, cut: MicrobatchSpec | None) -> Callable[..., Any]:
        """The same as ``transformed``, of ``ROWS`` instead of records.

        ``spec`` is the element spec of whole batches. Call this where the data set is made.
        """
        weighted = (tf.TensorSpec([], tf.float32), spec)
        call = self._caller((weighted,) * (cut.accumulate if cut else 1))
        replicas = cut.replicas if cut else 1

        def microbatches(replica: Any, rows: tf.Tensor) -> Any:
            return call(rows, tf.cast(replica, tf.int64), tf.constant(replicas, tf.int64))

        return microbatches if cut else lambda rows: microbatches(0, rows)[0][1]

    def _caller(self, spec: Any) -> Callable[..., Any]:
        """A function of the arguments of a call, which returns what ``spec`` says."""
        count = len(self.addresses)
        clients = tf.stack([tensorflow2.rpc_client(each) for each in self.addresses])
        # When each data worker was lost, in seconds; 0 once it has answered a call.
        lost = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[count], shared_name=uuid4().hex)
        tf.raw_ops.AssignVariableOp(resource=lost, value=tf.ones([count], tf.float64))

        def once(turn: tf.Tensor, arguments: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            in_turn = (turn + tf.range(count, dtype=tf.int64)) % count
            since = tf.gather(tf.raw_ops.ReadVariableOp(resource=lost, dtype=tf.float64), in_turn)
            is_left_out = since > tf.timestamp() - _SECONDS_LEFT_OUT
            first = tf.argmin(tf.where(is_left_out, since, 0.0))
            client = clients[in_turn[first]]
            code, nothing = tf.cond(
                since[first] > 0,
                lambda: tensorflow2.rpc_call(client, _PING, [], _PING_MILLISECONDS, _LOST),
                lambda: (tf.constant(0, tf.int64), tf.zeros([0], tf.string)),
            )
            code, values = tf.cond(
                code == 0,
                lambda: tensorflow2.rpc_call(
                    client, _MICROBATCHES, arguments, _CALL_MILLISECONDS, _LOST
                ),
                lambda: (code, nothing),
            )
            noted = tf.raw_ops.ResourceScatterUpdate(
                resource=lost,
                indices=in_turn[first],
                updates=tf.where(code == 0, tf.zeros([], tf.float64), tf.timestamp()),
            )
            with tf.control_dependencies([noted]):
                return tf.identity(code), tf.identity(values)

        def call(rows: tf.Tensor, replica: tf.Tensor, replicas: tf.Tensor) -> Any:
            turn = rows[0, 0] + rows[0, 1] // self.batch_size + replica
            _, values = tf.while_loop(
                lambda code, _: code != 0,
                lambda *_: once(turn, [rows, replica, replicas]),
                (tf.constant(-1, tf.int64), tf.zeros([0], tf.string)),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
                parallel_iterations=1,
            )
            tensors = [
                tf.ensure_shape(tf.io.parse_tensor(values[each], of.dtype), of.shape)
                for each, of in enumerate(tf.nest.flatten(spec, expand_composites=True))
            ]
            return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

        return call


class BatchServer:
    """Serves batches of what the shard cache in ``scratch`` has, at ``address``, ``host:port``.

    ``function_of`` returns what ``transformed`` does for a ``cut``. ``layout`` is that of the
    records, if all have one. The last ``windows`` windows are kept in memory.
    """

    def __init__(
        self,
        address: str,
        function_of: Callable[[MicrobatchSpec], Callable[..., Any]],
        accumulate: int,
        scratch: Path,
        layout: RowLayout | None,
        windows: int,
    ) -> None:
        self._most = windows
        width = layout.width if layout else None
        self._nothing = no_records(width)
        self._read = tf.function(
            lambda number: read_window(f"{scratch}/", width, number)[:2],
            input_signature=[tf.TensorSpec([], tf.int64)],
            autograph=False,
        )
        # One at a time: a shard cache looks for the shards of one window.
        self._reader = ThreadPoolExecutor(1)
        self._windows: dict[int, Future[Any]] = {}
        self._used: dict[int, float] = {}
        self._lock = threading.Lock()

        def microbatches(rows: tf.Tensor, replica: tf.Tensor, replicas: tf.Tensor) -> tf.Tensor:
            cut = MicrobatchSpec(accumulate=accumulate, replicas=replicas)
            pieces = function_of(cut)(replica, self._records(rows))
            flat = tf.nest.flatten(pieces, expand_composites=True)
            # Calls themselves would encode one number after another.
            return tf.stack([tf.io.serialize_tensor(each) for each in flat])

        number = tf.TensorSpec([], tf.int64)
        self._server = tf.distribute.experimental.rpc.Server.create(
            "grpc", f"0.0.0.0:{address.rpartition(':')[2]}"
        )
        self._register(_PING, lambda: tf.zeros([0], tf.string), [])
        self._register(_MICROBATCHES, microbatches, [ROWS, number, number])
        self._server.start()

    def _register(self, name: str, function: Callable[..., Any], signature: list[Any]) -> None:
        function = tf.function(function, input_signature=signature, autograph=False)
        self._server.register(name, function)

    def _records(self, rows: tf.Tensor) -> tf.Tensor:
        """The records of a batch, once its windows are read; no thread waits for them."""
        nothing = self._nothing
        shape = tf.TensorShape([None, *nothing.shape[1:]])

        def look() -> Any:
            is_there, records = tf.py_function(self._held, [rows], [tf.bool, nothing.dtype])
            return tf.ensure_shape(is_there, []), tf.ensure_shape(records, shape)

        def look_again(*_: tf.Tensor) -> Any:
            with tf.control_dependencies([slept()]):
                return look()

        return tf.while_loop(
            lambda is_there, _: ~is_there,
            look_again,
            look(),
            shape_invariants=(tf.TensorShape([]), shape),
            parallel_iterations=1,
        )[1]

    def _held(self, rows: tf.Tensor) -> tuple[bool, tf.Tensor]:
        """The records of ``rows``, if all their windows are read; otherwise they will be."""
        rows = rows.numpy().tolist()
        with self._lock:
            windows = [self._window(number) for number, *_ in rows]
        if not all(window.done() for window in windows):
            return False, self._nothing
        parts = []
        for (_, drop, count), window in zip(rows, windows, strict=True):
            records, order = window.result()
            parts.append(tf.gather(records, order.numpy()[drop : drop + count]))
        return True, parts[0] if len(parts) == 1 else tf.concat(parts, 0)

    def _window(self, number: int) -> Future[Any]:
        window = self._windows.pop(number, None)
        if window is None:
            window = self._reader.submit(self._read, tf.constant(number, tf.int64))
        self._windows[number] = window  # the last one, as the latest used
        self._used[number] = now = time.monotonic()
        # One that a call waits for is looked up again and again: it may need several at once.
        for old in list(self._windows)[: -self._most]:
            if self._windows[old].done() and self._used[old] < now - _SECONDS_KEPT:
                del self._windows[old], self._used[old]
        return window
