"""A tf_keras model: layers with state, a regularizer, a schedule, clipping and weight decay."""

import tensorflow as tf
import tf_keras


def build_model(hparams):
    layers = tf_keras.layers
    image = tf_keras.Input((8, 8))
    hidden = layers.Dense(32, activation="relu")(layers.Flatten()(image))
    if hparams.get("normalize", False):
        hidden = layers.BatchNormalization()(hidden)
    digit = layers.Dense(10, kernel_regularizer="l2", name="digit")(hidden)
    model = tf_keras.Model(image, digit)
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.01, 20, 0.9)
    model.compile(
        tf_keras.optimizers.Adam(
            rate, clipnorm=0.5, weight_decay=0.01, use_ema=hparams.get("ema", False)
        ),
        tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=[tf_keras.metrics.SparseCategoricalCrossentropy(from_logits=True)],
    )
    return model


def transform(features):
    weights = tf.where(features["label"] == 3, 2.0, 1.0)
    return tf.cast(features["image"], tf.float32) / 16, features["label"], weights
