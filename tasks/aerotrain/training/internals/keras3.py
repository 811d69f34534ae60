"""Private names of Keras 3, tried with 3.15.1.

Outside of a ``StatelessScope`` and of layers, ``variable.value`` is the ``tf.Variable`` of a Keras
variable, so that this needs no private name.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state, name_scope
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.losses import loss as keras_loss
from keras.src.models.functional import Functional
from keras.src.optimizers.base_optimizer import BaseOptimizer

#: Keras's counters of names, such as ``auc`` and ``auc_1``. The only public way to change them is
#: to reset all: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/utils/naming.py
_NAME_COUNTS = "object_name_uids"

#: Whether a SwapEMAWeights has left the averages in the model:
#: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/callbacks/swap_ema_weights.py
SWAPPED = "_ema_weights_in_model"


@contextmanager
def counted_names(made: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """A context in which default names are counted as if only ``made`` had been created.

    It yields these counts, and keeps them up to date.
    """
    before = global_state.get_global_attribute(_NAME_COUNTS)
    counts = defaultdict(int, made)
    global_state.set_global_attribute(_NAME_COUNTS, counts)
    try:
        yield counts
    finally:
        global_state.set_global_attribute(_NAME_COUNTS, before)


def fixed_batch(model: Any) -> int | None:
    """The number of records in each batch of a functional or sequential model; None if any."""
    functional = getattr(model, "_functional", None) or model
    inputs = functional.inputs if isinstance(functional, Functional) else []
    sizes = {each.shape[0] for each in inputs}
    return next(iter(sizes - {None}), None)


def current_path() -> str:
    """The path of the layer that creates a variable now.

    https://github.com/keras-team/keras/blob/v3.15.1/keras/src/backend/common/name_scope.py
    """
    return str(name_scope.current_path())


# Models: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/trainers/trainer.py and
# https://github.com/keras-team/keras/blob/v3.15.1/keras/src/layers/layer.py


def build_symbolically(model: keras.Model, batch: Any) -> None:
    """Create every variable of ``model`` for ``batch``, of ``KerasTensor``, without computing."""
    model._symbolic_build(data_batch=batch)


def call(model: keras.Model, x: Any, *, training: bool) -> Any:
    """``model(x)``, with ``training`` if the model has that parameter, as ``fit`` calls it."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def masks_of(outputs: Any) -> dict[int, tf.Tensor]:
    """The mask of each output that has one, by the place of the output.

    Losses and metrics read it of ``y_pred``, and do not count what is padding:
    https://github.com/keras-team/keras/blob/v3.15.1/keras/src/backend/common/masking.py
    """
    masks = {place: get_keras_mask(each) for place, each in enumerate(tf.nest.flatten(outputs))}
    return {place: mask for place, mask in masks.items() if mask is not None}


def set_masks(outputs: Any, masks: Mapping[int, tf.Tensor]) -> None:
    """Give outputs the masks that ``masks_of`` has returned."""
    flat = tf.nest.flatten(outputs)
    for place, mask in masks.items():
        set_keras_mask(flat[place], mask)


class _AddedLosses(threading.local):
    """Losses of layers, of the replica that this thread traces; none outside of ``compute_loss``.

    Replicas take turns within ``compute_loss``, where they add up the counts of losses.
    """

    losses: Sequence[tf.Tensor] = ()

    def __iter__(self) -> Iterator[tf.Tensor]:
        return iter(self.losses)

    def __len__(self) -> int:
        return len(self.losses)

    def __deepcopy__(self, _memo: Any) -> "_AddedLosses":
        return self


_ADDED = _AddedLosses()


def compute_loss(
    model: keras.Model,
    x: Any,
    y: Any,
    y_pred: Any,
    weight: Any,
    added: Sequence[tf.Tensor] = (),
    *,
    training: bool = True,
) -> tf.Tensor:
    """The loss of a batch, by the model's own ``compute_loss`` if it has one.

    ``added`` replaces the losses of layers, which a model does not see in a stateless scope.
    """
    model._losses_override, _ADDED.losses = _ADDED, added
    try:
        # The public method fails for models whose own one has no parameter ``training``.
        return model._compute_loss(x, y, y_pred, weight, training=training)
    finally:
        _ADDED.losses = ()


def track_loss(model: keras.Model, loss: tf.Tensor, examples: tf.Tensor) -> None:
    """Add the loss of ``examples`` examples, divided by the replicas, to the mean loss."""
    whole = keras_loss.unscale_loss_for_distribution(loss)
    model._loss_tracker.update_state(whole, sample_weight=examples)


#: A microbatch, of whose batch losses and means are to be: ``steps.step.Microbatch``.
Part = Any


class _Sharing(threading.local):
    """The microbatch that this thread computes, since each replica is traced by its own thread."""

    part: Part = None
    #: Whether a metric is updated, which may call a loss.
    measures = False


_SHARING = _Sharing()


@contextmanager
def sharing(part: Part) -> Iterator[None]:
    """A scope in which Keras's losses and means are those of the microbatch ``part`` of a batch.

    Outside of it Keras divides its own losses by the number of replicas, but not what a user adds
    to them, and it divides by what counts in a microbatch, such as what is not masked.
    """
    before, _SHARING.part = _SHARING.part, part
    try:
        yield
    finally:
        _SHARING.part = before


@contextmanager
def measuring() -> Iterator[None]:
    """A scope in which losses are those that metrics call, as numbers of their own."""
    before, _SHARING.measures = _SHARING.measures, True
    try:
        yield
    finally:
        _SHARING.measures = before


def _in_sharing(keras_function: Any, own: Any) -> Any:
    """``own``, which gets the part before its other arguments, within ``sharing``."""

    def chosen(*given: Any, **named: Any) -> Any:
        if _SHARING.part is None:
            return keras_function(*given, **named)
        return own(_SHARING.part, *given, **named)

    return chosen


def _reduced(
    part: Part,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    loss = _REDUCED(values, sample_weight, mask, reduction, dtype)
    shape = tuple(values.shape)
    if reduction in (None, "none") or shape == () or _SHARING.measures:
        return loss
    if shape == (0,):
        loss = tf.reduce_sum(loss)  # Keras returns the empty vector
    by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None

    def count() -> tf.Tensor:
        if by_weights:
            weights = tf.cast(sample_weight, loss.dtype)
            return tf.reduce_sum(keras_loss.apply_mask(weights, mask, loss.dtype, reduction))
        if mask is not None:
            return tf.reduce_sum(tf.cast(mask, loss.dtype))
        return tf.cast(tf.size(values), loss.dtype)

    return part.of_batch(loss, reduction, count, by_records=not by_weights and mask is None)


def _added_to_mean(part: Part, metric: Any, values: Any, sample_weight: Any = None) -> None:
    if sample_weight is None and keras.ops.ndim(values) == 0:
        # Keras counts a number as one, but those of all microbatches of a batch are one together.
        sample_weight = part.weight
    _UPDATED(metric, values, sample_weight)


# https://github.com/keras-team/keras/blob/v3.15.1/keras/src/losses/loss.py and
# https://github.com/keras-team/keras/blob/v3.15.1/keras/src/metrics/reduction_metrics.py
_REDUCED, _UPDATED = keras_loss.reduce_weighted_values, keras.metrics.Mean.update_state
keras_loss.reduce_weighted_values = _in_sharing(_REDUCED, _reduced)
for _name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
    setattr(keras_loss, _name, _in_sharing(getattr(keras_loss, _name), lambda _, loss: loss))
keras.metrics.Mean.update_state = _in_sharing(_UPDATED, _added_to_mean)


def is_compiled(model: keras.Model) -> bool:
    """Whether the model has an optimizer and losses."""
    return bool(model.compiled)


def loss_tracker(model: keras.Model) -> Any:
    """The metric of the mean loss, or None."""
    return model._loss_tracker


def compiled_metrics(model: keras.Model) -> Any:
    """The one metric object that holds the metrics of ``compile``, or None."""
    return model._compile_metrics


def compiled_by_name(model: keras.Model) -> dict[str, Any]:
    """The metrics of ``compile`` by the names of their results, which begin with their outputs'.

    https://github.com/keras-team/keras/blob/v3.15.1/keras/src/trainers/compile_utils.py
    """
    compiled = model._compile_metrics
    if compiled is None or not compiled.built:
        return {}
    return dict(zip(compiled.result(), compiled.metrics, strict=True))


def output_loss_metrics(model: keras.Model) -> Sequence[Any]:
    """The metrics of the loss of each output."""
    return getattr(model._compile_loss, "metrics", ())


def own_metrics(model: keras.Model) -> list[Any]:
    """The metrics of the model, in the order of Keras, without those of its layers."""
    return list(model._get_own_metrics())


def losses(model: keras.Model) -> list[Any]:
    """The losses that the model was compiled with."""
    return [loss for _, _, loss in losses_by_path(model)]


def losses_by_path(model: keras.Model) -> list[tuple[str, tuple[Any, ...], Any]]:
    """The losses that a model was compiled with: the name, the path of the output, the loss."""
    flat = getattr(model._compile_loss, "_flat_losses", None) or ()
    return [(each.name or each.loss.name, each.path, each.loss) for each in flat]


def has_own_compute_loss(model: keras.Model) -> bool:
    """Whether the model, or its class, overrides ``compute_loss``."""
    return not str(model.compute_loss.__module__).startswith("keras.")


def is_of_keras(wrapper: Any) -> bool:
    """Whether the function of a loss or a metric, if it wraps one, is one of Keras."""
    function = getattr(wrapper, "fn", None) or getattr(wrapper, "_fn", None) or wrapper
    kind = type(wrapper) if function is wrapper else function
    return str(getattr(kind, "__module__", "")).startswith("keras.")


def own_state(model: keras.Model) -> list[Any]:
    """Variables of layers that are not Keras's, which neither training nor a metric changes."""
    seeds = {id(each.state) for each in seed_generators(model)}
    measured = {id(each) for metric in model.metrics for each in metric.variables}
    found = [
        variable
        for layer in layers(model)
        if not type(layer).__module__.startswith("keras.")
        for variable in layer._non_trainable_variables
        if not variable.trainable and id(variable) not in seeds | measured
    ]
    return list({id(each): each for each in found}.values())


def layers(model: Any) -> list[Any]:
    """The model and all layers in it, at any depth; also of a tf_keras model."""
    return list(model._flatten_layers())


def seed_generators(model: Any) -> list[Any]:
    """The sources of random numbers of all layers of ``model``."""
    found = [each for layer in layers(model) for each in getattr(layer, "_seed_generators", ())]
    return list({id(each): each for each in found}.values())


def change_seeds(generator: Any, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Let ``function`` change each seed that ``generator`` gives out, but not its state.

    https://github.com/keras-team/keras/blob/v3.15.1/keras/src/random/seed_generator.py
    """
    following = type(generator).next
    generator.next = lambda ordered=True: function(following(generator, ordered))


def monitor_mode(model: keras.Model, monitor: str) -> str | None:
    """``min`` or ``max``, whichever is better of that metric of a built model; None if unknown.

    It is found as callbacks find it, also under the names of outputs.
    https://github.com/keras-team/keras/blob/v3.15.1/keras/src/callbacks/monitor_callback.py
    """
    name = monitor.removeprefix("val_")
    if name in ("loss", *(each.name for each in output_loss_metrics(model))):
        return "min"
    compiled = {each.name: each for each in getattr(compiled_metrics(model), "metrics", ())}
    return mode_of((compiled | compiled_by_name(model)).get(name))


def mode_of(metric: keras.metrics.Metric | None) -> str | None:
    """``min`` or ``max``, whichever is better of that metric; None if unknown.

    https://github.com/keras-team/keras/blob/v3.15.1/keras/src/metrics/metric.py
    """
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", None) or "")


# Variables and optimizers:
# https://github.com/keras-team/keras/blob/v3.15.1/keras/src/backend/tensorflow/core.py
# https://github.com/keras-team/keras/blob/v3.15.1/keras/src/backend/tensorflow/optimizer.py
# https://github.com/keras-team/keras/blob/v3.15.1/keras/src/optimizers/base_optimizer.py


def assign_directly(variable: keras.Variable, value: tf.Tensor) -> None:
    """Assign ``value`` even within a stateless scope."""
    variable._direct_assign(value)


def add_directly(variable: keras.Variable, value: tf.Tensor) -> None:
    """Add ``value`` by one operation of TensorFlow, even within a stateless scope."""
    variable._value.assign_add(value)


def direct_value(variable: keras.Variable) -> tf.Variable:
    """The TensorFlow variable of ``variable`` even within a stateless scope."""
    return variable._value


def gather_by_rows(variable: keras.Variable) -> None:
    """Let ``tf.gather`` read rows of ``variable``; it would read the whole Keras variable first.

    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/ops/array_ops.py
    """
    variable.sparse_read = variable.value.sparse_read


def count_atomically(optimizer: Any) -> None:
    """Let ``optimizer`` add to its count by TensorFlow's operation.

    Keras reads, adds and writes, which loses counts when two workers do it at once.
    """
    count = optimizer._iterations
    count.assign_add = lambda value: count.value.assign_add(value)


def optimizers(model: keras.Model) -> list[Any]:
    """All optimizers that ``model`` refers to, also those within others."""
    found = tf.train.TrackableView(model).descendants()
    return [each for each in found if isinstance(each, keras.optimizers.Optimizer)]


def exchange_gradients_by(
    optimizer: Any, function: Callable[[Sequence[Any]], list[Any]] = list
) -> None:
    """Let ``function`` replace Keras's sum over replicas, before gradients are clipped or scaled.

    It takes the gradients of a replica, of which some may be None, and returns those of all.
    """
    apply = optimizer.apply

    def exchanged(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return apply(function(grads), trainable_variables)

    optimizer.apply = exchanged
    optimizer._all_reduce_sum_gradients = list


def adam_moments(optimizer: keras.optimizers.Adam, variable: Any) -> tuple[Any, Any]:
    """The variables of the first and the second moment of ``variable``."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def stateless_apply(
    optimizer: Any, state: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The weights and the state of ``optimizer`` after an update, as values.

    ``state`` are the values of ``optimizer.variables``. Keras has this for its other backends; its
    TensorFlow optimizers use the ``tf.Variable`` in each Keras variable instead. ``optimizer`` is
    not changed: its formula is computed by a view of it, which shares its variables.
    """
    return _functional(optimizer).stateless_apply(state, gradients, weights)


def _functional(optimizer: Any) -> Any:
    kind = type(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _view(kind, optimizer, inner_optimizer=_functional(optimizer.inner_optimizer))
    functional = type(kind.__name__, (_Functional, kind), {})
    keys = {id(each): optimizer._var_key(each) for each in optimizer._trainable_variables}
    return _view(functional, optimizer, _keys=keys)


def _view(kind: type, optimizer: Any, **others: Any) -> Any:
    """An instance of ``kind`` that shares the attributes of ``optimizer``, except ``others``."""
    view: Any = object.__new__(kind)
    vars(view).update(vars(optimizer), **others)
    return view


class _Functional(BaseOptimizer):  # type: ignore[misc]  # Keras has no types
    """Undoes what ``TFOptimizer`` changes of ``BaseOptimizer``, whose methods can be stateless."""

    assign = BaseOptimizer.assign
    _apply_weight_decay = BaseOptimizer._apply_weight_decay
    _backend_update_step = BaseOptimizer._backend_update_step
    _overwrite_model_variables_with_average_value = (
        BaseOptimizer._overwrite_model_variables_with_average_value
    )
    stateless_apply = BaseOptimizer.stateless_apply

    def _var_key(self, variable: Any) -> Any:
        # In a stateless scope, a variable's value is a tensor, which has no key.
        return self._keys[id(variable)]

    def assign_add(self, variable: Any, value: Any) -> None:
        variable.assign(variable + tf.convert_to_tensor(value))

    def assign_sub(self, variable: Any, value: Any) -> None:
        variable.assign(variable - tf.convert_to_tensor(value))
