"""How a worker that computes for a chief leaves: it is preempted, and gives back its batches.

It creates a file in its working directory. The execution that runs on it ends after a step, and the
chief creates another file when it has the result.
"""

import time

import tensorflow as tf

from aerotrain.replica import Preempted, Replica

_LEAVING, _RELEASED = "leaving", "released"

_SECONDS_BETWEEN_LOOKS = 0.05


def prepare(replica: Replica) -> None:
    """Let a preempted replica leave in this way, from now on."""
    for name in (_LEAVING, _RELEASED):
        (replica.scratch / name).unlink(missing_ok=True)
    replica.notice.promise()


def is_due(replica: Replica) -> bool:
    """Whether this worker was preempted, or asked to leave."""
    return replica.notice.given() or (replica.scratch / _LEAVING).exists()


def leave(replica: Replica) -> None:
    """Wait until the chief has what this worker has done.

    Raises:
        Preempted: at once, if the chief has not released it within its grace period.
    """
    (replica.scratch / _LEAVING).touch()
    until = time.monotonic() + replica.notice.grace / 2
    while not (replica.scratch / _RELEASED).exists() and time.monotonic() < until:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise Preempted("preempted; others get the batches that it had left")


def is_leaving(step: tf.Tensor) -> tf.Tensor:
    """Whether the worker that computes this, at that step of an execution, is about to leave."""
    # The name depends on the step; otherwise TensorFlow would look for the file only once.
    name = tf.gather([_LEAVING, _LEAVING], tf.minimum(step, 1))
    return tf.size(tf.io.matching_files(name)) > 0


def release() -> None:
    """Let the worker leave whose operations run here."""
    tf.io.write_file(_RELEASED, "")
