"""A model whose only state besides its weights is that of a batch normalization."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


def build_model(_hparams):
    model = keras.Sequential(
        [
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
