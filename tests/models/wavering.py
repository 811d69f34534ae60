"""A transform that keeps state in Python, so that no export can repeat what training did."""

import itertools

import tensorflow as tf
from small import build_model  # noqa: F401 -- it is this module's build_model too

_calls = itertools.count(1)


def transform(features):
    return tf.cast(features["image"], tf.float32) / next(_calls), features["label"]
