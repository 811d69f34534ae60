"""Updates of a variable by several workers, one at a time.

An optimizer updates a variable in several operations: Adam adds to both moments, and then divides
the first one by the root of the second. Where another worker's update is between these additions,
the second moment of a weight may still be 0, and the weight is moved by the first moment divided by
epsilon. That happens mostly in the first steps, and at the first gradients of a rare row of an
embedding.
"""

from typing import Any
from uuid import uuid4

import tensorflow as tf


def lock_updates(optimizer: Any) -> None:
    """Let ``optimizer``, of Keras 3 or tf_keras, update each variable under a lock of its own.

    The lock is on the variable's device, and is acquired when the gradient is there, so that no
    worker waits for another one's network or failure.
    """
    locks: dict[Any, tf.CriticalSection] = {}
    update = optimizer.update_step

    def update_step(gradient: Any, variable: tf.Variable, *learning_rate: Any) -> None:
        def locked() -> tf.Tensor:
            # The lock is released when the returned tensor is there, so after all operations.
            graph = tf.compat.v1.get_default_graph()
            before = len(graph.get_operations())
            update(gradient, variable, *learning_rate)
            with tf.control_dependencies(graph.get_operations()[before:]):
                return tf.zeros([])

        if variable.ref() not in locks:
            # A new name, because a ps has the locks of an earlier chief.
            with tf.init_scope(), tf.device(variable.device):
                locks[variable.ref()] = tf.CriticalSection(shared_name=uuid4().hex)
        # Every update reads the learning rate and the number of steps.
        locks[variable.ref()].execute(locked, exclusive_resource_access=False)

    optimizer.update_step = update_step
