"""Connection to a TPU by name or address, with a deadline: TensorFlow itself waits forever."""

import threading

import tensorflow as tf

from aerotrain.contract.errors import FinalError


def connect(name: str, deadline: float) -> tf.distribute.TPUStrategy:
    """The strategy of the TPU ``name``: ``local``, ``grpc://host:port``, or its name in the cloud.

    Raises:
        FinalError: there is no such TPU, or it did not answer within ``deadline`` seconds.
    """
    found: list[tf.distribute.cluster_resolver.TPUClusterResolver] = []
    failed: list[BaseException] = []

    def look() -> None:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            found.append(resolver)
        except Exception as error:  # noqa: BLE001 -- handed to the caller's thread, whatever it is
            failed.append(error)

    # A call that waits inside TensorFlow cannot be cancelled. A daemon thread does not prevent the
    # process from ending with the error below.
    thread = threading.Thread(target=look, name="tpu", daemon=True)
    thread.start()
    thread.join(deadline)
    if found:
        return tf.distribute.TPUStrategy(found[0])
    if failed:
        reason = str(failed[0]).strip().partition("\n")[0].partition(" Failed in")[0]
    else:
        reason = f"no answer within {deadline:g} s"
    raise FinalError(
        f"strategy 'tpu' found no TPU at {name!r} ({reason}); name one that this machine can "
        "reach, as 'local' or grpc://host:port, or choose another strategy"
    ) from (failed[0] if failed else None)
