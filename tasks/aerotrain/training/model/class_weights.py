"""Class weights, converted to sample weights."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.input.batches import Transform


def weighted(transform: Transform, class_weight: Mapping[str, float]) -> Transform:
    """``transform`` with a sample weight for each example, from its class, as ``fit`` does it.

    The class is the label, or the index of the one in a one-hot label. A class without a weight has
    the weight 1.

    Raises:
        FinalError: when called, if batches have no single label, or already have sample weights.
    """
    table = np.ones(max(int(each) for each in class_weight) + 1, np.float32)
    for each, weight in class_weight.items():
        table[int(each)] = weight

    def with_weights(features: dict[str, tf.Tensor]) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(transform(features))
        if weights is not None:
            raise FinalError(
                "the transform returns weights of examples, and class_weight asks for others; "
                "leave one of them out"
            )
        if not isinstance(y, tf.Tensor):
            raise FinalError(
                f"class_weight needs one label for each example, and the transform returns "
                f"{type(y).__name__}; return sample weights from the transform instead"
            )
        labels = _classes(y)
        known = tf.logical_and(labels >= 0, labels < len(table))
        return x, y, tf.where(known, tf.gather(table, tf.where(known, labels, 0)), 1.0)

    return with_weights


def _classes(y: tf.Tensor) -> tf.Tensor:
    """The class of each example as an int64 vector, from numbers or one-hot rows."""
    if y.shape.rank > 1 and y.shape[-1] != 1:
        return tf.argmax(y, axis=-1)
    labels = tf.reshape(y, [-1])
    return tf.cast(labels if labels.dtype.is_integer else tf.round(labels), tf.int64)
