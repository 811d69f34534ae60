"""A model that is not compiled."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


def build_model(hparams):
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
