"""Updates of variables: Adam's as one operation instead of Keras's dozen, and under a lock.

The formula is Keras's, and the results differ only by rounding. It takes half the time.

An optimizer that updates a variable in several operations needs the lock where other workers do it
too: Adam adds to both moments, and then divides the first one by the root of the second. Where
another worker's update is between these additions, the second moment of a weight may still be 0,
and the weight is moved by the first moment divided by epsilon. That happens mostly in the first
steps, and at the first gradients of a rare row of an embedding.
"""

import math
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3

#: Optimizers whose ``update_step`` is Adam's; a subclass may have changed it.
_ADAM = (keras.optimizers.Adam, keras.optimizers.AdamW)

#: With fewer bits, 1 - 0.999 would be 0.
_DTYPES = (tf.float32, tf.float64)

#: The least number of elements of a fused variable. A smaller one takes no time in either case, and
#: so a small model has exactly the results of ``fit``.
LARGE = 2**14


def fuse(optimizer: Any, least: int = LARGE) -> None:
    """Make ``optimizer``, if possible, update variables of ``least`` elements by one operation."""
    if type(optimizer) in _ADAM and not optimizer.amsgrad and optimizer.beta_1 and optimizer.beta_2:
        optimizer.update_step = _adam(optimizer, least, optimizer.update_step)


def _adam(
    optimizer: keras.optimizers.Adam, least: int, otherwise: Callable[[Any, Any, Any], None]
) -> Callable[[Any, Any, Any], None]:
    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        dtype = variable.dtype
        if variable.shape.num_elements() < least or dtype not in _DTYPES:
            otherwise(gradient, variable, learning_rate)
            return
        m, v = (each.handle for each in keras3.adam_moments(optimizer, variable))
        step = tf.cast(optimizer.iterations + 1, dtype)
        # 1 - beta, as it is computed in this dtype.
        kind = dtype.as_numpy_dtype
        first, second = (
            float(kind(1) - kind(each)) for each in (optimizer.beta_1, optimizer.beta_2)
        )
        gradient = tf.cast(gradient, dtype)
        if isinstance(gradient, tf.IndexedSlices):
            # The operation below also scales the moments of these rows, so the added values are
            # divided by that factor. Keras squares each slice, and adds up the slices of a row.
            # The second moment is first, because the operation of another worker may be between
            # them, and divides the first moment by its root.
            before: list[Any] = []
            for moment, part, values in (
                (v, second, tf.square(gradient.values)),
                (m, first, gradient.values),
            ):
                with tf.control_dependencies(before):
                    added = tf.raw_ops.ResourceScatterAdd(
                        resource=moment,
                        indices=gradient.indices,
                        updates=tf.constant(part / (1 - part), dtype) * values,
                    )
                before.append(added)
            gradient = tf.zeros(variable.shape, dtype)
        # The operation computes 1 - beta_2 in float, up to 0.003 % off, and so are its second
        # moments. Keras's value is exact; this factor makes the steps as large as Keras's.
        size = math.sqrt(second / (1 - optimizer.beta_2))
        # As in Keras, the powers are of numbers that tf.cast rounds to float32, and only they.
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m,
            v=v,
            beta1_power=tf.pow(tf.cast(optimizer.beta_1, dtype), step),
            beta2_power=tf.pow(tf.cast(optimizer.beta_2, dtype), step),
            lr=tf.cast(learning_rate, dtype) * tf.constant(size, dtype),
            beta1=tf.constant(optimizer.beta_1, dtype),
            beta2=tf.constant(optimizer.beta_2, dtype),
            epsilon=tf.constant(optimizer.epsilon * size, dtype),
            grad=gradient,
            use_locking=True,
        )

    return update_step


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
