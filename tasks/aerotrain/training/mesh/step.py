"""Training steps of a compiled Keras model whose variables are on a mesh."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from aerotrain.contract.errors import FinalError
from aerotrain.training.steps.compiled import inner
from aerotrain.training.steps.custom import has_custom_step
from aerotrain.training.steps.step import MetricState, MetricValues


class MeshStep:
    """Training steps that read every variable once before, and write it once after all else.

    Inside DTensor's functions a read does not wait for the previous write, so an optimizer that
    updates its moments and then reads them sometimes gets the old values.

    ``_batch`` is the spec that other steps trace a model's own step with; it is not used here.

    Raises:
        FinalError: the model needs what is not possible on a mesh.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable, _batch: Any = None) -> None:
        _refuse_conditional(model)
        _without_variables(model.optimizer)
        self.metrics = MetricState(model)
        self.model = model
        self.counter = counter
        metrics = {id(each) for each in self.metrics.variables}
        self._weights = [each for each in model.variables if id(each) not in metrics]
        self._slots = list(model.optimizer.variables)
        places = {id(each): place for place, each in enumerate(self._weights)}
        self._trained = [places[id(each)] for each in model.trainable_weights]

    def __call__(
        self, sums: MetricValues, first: tf.Tensor, batches: Sequence[Any]
    ) -> MetricValues:
        """Train on each of ``batches`` in turn, and return ``sums`` with them added.

        ``first`` is the number of the first of these steps, counted from 1.
        """
        variables = [*self._weights, *self._slots]
        before = [each._value.read_value() for each in variables]
        after, many = before, len(self._weights)
        for index, batch in enumerate(batches):
            weights, slots, loss, sums = self._one(after[:many], after[many:], sums, batch)
            sums = [*sums[:-1], _first_bad(sums[-1], loss, first + index)]
            after = [*weights, *slots]
        for variable, old, new in zip(variables, before, after, strict=True):
            if new is not old:
                variable._value.assign(new)
        return sums

    def _one(
        self, weights: list[Any], slots: list[Any], sums: MetricValues, batch: Any
    ) -> tuple[list[Any], list[Any], tf.Tensor, MetricValues]:
        model = self.model
        trained = [weights[place] for place in self._trained]
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        mapping = [
            *zip(self._weights, weights, strict=True),
            *zip(self._slots, slots, strict=True),
            *zip(self.metrics.variables, sums, strict=False),
        ]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            with tf.GradientTape() as tape:
                tape.watch(trained)
                y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
                loss = model._compute_loss(x, y, y_pred, weight, training=True)
                length = tf.shape(tf.nest.flatten(x)[0])[0]
                model._loss_tracker.update_state(loss, sample_weight=length)
                scaled = model.optimizer.scale_loss(loss)
            model.compute_metrics(x, y, y_pred, sample_weight=weight)
        gradients = tape.gradient(scaled, trained)
        new_trained, new_slots = model.optimizer.stateless_apply(slots, gradients, trained)
        after = [scope.get_current_value(each) for each in self._weights]
        for place, new in zip(self._trained, new_trained, strict=True):
            after[place] = new
        return after, new_slots, loss, [*self.metrics.of(scope), sums[-1]]


def _first_bad(known: tf.Tensor, loss: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """The result of ``step.first_bad``, without ``tf.where``, which crashes DTensor on a scalar."""
    bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(loss)))
    is_first = tf.cast(tf.logical_and(bad, tf.equal(known[1], 0)), known.dtype)
    return known + is_first * tf.stack([tf.cast(step, known.dtype), tf.ones([], known.dtype)])


def _refuse_conditional(model: keras.Model) -> None:
    """Check for what acts in some steps only, because DTensor has no conditionals."""
    if has_custom_step(model):
        raise FinalError(
            f"{type(model).__name__} has a train_step of its own, which writes its variables in "
            "an order that 'dtensor' does not keep; override compute_loss instead of train_step, "
            "or choose 'one_device' or 'mirrored'"
        )
    optimizer = inner(model.optimizer)
    for name, instead in (
        ("gradient_accumulation_steps", "raise batch_size"),
        ("ema_overwrite_frequency", "let the averages be taken at the end of training"),
    ):
        if getattr(optimizer, name, None):
            raise FinalError(
                f"the optimizer's {name} acts in some steps only, which 'dtensor' cannot; "
                f"leave it out and {instead}, or choose 'one_device' or 'mirrored'"
            )


def _without_variables(optimizer: Any) -> None:
    """Give ``optimizer`` the ``stateless_apply`` that Keras disables for TensorFlow's optimizers.

    Keras's TensorFlow optimizers bypass Keras's variables and use the ``tf.Variable`` in them. Only
    that is undone here. The optimizer's formula does not change.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        _without_variables(optimizer.inner_optimizer)
        return
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Stateless, kind), {})
    variables = optimizer._trainable_variables
    optimizer._trainable_variables_indices = {id(each): i for i, each in enumerate(variables)}


class _Stateless(BaseOptimizer):  # type: ignore[misc]  # Keras has no types
    assign = BaseOptimizer.assign
    _apply_weight_decay = BaseOptimizer._apply_weight_decay
    _backend_update_step = BaseOptimizer._backend_update_step
    _overwrite_model_variables_with_average_value = (
        BaseOptimizer._overwrite_model_variables_with_average_value
    )
    _var_key = BaseOptimizer._var_key
    stateless_apply = BaseOptimizer.stateless_apply

    def assign_add(self, variable: Any, value: Any) -> None:
        variable.assign(variable + tf.convert_to_tensor(value))

    def assign_sub(self, variable: Any, value: Any) -> None:
        variable.assign(variable - tf.convert_to_tensor(value))
