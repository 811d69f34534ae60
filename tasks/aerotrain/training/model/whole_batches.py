"""Checks of losses and metrics whose batches are cut into pieces, by some records of the data.

A sum over records, or a mean, is put together from pieces. A maximum is not, nor is a loss in which
the records of a batch are compared with each other, or which divides by how many have a label.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.internals import keras3
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.custom import WholeStepScope, has_custom_step
from aerotrain.training.steps.state import MetricValues, batch_norms
from aerotrain.training.steps.step import Counts, Microbatch, TrainStep, length

#: The greatest relative difference that is rounding, in float32 and in shorter numbers.
_ROUNDING, _ROUNDING_MIXED = 1e-5, 1e-2

Values = dict[str, Any]

#: The weights of pieces in their batch, and their rows.
Pieces = Sequence[tuple[tf.Tensor, slice]]


@dataclass(frozen=True)
class BatchSample:
    """A batch, and the model's outputs for it with their masks, as ``keras3.masks_of`` has them.

    ``adds`` is whether layers add to the loss.
    """

    x: Any
    y: Any
    weight: Any
    y_pred: Any
    masks: Mapping[int, tf.Tensor]
    adds: bool

    @classmethod
    def of(cls, model: Any, batch: Any) -> "BatchSample":
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        # What is assigned to the variables of a Keras 3 model in the scope is not kept.
        scope = keras.StatelessScope(collect_losses=True)
        with scope if isinstance(model, keras.Model) else nullcontext():
            y_pred = KERAS.predict(model, x)
            masks = keras3.masks_of(y_pred)
        y_pred = tf.nest.map_structure(tf.convert_to_tensor, y_pred)
        return cls(x, y, weight, y_pred, masks, adds=bool(scope.losses))

    def rows(self, rows: slice) -> tuple[Any, Any, Any, Any]:
        """``x``, ``y``, ``y_pred`` and ``weight`` of these records."""
        parts = tf.nest.map_structure(
            lambda each: None if each is None else each[rows],
            (self.x, self.y, self.y_pred, self.weight),
        )
        keras3.set_masks(parts[2], {place: mask[rows] for place, mask in self.masks.items()})
        return parts


def check_sharing(strategy: str, step: TrainStep, batch: Any, *, adds: bool, cuts: bool) -> None:
    """Check with ``batch``, two records of the data or more, whether its pieces give what it gives.

    ``adds`` is whether metric states are added up. ``cuts`` is whether batches are cut into pieces;
    a loss or a metric of a Keras 3 model that differs for them is named, and so is a ``train_step``
    of its own whose gradients differ.

    Raises:
        FinalError: the state of a metric is no sum; the message names it.
    """
    model, no_sums = step.model, []
    try:
        if has_custom_step(model):
            gradients = partial(_put_together, partial(_own_gradients, model, batch))
            # One of random numbers, such as those of dropout, draws others for a piece.
            differs = _differing(step, gradients, batch)
            found = [f"the train_step of {type(model).__name__!r}"] if differs else []
        else:
            sample = BatchSample.of(model, batch)
            no_sums = _no_sums(step, sample) if adds else []
            found = _whole(step, sample) if cuts and isinstance(model, keras.Model) else []
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        raise  # a ps is lost
    except Exception as error:  # noqa: BLE001 -- the user's code may raise anything
        print(
            f"warning: the losses and metrics of {type(model).__name__!r} were not checked on "
            f"pieces of a batch, which {strategy!r} may cut, because one fails there: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}",
            flush=True,
        )
        return
    if no_sums:
        raise FinalError(
            f"{strategy!r} adds up what replicas measure, and the state of {', '.join(no_sums)} is "
            "no sum, but such as a maximum, a moving mean or a last value; keep sums in the "
            "metric's variables, leave it out, or choose 'one_device'"
        )
    if found:
        are = "is that" if len(found) == 1 else "are those"
        print(
            f"warning: {', '.join(found)} {are} of a whole batch, and {strategy!r} cuts batches "
            "into pieces here: the mean of the pieces takes its place, which differs from fit; "
            "use sums or means over records, or 'one_device' without gradient_accumulation_steps",
            flush=True,
        )


def warn_of_layer_state(strategy: str, model: keras.Model, *, synchronized: bool) -> None:
    """Name layers that compute with a piece of a batch what ``fit`` computes with the whole.

    They are batch normalizations, unless their statistics are ``synchronized``, and layers that are
    not Keras's and have variables that each piece updates.
    """
    norms = [each for each in batch_norms(model) if each.trainable and not each.synchronized]
    if norms and not synchronized:
        names = ", ".join(repr(each.name) for each in norms)
        print(
            f"warning: BatchNormalization ({names}) normalizes each piece of a batch under "
            f"{strategy!r} by the mean and the variance of that piece, so losses and weights "
            "differ from those of fit on one device; synchronized_batch_norm takes those of the "
            "batch",
            flush=True,
        )
    keeping = [each.path for each in keras3.own_state(model)]
    if keeping:
        print(
            f"warning: a layer keeps {', '.join(map(repr, keeping))}, which each piece of a batch "
            f"updates under {strategy!r}; of what replicas add, the mean is kept, so it may "
            "differ from that of fit",
            flush=True,
        )


def _cut(x: Any) -> tuple[Pieces, Sequence[Pieces]]:
    """The batch ``x`` as one piece; and cut into two, at two places, as one may not show it."""
    records = int(length(x))
    cuts = []
    for first in (max(1, records // 8 * 2), max(1, records // 4 * 2)):
        two = ((first, slice(first)), (records - first, slice(first, None)))
        cuts.append([(tf.constant(size / records), rows) for size, rows in two])
    return [(tf.ones([]), slice(records))], cuts


def _no_sums(step: TrainStep, sample: BatchSample) -> list[str]:
    """The metrics of which an update does not add a value that is independent of the state."""
    zero, (_, [(first, second), _]) = step.metrics.zero[:-1], _cut(sample.x)
    one, other = (_measured(step, zero, sample, [each]) for each in (first, second))
    found: dict[str, None] = {}
    # A maximum ignores what is below it, so states on both sides are tried.
    for begin in (one, [-1 - each for each in one]):
        after = _measured(step, begin, sample, [second])
        expected = [np.add(*each) for each in zip(begin, other, strict=True)]
        for variable, *pair in zip(step.metrics.variables, after, expected, strict=True):
            if not _close(step, *pair):
                found |= dict.fromkeys(
                    metric.name
                    for metric in step.metrics.metrics
                    if any(each is variable for each in metric.variables)
                )
    return list(found)


def _whole(step: TrainStep, sample: BatchSample) -> list[str]:
    """The losses and the metrics that differ if they get pieces."""
    losses, zero = partial(_losses, step.model, sample), step.metrics.zero[:-1]

    def metrics(pieces: Pieces) -> Values:
        state = _measured(step, zero, sample, pieces)
        return step.metrics.results([*state, np.zeros(2)])

    found = _differing(step, lambda pieces: _put_together(losses, pieces), sample.x)
    return [*found, *(f"the metric {each!r}" for each in _differing(step, metrics, sample.x))]


def _differing(step: TrainStep, compute: Callable[[Pieces], Values], x: Any) -> list[str]:
    """The names of what ``compute`` returns in which pieces of the batch ``x`` differ from it."""
    whole, cuts = _cut(x)
    expected = compute(whole)
    found = [compute(each) for each in cuts]
    return [
        name
        for name, value in expected.items()
        if not all(_close(step, value, each[name]) for each in found)
    ]


def _measured(
    step: TrainStep, begin: MetricValues, sample: BatchSample, pieces: Pieces
) -> MetricValues:
    """The metrics' state after these pieces."""
    state = begin
    for weight, rows in pieces:
        with keras3.sharing(Microbatch(weight, counts_all=True)):
            state = [np.asarray(each) for each in step.measured(state, *sample.rows(rows))]
    return state


def _close(step: TrainStep, one: Any, other: Any) -> bool:
    policy = getattr(step.model, "dtype_policy", None)
    mixed = getattr(policy, "compute_dtype", "float32") != "float32"
    tolerance = _ROUNDING_MIXED if mixed else _ROUNDING
    largest = float(np.max(np.abs(one), initial=0.0))
    return bool(np.allclose(one, other, rtol=0, atol=tolerance * largest + 1e-7, equal_nan=True))


def _put_together(compute: Callable[[slice, Microbatch], Values], pieces: Pieces) -> Values:
    """What ``compute`` returns for each piece, as the sum by their weights."""
    counts: list[Counts] = []
    for weight, rows in pieces:
        counts.append([])
        compute(rows, Microbatch(weight, counts_all=True, counts=counts[-1]))
    totals = [tf.add_n(each) for each in zip(*counts, strict=True)]
    sums: Values = {}
    for weight, rows in pieces:
        part = Microbatch(weight, counts_all=True, totals=totals)
        for name, value in compute(rows, part).items():
            own = float(weight) * np.asarray(tf.convert_to_tensor(value), np.float64)
            sums[name] = sums.get(name, 0.0) + own
    return sums


def _losses(model: keras.Model, sample: BatchSample, rows: slice, part: Microbatch) -> Values:
    """The losses of a piece, by what they are called in messages."""
    x, y, y_pred, weight = sample.rows(rows)
    found: Values = {}
    with keras.StatelessScope(collect_losses=True) as scope, keras3.sharing(part):
        if sample.adds:
            keras3.call(model, x, training=False)
            found["what layers add to the loss"] = tf.add_n(scope.losses)
        if keras3.has_own_compute_loss(model):
            loss = keras3.compute_loss(model, x, y, y_pred, weight, [tf.zeros([])])
            return found | {f"the compute_loss of {type(model).__name__!r}": loss}
        for name, path, loss in keras3.losses_by_path(model):
            found[f"the loss {name!r}"] = loss(*_at(path, y, y_pred, weight))
    return found


def _own_gradients(model: keras.Model, batch: Any, rows: slice, part: Microbatch) -> Values:
    """The gradients that the ``train_step`` of the model gives its optimizers, which do nothing."""
    given = threading.local()  # each replica is a thread
    piece = tf.nest.map_structure(lambda each: each[rows], batch)
    strategy, optimizers = tf.distribute.get_strategy(), keras3.optimizers(model)

    def take(gradients: Any, _variables: Any = None) -> None:
        given.all += [tf.convert_to_tensor(each) for each in gradients if each is not None]

    def step() -> list[tf.Tensor]:
        given.all = []
        with WholeStepScope(), keras3.sharing(part):
            model.train_step(piece)
        return list(given.all)

    for each in optimizers:
        each.apply = take
    try:
        gradients = strategy.run(step)
    finally:
        for each in optimizers:
            del each.apply
    own = [strategy.experimental_local_results(each)[0] for each in gradients]
    return {str(number): each for number, each in enumerate(own)}


def _at(path: Sequence[Any], y: Any, y_pred: Any, weight: Any) -> list[Any]:
    """The label, the output and the weight, if there are any, at ``path``."""
    for key in path:
        y, y_pred = y[key], y_pred[key]
        weight = weight[key] if tf.nest.is_nested(weight) else weight
    return [y, y_pred] if weight is None else [y, y_pred, weight]
