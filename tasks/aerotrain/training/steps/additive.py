"""Checks whether metric states may be added up, as is done when several replicas measure.

All of Keras's metrics are sums: of values, of counts, of a confusion matrix. A metric of the user's
own is tested on generated batches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.training.steps.step import MetricState

Array = np.ndarray[Any, Any]
States = list[Array]

_EXAMPLES = 8
_LENGTH = 3
_OF_KERAS = ("keras.", "tf_keras.")


def unsummed(sums: MetricState, outputs: Callable[[], Any], labels: Any) -> list[str]:
    """The names of metrics whose states are not sums, so that adding them up is meaningless.

    ``labels`` is the spec of a batch's labels. ``outputs`` returns the spec of the model's outputs;
    it is called only if there is a metric to test.
    """
    doubtful = [metric for metric in sums.metrics if not _is_of_keras(type(metric))]
    if not doubtful:
        return []
    pairs = _pairs(labels, outputs())
    return [metric.name for metric in doubtful if not _is_sum(metric, sums, pairs)]


def _is_of_keras(kind: type) -> bool:
    """Whether Keras's own code updates and resets the state."""
    owners = [_owner(kind, name) for name in ("update_state", "reset_state")]
    return all(owner.__module__.startswith(_OF_KERAS) for owner in owners)


def _owner(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def _pairs(labels: Any, outputs: Any) -> list[tuple[Any, ...]]:
    """Specs of possible arguments of a metric: labels and outputs, or a vector of numbers."""
    flat = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=False)
    return [*flat, (tf.TensorSpec([None]),)]


def _is_sum(metric: Any, sums: MetricState, pairs: Sequence[tuple[Any, ...]]) -> bool:
    """Whether an update adds a value that does not depend on the state."""
    zero = sums.begin_of(metric)
    if any(each.dtype == bool or np.any(each) for each in zero):
        return False
    for update in _updates(metric, sums, pairs):
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
    metric: Any, sums: MetricState, pairs: Sequence[tuple[Any, ...]]
) -> Iterator[Callable[[States, int], States]]:
    """Functions of a state and a batch's number that return the state after that batch."""
    for specs in pairs:

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
    return tf.cast(
        draw.uniform(size=shape) if dtype.is_floating else draw.integers(0, 2, shape), dtype
    )


def _added(states: States, more: States) -> States:
    return [one + other for one, other in zip(states, more, strict=True)]


def _same(given: States, expected: States) -> bool:
    return all(
        np.allclose(*each, rtol=1e-3, atol=1e-5) for each in zip(given, expected, strict=True)
    )
