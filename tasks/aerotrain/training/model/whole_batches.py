"""Checks of losses and metrics whose batches are cut into pieces, by trying made-up batches.

A sum over records, or a mean, is put together from pieces. A maximum is not, nor is a loss in which
the records of a batch are compared with each other.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.internals import keras3
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.metric_state import MetricState
from aerotrain.training.steps.sharing import Counting, Microbatch
from aerotrain.training.steps.step import TrainStep

#: Sizes of made-up batches: their examples, those of the first of two pieces, and any other
#: dimension that is not fixed.
_EXAMPLES, _FIRST, _LENGTH = 8, 3, 3

_OF_KERAS = ("keras.", "tf_keras.")

States = list[np.ndarray[Any, Any]]


def warn_of_whole_batches(strategy: str, step: TrainStep, batch: Any) -> None:
    """Name the losses and metrics of a Keras 3 model that need a whole batch; ``batch`` is a spec.

    What a layer adds to the losses is not tried.
    """
    x, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
    outputs = _outputs(step.model, x)
    possible = _possible_arguments(labels, outputs)
    found = [
        f"the loss {name!r}"
        for name, path, loss in keras3.losses_by_path(step.model)
        if _needs_whole(loss, [_at(path, labels, outputs, weights), *possible])
    ]
    if keras3.has_own_compute_loss(step.model) and _own_needs_whole(step, batch):
        found.append(f"the compute_loss of {type(step.model).__name__!r}")
    found += [
        f"the metric {metric.name!r}"
        for metric in step.metrics.metrics
        if not _is_of_keras(type(metric)) or not keras3.is_of_keras(metric)
        if _measures_whole(metric, step.metrics, possible)
    ]
    if found:
        are = "is that" if len(found) == 1 else "are those"
        print(
            f"warning: {', '.join(found)} {are} of a whole batch, and {strategy!r} cuts batches "
            "into pieces here: the mean of the pieces takes its place, which differs from fit; "
            "use sums or means over records, or 'one_device' without gradient_accumulation_steps",
            flush=True,
        )
    keeping = [each.path for each in keras3.own_state(step.model)]
    if keeping:
        print(
            f"warning: a layer keeps {', '.join(map(repr, keeping))}, which each piece of a batch "
            f"updates under {strategy!r}; of what replicas add, the mean is kept, so it may "
            "differ from that of fit",
            flush=True,
        )


def _at(path: Sequence[Any], labels: Any, outputs: Any, weights: Any) -> tuple[Any, ...]:
    """The specs of label, output and weight at ``path``; empty if they have other structures."""
    try:
        for key in path:
            labels, outputs = labels[key], outputs[key]
            weights = weights[key] if tf.nest.is_nested(weights) else weights
    except (KeyError, IndexError, TypeError):
        return ()
    if not isinstance(outputs, tf.TensorSpec):
        return ()
    return (labels, outputs) if weights is None else (labels, outputs, weights)


def _needs_whole(loss: Any, possible: Sequence[tuple[Any, ...]]) -> bool:
    """Whether ``loss`` of a batch is not put together from those of its pieces."""
    for specs in (each for each in possible if len(each) > 1):
        draw = np.random.default_rng(0)
        made = [_made_up(each, draw) for each in specs]
        try:
            return _differs(partial(_of_rows, loss, made))
        except Exception:  # noqa: BLE001 -- the user's code may raise anything at such a batch
            continue
    return False


def _of_rows(loss: Any, made: Sequence[tf.Tensor], rows: slice) -> Any:
    return loss(*(each[rows] for each in made))


def _own_needs_whole(step: TrainStep, batch: Any) -> bool:
    draw = np.random.default_rng(0)
    made = tf.nest.map_structure(lambda each: _made_up(each, draw), batch)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(made)

    def loss(rows: slice, y_pred: Any, masks: dict[int, tf.Tensor]) -> Any:
        part = tf.nest.map_structure(
            lambda each: None if each is None else each[rows], (x, y, y_pred, weight)
        )
        own_x, own_y, own_pred, own_weight = part
        keras3.set_masks(own_pred, {place: mask[rows] for place, mask in masks.items()})
        none = [tf.zeros([])]  # in place of what layers add
        return keras3.compute_loss(step.model, own_x, own_y, own_pred, own_weight, none)

    try:
        with keras.StatelessScope():
            y_pred = keras3.call(step.model, x, training=False)
            masks = keras3.masks_of(y_pred)
            return _differs(lambda rows: loss(rows, y_pred, masks))
    except Exception as error:  # noqa: BLE001 -- as above
        print(
            f"warning: the compute_loss of {type(step.model).__name__!r} takes no batch that could "
            f"be made up ({type(error).__name__}), so it was not tried on pieces of one",
            flush=True,
        )
        return False


def _differs(loss: Callable[[slice], Any]) -> bool:
    """Whether the loss of some records is another one if it is computed in two pieces."""
    whole, pieces = _put_together(loss, 0), _put_together(loss, _FIRST)
    return not np.allclose(whole, pieces, rtol=1e-3, atol=1e-5)


def _put_together(loss: Callable[[slice], Any], first: int) -> Any:
    """The loss of a batch, of its first ``first`` records and of the others."""
    pieces = [
        (tf.constant(size / _EXAMPLES), rows)
        for size, rows in ((first, slice(first)), (_EXAMPLES - first, slice(first, None)))
        if size
    ]
    counts = []
    for weight, rows in pieces:
        counting = Counting(weight, counts_all=True)
        with keras3.sharing(counting):
            loss(rows)
        counts.append(counting.counts)
    totals = [tf.add_n(each) for each in zip(*counts, strict=True)]
    sum_ = 0.0
    for weight, rows in pieces:
        with keras3.sharing(Microbatch(weight, counts_all=True, totals=totals)):
            sum_ += weight.numpy() * np.asarray(loss(rows), np.float64)
    return sum_


def _measures_whole(metric: Any, sums: MetricState, possible: Sequence[tuple[Any, ...]]) -> bool:
    zero = sums.begin_of(metric)
    for specs in possible:
        draw = np.random.default_rng(0)
        made = [_made_up(each, draw) for each in specs]
        try:
            whole = metric.stateless_result(sums.updated(metric, zero, made))
            states = zero
            for rows, size in ((slice(_FIRST), _FIRST), (slice(_FIRST, None), _EXAMPLES - _FIRST)):
                part = Microbatch(tf.constant(size / _EXAMPLES), counts_all=True)
                with keras3.sharing(part):
                    states = sums.updated(metric, states, [each[rows] for each in made])
            joined = metric.stateless_result(states)
        except Exception:  # noqa: BLE001 -- as above
            continue
        pairs = zip(tf.nest.flatten(whole), tf.nest.flatten(joined), strict=True)
        return not all(np.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in pairs)
    return False


def check_additive_metrics(strategy: str, step: TrainStep, batch: Any) -> None:
    """Check that the metrics can be added up, as those of several replicas are.

    All of Keras's metrics are sums: of values, of counts, of a confusion matrix. A metric of the
    user's own is tested on generated batches. ``batch`` is the element spec of the batches.

    Raises:
        FinalError: some cannot; the message names them.
    """
    x, labels, _ = keras.utils.unpack_x_y_sample_weight(batch)
    sums = step.metrics
    doubtful = [metric for metric in sums.metrics if not _is_of_keras(type(metric))]
    possible = _possible_arguments(labels, _outputs(step.model, x)) if doubtful else []
    names = [metric.name for metric in doubtful if not _is_sum(metric, sums, possible)]
    if names:
        raise FinalError(
            f"{strategy!r} adds up what replicas measure, and the state of {', '.join(names)} is "
            "no sum, but such as a maximum, a moving mean or a last value; keep sums in the "
            "metric's variables, leave it out, or choose 'one_device'"
        )


def _outputs(model: Any, x: Any) -> Any:
    """The spec of the outputs of ``model`` for a batch ``x``; None if it cannot be called."""
    strategy, found = tf.distribute.get_strategy(), []

    def call(batch: Any) -> None:
        outputs = tf.nest.map_structure(tf.convert_to_tensor, KERAS.predict(model, batch))
        found.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, outputs))

    replicated = strategy.num_replicas_in_sync > 1
    function = tf.function(
        (lambda each: strategy.run(call, args=(each,))) if replicated else call, autograph=False
    )
    try:
        function.get_concrete_function(x)
    except Exception:  # noqa: BLE001 -- a model with a step of its own may have no call at all
        return None
    return found[0]


def _possible_arguments(labels: Any, outputs: Any) -> list[tuple[Any, ...]]:
    """Specs of possible arguments of a metric: labels and outputs, or a vector of numbers."""
    flat = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=False)
    return [*flat, (tf.TensorSpec([None]),)]


def _is_of_keras(kind: type) -> bool:
    """Whether Keras's own code updates and resets the state."""
    owners = [_owner(kind, name) for name in ("update_state", "reset_state")]
    return all(owner.__module__.startswith(_OF_KERAS) for owner in owners)


def _owner(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def _is_sum(metric: Any, sums: MetricState, possible: Sequence[tuple[Any, ...]]) -> bool:
    """Whether an update adds a value that does not depend on the state."""
    zero = sums.begin_of(metric)
    if any(each.dtype == bool or np.any(each) for each in zero):
        return False
    for update in _updates(metric, sums, possible):
        try:
            one, other = update(zero, 0), update(zero, 1)
        except Exception:  # noqa: BLE001 -- the user's code may raise anything at such a batch
            continue
        # A maximum ignores what is below it, so states on both sides are tested.
        below = [-1 - each for each in one]
        after = update(below, 1)
        if _same(other, zero) and _same(after, below):
            continue  # no value in such a batch counts
        return _same(update(one, 1), _added(one, other)) and _same(after, _added(below, other))
    print(
        f"warning: the metric {metric.name!r} of {type(metric).__name__} takes no batch that could "
        "be made up, so it was not tried; what replicas measure is added up, as if its state were "
        "a sum",
        flush=True,
    )
    return True


def _updates(
    metric: Any, sums: MetricState, possible: Sequence[tuple[Any, ...]]
) -> Iterator[Callable[[States, int], States]]:
    """Functions of a state and a batch's number that return the state after that batch."""
    for specs in possible:

        def update(states: States, number: int, specs: Any = specs) -> States:
            draw = np.random.default_rng(number)
            return sums.updated(metric, states, [_made_up(each, draw) for each in specs])

        yield update


def _made_up(spec: Any, draw: np.random.Generator) -> tf.Tensor:
    """Random values that fit ``spec``: numbers from 0 to 1, labels 0 and 1, or words."""
    first, *rest = spec.shape.as_list() or [None]
    shape = [_EXAMPLES if first is None else first, *(each or _LENGTH for each in rest)]
    dtype = tf.as_dtype(spec.dtype)
    if dtype == tf.string:
        return tf.constant(draw.choice([b"a", b"b"], shape))
    if not dtype.is_floating:
        return tf.cast(draw.integers(0, 2, shape), dtype)
    # Later records are larger, so that the pieces of a batch differ.
    sizes = np.linspace(0.1, 1.0, shape[0]).reshape([-1, *[1] * len(rest)])
    return tf.cast(draw.uniform(size=shape) * sizes, dtype)


def _added(states: States, more: States) -> States:
    return [one + other for one, other in zip(states, more, strict=True)]


def _same(given: States, expected: States) -> bool:
    return all(
        np.allclose(*each, rtol=1e-3, atol=1e-5) for each in zip(given, expected, strict=True)
    )
