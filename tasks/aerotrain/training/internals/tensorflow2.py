"""Private names of TensorFlow, tried with 2.21.0. It does not import Keras."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import tensorflow as tf
from tensorflow.distribute.experimental.rpc.kernels import gen_rpc_ops
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.experimental.ops.iterator_model_ops import get_model_proto
from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce
from tensorflow.python.distribute.ps_values import AggregatingVariable
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager import context, execute, executor
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.framework.ops import resource_creator_scope

#: The classes of lookup tables, by which TensorFlow registers creators.
_TABLES = ("StaticHashTable", "HashTable", "MutableHashTable", "DenseHashTable")


def seconds_between_elements(iterator: Any) -> float | None:
    """The mean time from the end of a request for an element of ``iterator`` to the next request.

    So it is what the consumer took for an element. tf.data measures it for the last 100 elements,
    to tune its buffers; None while it has none, or where the iterator is in another process.
    ``iterator`` may be a strategy's, whose first device is read.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/data/experimental/ops/iterator_model_ops.py
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/model.proto
    """
    # Of a strategy, of each of its workers, and of each device of a worker.
    for name in ("_iterators", "_iterator", "_device_iterators"):
        inner = getattr(iterator, name, iterator)
        iterator = inner[0] if isinstance(inner, (list, tuple)) else inner
    try:
        gaps = get_model_proto(iterator).gap_times
    except (ValueError, tf.errors.OpError):
        return None
    return sum(gaps) / len(gaps) / 1e6 if gaps else None


def allow_numbers_of_distributed_variables() -> None:
    """Let ``int`` and ``float`` take a variable of several devices, as they take any other.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/values.py
    """
    for kind in (DistributedVariable, AggregatingVariable):
        kind.__int__ = lambda variable: int(variable.numpy())
        kind.__float__ = lambda variable: float(variable.numpy())


def is_deterministic() -> bool:
    """Whether operations are deterministic, so that none reads a clock.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/framework/config.py
    """
    return bool(is_op_determinism_enabled())


def replace_coordinator(strategy: tf.distribute.ParameterServerStrategy, workers: int) -> None:
    """Leave the workers of ``strategy``, so many at most, to another coordinator than TensorFlow's.

    TensorFlow's, which it creates with the first variable, then only knows which lookup tables each
    worker needs; see ``make_tables``.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/parameter_server_strategy_v2.py
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/coordinator/cluster_coordinator.py
    """
    for kind, work in (
        (cluster_coordinator.Worker, "_process_queue"),
        (cluster_coordinator.WorkerPreemptionHandler, "_preemption_handler"),
    ):
        setattr(kind, work, lambda _: None)
    strategy._num_workers = strategy.extended._num_workers = workers
    strategy.extended._allow_run_without_coordinator = True


def connect(workers: Mapping[int, str]) -> None:
    """Connect to these workers, by index and address, and to no other ones from now on.

    What others run, or hold, is lost. As under ``ParameterServerStrategy``, a worker is connected
    to the ps and the chief alone.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/eager/context.py
    """
    server = context.get_server_def()
    for job in server.cluster.job:
        if job.name == "worker":
            job.tasks.clear()
            job.tasks.update(workers)
    for job in server.cluster_device_filters.jobs:
        if job.name == "worker":
            job.tasks.clear()
            for index in workers:
                job.tasks[index].device_filters.extend(["/job:ps", "/job:chief"])
    context.context().update_server_def(server)


@contextmanager
def on_worker(strategy: tf.distribute.ParameterServerStrategy, index: int) -> Iterator[None]:
    """A scope of one thread whose operations run on that worker, with its lookup tables.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/coordinator/cluster_coordinator.py
    """
    worker = strategy._cluster_coordinator._cluster.workers[index]
    worker.executor = executor.new_executor(enable_async=False)
    try:
        with (
            context.executor_scope(worker.executor),
            tf.device(worker.device_name),
            coordinator_context.with_dispatch_context(worker),
        ):
            yield
    finally:
        worker.executor.clear_error()


def make_tables(strategy: tf.distribute.ParameterServerStrategy, index: int) -> None:
    """Make the lookup tables of a worker that was just connected.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/ps_values.py
    """
    worker = strategy._cluster_coordinator._cluster.workers[index]
    for table in (each() for each in worker._resource_remote_value_refs):
        if table is not None:
            table._closure.execute_on(worker)


def is_of_lost_worker(error: tf.errors.OpError) -> bool:
    """Whether an error says that a worker is gone, or that another one has its address now.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/coordinator/cluster_coordinator.py
    """
    return bool(cluster_coordinator._is_worker_failure(error))


def collective_all_gather(replica: tf.distribute.ReplicaContext) -> Callable[..., tf.Tensor] | None:
    """The function that gathers tensors of one shape from all replicas; None within one process.

    It may be called inside a condition, for which there is no public way.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/cross_device_ops.py
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/cross_device_utils.py
    """
    collectives = getattr(replica.strategy.extended, "_cross_device_ops", None)
    if not isinstance(collectives, CollectiveAllReduce):
        return None
    all_gather = collectives._launchers[replica._replica_id]._all_gather
    return lambda value: all_gather(value, None)


def local_collectives(
    devices: Sequence[str], options: Any
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """A ``MultiWorkerMirroredStrategy`` of several CPU devices of this process alone.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/collective_all_reduce_strategy.py
    """
    return tf.distribute.MultiWorkerMirroredStrategy._from_local_devices(devices, options)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which AutoGraph rewrites even if a function that it does not rewrite calls it.

    That is how TensorFlow itself treats a user's function.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/autograph/impl/api.py
    """
    return autograph.tf_convert(function, ControlStatusCtx(status=Status.ENABLED))


def aggregate_by(variable: tf.Variable, aggregation: tf.VariableAggregation) -> None:
    """Set how the values are aggregated that several replicas assign to ``variable``.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/ps_values.py
    """
    variable._aggregation = aggregation


def serialized_tensors(checkpoint: tf.train.Checkpoint) -> Mapping[Any, Mapping[str, Any]]:
    """What ``checkpoint`` writes: by object, tensors, or functions that read them, by name.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/checkpoint/checkpoint.py
    """
    serialized, *_ = checkpoint._saver._gather_serialized_tensors()
    return serialized


@contextmanager
def tables_kept(kept: list[Any]) -> Iterator[None]:
    """A scope whose lookup tables are added to ``kept``: a table ends with its Python object.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/trackable/resource.py
    """

    def create(next_creator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kept.append(next_creator(*args, **kwargs))
        return kept[-1]

    with ExitStack() as scopes:
        for each in _TABLES:
            scopes.enter_context(resource_creator_scope(each, create))
        yield


def read_at_once(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """The values of ``variables`` of one machine, which are read there by one operation.

    An operation of another machine takes about a millisecond, and a function that reads all of them
    is traced and optimized for longer than a training would wait for the operations.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/kernels/resource_variable_ops.cc
    """
    dtypes = [each.dtype.as_datatype_enum for each in variables]
    with tf.device(variables[0].device):
        read: list[tf.Tensor] = execute.execute(
            b"_ReadVariablesOp",
            len(variables),
            inputs=[each.handle for each in variables],
            attrs=("N", len(variables), "dtypes", dtypes),
            ctx=context.context(),
        )
    return read


def owner_of(handle: tf.Tensor) -> Any:
    """The object, such as a table, whose resource ``handle`` is; None if it has none.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/trackable/resource.py
    """
    return handle._parent_trackable() if hasattr(handle, "_parent_trackable") else None


def wait_for_operations() -> None:
    """Wait until all operations of this process are done; those on a mesh return earlier.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/eager/context.py
    """
    context.async_wait()


def rpc_client(address: str) -> tf.Tensor:
    """A client of TensorFlow's RPC server at ``host:port``, also in a graph, unlike the public one.

    It is made once, where a data set is made: two that are made at once by one operation would end
    the process.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/distribute/experimental/rpc/kernels/rpc_ops.cc
    """
    return gen_rpc_ops.rpc_client(
        shared_name=uuid4().hex,
        server_address=address,
        timeout_in_ms=0,  # none: each call has its own
        list_registered_methods=False,
    )[0]


def rpc_call(
    client: tf.Tensor,
    method: str,
    arguments: Sequence[tf.Tensor],
    milliseconds: int,
    accepted: Sequence[int],
) -> tuple[tf.Tensor, tf.Tensor]:
    """The code of the error of a call, 0 if there is none, and the vector of strings it returns.

    An error that is not ``accepted`` is raised. The call has so many ``milliseconds``.
    """
    future, deleter = gen_rpc_ops.rpc_call(
        client, args=arguments, method_name=method, timeout_in_ms=milliseconds
    )
    code = tf.ensure_shape(gen_rpc_ops.rpc_check_status(future)[0], [])
    values = tf.cond(
        tf.reduce_any(code == accepted),
        lambda: tf.zeros([0], tf.string),
        lambda: tf.ensure_shape(gen_rpc_ops.rpc_get_value(future, Tout=[tf.string])[0], [None]),
    )
    with tf.control_dependencies([code, values]):
        deleted = gen_rpc_ops.delete_rpc_future_resource(handle=future, deleter=deleter)
    with tf.control_dependencies([deleted]):
        return tf.identity(code), tf.identity(values)
