"""A model whose optimizer has an infinite learning rate from the sixtieth step on."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


class Exploding(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return keras.ops.where(step >= 59, float("inf"), 0.01)


def build_model(hparams):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile(
        keras.optimizers.SGD(Exploding()),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model
