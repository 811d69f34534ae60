"""A model with an operation that DTensor does not have."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


def build_model(_hparams):
    model = keras.Sequential(
        [
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.DepthwiseConv2D(3),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
