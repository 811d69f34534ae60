"""A model whose optimizer adds up the gradients of four steps."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


def build_model(hparams):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=4), "mse")
    return model
