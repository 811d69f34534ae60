"""Models whose losses are a user's own, for ``keras_table.py``: each trains on the same features.

The features are a vector, and a sequence that is padded with zeros; the target is two numbers.
"""

import types
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops


def outputs() -> tuple[Any, Any]:
    """Inputs, and two numbers."""
    inputs = {"vector": keras.Input((4,)), "sequence": keras.Input((None, 4))}
    hidden = layers.Dense(6, activation="tanh")(inputs["vector"])
    seen = layers.GlobalAveragePooling1D()(layers.Masking()(inputs["sequence"]))
    return inputs, layers.Dense(2, kernel_regularizer="l2")(layers.concatenate([hidden, seen]))


def compiled(kind: Any, *, loss: Any = "mse", metrics: Any = ("mae",)) -> Any:
    model = kind(*outputs())
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=list(metrics))
    return model


class AddedTerm(keras.Model):
    """Adds a term to the compiled loss, as Keras's guide shows."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        known = keras.Model.compute_loss(self, x, y, y_pred, sample_weight)
        return known + 0.1 * ops.mean(ops.square(y_pred))


class Selected(keras.Model):
    """The mean over the targets that are known, whose number differs between records."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        known = y[:, 0] > 0.8
        error = keras.losses.MeanSquaredError()
        return error(tf.boolean_mask(y, known), tf.boolean_mask(y_pred, known))


class Root(keras.Model):
    """The root of a mean, which is no mean."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        return ops.sqrt(super().compute_loss(x, y, y_pred, sample_weight))


class InBatch(keras.Model):
    """The other records of a batch are the negatives of each."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        likeness = ops.matmul(y_pred, ops.transpose(ops.cast(y, y_pred.dtype)))
        own = ops.arange(ops.shape(likeness)[0])
        return ops.mean(
            ops.sparse_categorical_crossentropy(own[:, None], likeness, from_logits=True)
        )


class OwnStep(keras.Model):
    """A ``train_step`` of its own, with a term that ``compute_loss`` does not see."""

    def train_step(self, data):  # type: ignore[no-untyped-def]
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred) + 0.1 * ops.mean(ops.square(y_pred))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class SumStep(keras.Model):
    """A ``train_step`` of its own, whose loss is a sum."""

    def train_step(self, data):  # type: ignore[no-untyped-def]
        x, y = data
        with tf.GradientTape() as tape:
            loss = 0.1 * ops.sum(ops.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


class Opponents(keras.Model):
    """Two parts with an optimizer each, such as those of a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.makes = layers.Dense(2)
        self.judges = layers.Dense(1)
        self.distance = keras.metrics.Mean(name="distance")

    def compile(self) -> None:
        super().compile()
        self.making, self.judging = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)

    def call(self, x):  # type: ignore[no-untyped-def]
        return self.makes(x["vector"])

    def train_step(self, data):  # type: ignore[no-untyped-def]
        x, y = data
        entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        for part, optimizer, wanted in (
            (self.judges, self.judging, (1.0, 0.0)),
            (self.makes, self.making, (0.0, 1.0)),
        ):
            with tf.GradientTape() as tape:
                real, made = self.judges(y), self.judges(self(x, training=True))
                loss = entropy(wanted[0] + 0 * real, real) + entropy(wanted[1] + 0 * made, made)
            gradients = tape.gradient(loss, part.trainable_weights)
            optimizer.apply(gradients, part.trainable_weights)
        self.distance.update_state(ops.abs(y - self(x)))
        return {"distance": self.distance.result()}


def opponents(built: bool = True) -> Any:
    model = Opponents()
    model.compile()
    if built:
        model.makes.build((None, 4))
        model.judges.build((None, 2))
        model.making.build(model.makes.trainable_variables)
        model.judging.build(model.judges.trainable_variables)
    return model


def masked(kind: Any = keras.Model) -> Any:
    """The mean over the known steps of a sequence, whose length differs between records."""
    inputs = {"vector": keras.Input((4,)), "sequence": keras.Input((5, 4))}
    known = layers.Masking()(inputs["sequence"])
    steps = layers.Dense(2)(known)
    target = layers.RepeatVector(5)(layers.Dense(2)(inputs["vector"]))
    model = kind(inputs, layers.Add()([steps, target]))
    model.compile(keras.optimizers.SGD(0.1), Repeated(), metrics=[])
    return model


class Repeated(keras.losses.Loss):
    """The distance of each step from one target."""

    def call(self, y, y_pred):  # type: ignore[no-untyped-def]
        return ops.mean(ops.square(y[:, None, :] - y_pred), axis=-1)


class Norm(keras.losses.Loss):
    """The length of the error of a whole batch."""

    def call(self, y, y_pred):  # type: ignore[no-untyped-def]
        return ops.sqrt(ops.sum(ops.square(y - y_pred)))


class Adding(layers.Layer):
    """Adds the mean of what it sees to the loss."""

    def call(self, x):  # type: ignore[no-untyped-def]
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


class Balancing(layers.Layer):
    """Adds to the loss how evenly the records of a batch are distributed over experts."""

    def call(self, x):  # type: ignore[no-untyped-def]
        self.add_loss(ops.sum(ops.square(ops.mean(ops.softmax(3 * x), axis=0))))
        return x


def known_only(y: Any, y_pred: Any) -> Any:
    """The mean over targets that count as known, such as those that are not -1."""
    known = ops.cast(y > 1.2, y_pred.dtype)
    return ops.sum(known * ops.square(y - y_pred)) / ops.maximum(ops.sum(known), 1.0)


def replaced(method: str) -> Any:
    """A model with a ``method`` of its own that its class does not have."""
    model = compiled(keras.Model)
    kind = {"train_step": OwnStep, "compute_loss": AddedTerm}[method]
    setattr(model, method, types.MethodType(getattr(kind, method), model))
    return model


class Counting(layers.Layer):
    """Keeps a moving mean of what it sees, and the number of its calls."""

    def build(self, shape):  # type: ignore[no-untyped-def]
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="mean")
        self.calls = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls"
        )

    def call(self, x):  # type: ignore[no-untyped-def]
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x))
        self.calls.assign_add(1)
        return x


def extended(added: Callable[[Any, Any], Any], optimizer: Any = None) -> Any:
    """A model with what ``added`` makes of the inputs and of the two numbers."""
    inputs, known = outputs()
    model = keras.Model(inputs, added(inputs, known))
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse")
    return model


def adding(_inputs: Any, known: Any) -> Any:
    return Adding()(layers.Dense(2, activity_regularizer="l2")(known))


def counting(inputs: Any, known: Any) -> Any:
    return layers.Add()([known, 0 * Counting()(inputs["vector"])[:, :2]])


def overwritten() -> Any:
    ema = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    return extended(lambda _, known: known, keras.optimizers.SGD(0.1, **ema))


OWN = {
    "averages that overwrite weights": overwritten,
    "state of a layer": lambda: extended(counting),
    "compute_loss with an added term": lambda: compiled(AddedTerm),
    "compute_loss of selected targets": lambda: compiled(Selected),
    "compute_loss, the root of a mean": lambda: compiled(Root),
    "compute_loss with negatives in the batch": lambda: compiled(InBatch),
    "losses added by layers, and regularizers": lambda: extended(adding),
    "losses of a whole batch added by layers": lambda: extended(
        lambda _, known: Balancing()(known)
    ),
    "compute_loss of an instance": lambda: replaced("compute_loss"),
    "a loss of masked steps": masked,
    "a mean over known targets": lambda: compiled(keras.Model, loss=known_only),
    "a loss of the whole batch": lambda: compiled(keras.Model, loss=Norm()),
    "train_step with an added term": lambda: compiled(OwnStep),
    "train_step of a sum": lambda: compiled(SumStep),
    "train_step of an instance": lambda: replaced("train_step"),
    "train_step with a loss of masked steps": lambda: masked(OwnStep),
    "train_step with two optimizers": opponents,
    "train_step that creates variables": lambda: opponents(built=False),
}
