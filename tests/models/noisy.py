"""The model of ``small``, with a transform that adds noise to each image."""

import tensorflow as tf
from small import build_model  # noqa: F401 -- it is this module's model too
from small import transform as small_transform


def transform(features):
    image, label = small_transform(features)
    return image + tf.random.normal(tf.shape(image), stddev=0.1), label
