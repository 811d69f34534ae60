"""A model with a scaled loss, an added loss, and a metric and a mean that a layer keeps."""

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


class Adding(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")
        self.scale = self.add_weight(shape=(), initializer="ones", trainable=False, name="scale")

    def call(self, x):
        self.scale.assign(0.9 * self.scale + 0.1 * keras.ops.mean(keras.ops.abs(x)))
        x = x / self.scale
        self.add_loss(0.001 * keras.ops.mean(keras.ops.square(x)))
        self.size.update_state(keras.ops.abs(x))
        return x


def build_model(hparams):
    model = keras.Sequential(
        [
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            Adding(),
            keras.layers.Dense(10, kernel_regularizer="l2"),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(
        keras.optimizers.LossScaleOptimizer(optimizer),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
