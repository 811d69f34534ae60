"""The trivial model, with which a trained one is compared: the best constant prediction.

That is the share of each class among the records of the training, or else the mean of the targets.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.evaluation.diagnostics import ClassOutput, Floats, are_logits, output_of
from aerotrain.evaluation.records import CANDIDATE, TRIVIAL, Block
from aerotrain.serving.signature import by_name

#: The least share of a class, of which a logarithm is taken.
_LEAST = 1e-7


def with_trivial(blocks: Iterable[Block], targets: Any, weights: Any = None) -> Iterator[Block]:
    """The same blocks, with the predictions of the trivial model where there is one.

    ``targets`` are those of some records of the training, ``weights`` their sample weights.
    """
    known: dict[str, tf.Tensor] = {}
    for block in blocks:
        predictions = block.predictions[CANDIDATE]
        named = by_name(predictions)
        if not block.first:
            known = dict(_constants(by_name(targets), named, weights))
        if known.keys() != named.keys():
            yield block
            continue
        constants = [tf.broadcast_to(e, [len(block.groups), *e.shape]) for e in known.values()]
        trivial = tf.nest.pack_sequence_as(predictions, constants)
        yield replace(block, predictions={**block.predictions, TRIVIAL: trivial})


def _constants(
    targets: Mapping[str, Any], predictions: Mapping[str, tf.Tensor], weights: Any
) -> Iterator[tuple[str, tf.Tensor]]:
    """The constant prediction of each output of which one is known, by its name."""
    weights = np.asarray(weights if isinstance(weights, tf.Tensor) else 0, np.float64)
    for name, given in predictions.items():
        tensors = (targets.get(name), given)
        if not all(isinstance(each, tf.Tensor) and each.dtype != tf.string for each in tensors):
            continue
        y, predicted = (np.asarray(each).astype(np.float64) for each in tensors)
        own = weights if weights.any() and weights.shape == y.shape[:1] else None
        found = _constant(y, predicted, own)
        if found is not None:
            yield name, tf.constant(found, given.dtype)


def _constant(y: Floats, predicted: Floats, weights: Floats | None) -> NDArray[Any] | None:
    """The best constant for targets ``y``, in the shape of one of the predictions."""
    shape, is_of_classes = predicted.shape[1:], isinstance(output_of(y, predicted), ClassOutput)
    if y.size == len(y) * predicted[0].size:
        mean = np.average(y.reshape(len(y), *shape), axis=0, weights=weights)
    elif is_of_classes and y.max() < predicted[0].size:  # by their numbers
        counts = np.bincount(y.reshape(-1).astype(int), weights, predicted[0].size)
        mean = counts.reshape(shape) / counts.sum()
    else:
        return None
    if is_of_classes and are_logits(predicted.reshape(len(predicted), -1)):
        p = np.clip(mean, _LEAST, 1 - _LEAST)
        return np.log(p) - (np.log(1 - p) if p.size == 1 else 0)
    return mean
