"""The update of an optimizer as a function of values, which Keras lacks with TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.training.internals import keras3
from aerotrain.training.steps.updates import fuse

pytestmark = pytest.mark.process

optimizers = keras.optimizers


class Own(optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * tf.sign(gradient))


def decay_of_kernels_only(weights):
    optimizer = optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=weights[1:])
    return optimizer


KINDS = {
    "momentum": lambda _: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "a schedule": lambda _: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "clipping": lambda _: optimizers.Adam(0.1, global_clipnorm=0.5),
    "weight decay of some variables": decay_of_kernels_only,
    "averages of the weights": lambda _: optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5),
    "scaled losses": lambda _: optimizers.LossScaleOptimizer(optimizers.Adam(0.1)),
    "an update of the user's own": lambda _: Own(0.1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stateless_update_computes_what_the_optimizer_assigns(kind):
    def updated(apply):
        weights = [
            keras.Variable(np.linspace(1, 2, 6).reshape(2, 3), name="kernel"),
            keras.Variable(np.linspace(-1, 1, 3), name="bias"),
        ]
        optimizer = KINDS[kind](weights)
        optimizer.build(weights)
        for number in range(3):
            gradients = [tf.constant(each.numpy() * number - 0.3) for each in weights]
            apply(optimizer, gradients, weights)
        return [each.numpy() for each in (*weights, *optimizer.variables)]

    def stateless(optimizer, gradients, weights):
        variables = [*weights, *optimizer.variables]
        before = [tf.constant(each.numpy()) for each in variables]
        new, state = keras3.stateless_apply(optimizer, before[2:], gradients, before[:2])
        for variable, kept, value in zip(variables, before, [*new, *state], strict=True):
            np.testing.assert_array_equal(variable.numpy(), kept)
            variable.assign(value)

    assigned = updated(lambda optimizer, *given: optimizer.apply(*given))
    for given, expected in zip(updated(stateless), assigned, strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_adam_of_one_operation_computes_in_the_precision_of_its_variable():
    def updated(change):
        weight = keras.Variable(np.linspace(1, 2, 6), dtype="float64")
        optimizer = optimizers.Adam(0.1)
        change(optimizer)
        optimizer.build([weight])
        for number in range(3):
            optimizer.apply([tf.constant(weight.numpy() * number - 0.3)], [weight])
        return weight.numpy()

    fused = updated(lambda optimizer: fuse(optimizer, least=0))
    np.testing.assert_allclose(fused, updated(lambda _: None), rtol=1e-12)
