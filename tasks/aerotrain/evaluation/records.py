"""The predictions of models for the records of a split, in blocks of bounded memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.data.dataset import Schema
from aerotrain.evaluation.intervals import GROUPS
from aerotrain.evaluation.slices import Features
from aerotrain.serving.served import Served
from aerotrain.training.input.batches import RecordFiles, Transform, every_record
from aerotrain.training.internals import keras3, tensorflow2
from aerotrain.training.model.keras_adapter import KERAS

#: ``x``, ``y``, ``y_pred``, ``weight``, ``added_loss`` and ``masks`` of records.
Records = tuple[Any, Any, Any, Any, tf.Tensor, Mapping[int, tf.Tensor]]

#: The models of a comparison: ``trivial`` predicts the same for every record.
CANDIDATE, BASELINE, TRIVIAL = "candidate", "baseline", "trivial"

#: The fewest different records, their greatest share of all, and the greatest share of one of them,
#: with which equal ones are copies. Records of a few values are often equal, and yet independent.
_DIFFERENT, _ALL, _OFTEN = 100, 0.99, 0.02

#: About how many records are looked at, which their hashes choose.
_CONTENTS = 2**16

#: The most records of a block, and their bytes.
_RECORDS, _BYTES = 2**20, 2**27


@dataclass(frozen=True)
class Block:
    """Consecutive records: the columns of slices, the group of each, targets and predictions.

    ``first`` is the place of the first of them in the split.
    ``predictions`` maps ``candidate``, and ``baseline`` and ``trivial`` if they are known, to
    structures of ``(records, …)``.
    ``added_loss`` is the sum of the losses that the candidate's layers and regularizers add.
    ``x`` is what the candidate takes; None unless its own loss or metrics may read it. ``masks``
    are those of its outputs, by their places.
    """

    features: Features
    groups: NDArray[np.int64]
    y: Any
    weight: Any
    predictions: Mapping[str, Any]
    added_loss: tf.Tensor
    x: Any = None
    masks: Mapping[int, Any] = field(default_factory=dict)
    first: int = 0

    def of(self, model: str) -> Records:
        """What metrics take, with the predictions of ``model``."""
        return self.x, self.y, self.predictions[model], self.weight, self.added_loss, self.masks


class Predictor:
    """Computes the predictions of a trained model, and of a baseline, for serialized records.

    The predictions of ``exported``, if given, stand for those of the trained model.

    ``group`` is the column of which equal values are records that depend on each other, so that
    they are in one group. Without it, equal records are in one group if there are many of them, and
    else consecutive records, whose order is random, are in different ones.
    """

    def __init__(
        self,
        model: keras.Model,
        baseline: Served | None,
        schema: Schema,
        transform: Transform,
        *,
        exported: Served | None = None,
        columns: Sequence[str],
        group: str | None,
    ) -> None:
        self._model = model
        self._exported = exported
        self._baseline = baseline
        self._schema = schema
        self._transform = tensorflow2.converted(transform)
        self._columns = columns
        self._group = group
        #: The share of the first records that are copies of others.
        self.copies = 0.0
        self._contents = np.zeros(0, np.int64)
        self._every = 1
        self._function: Callable[[Iterator[Any]], Any] = tf.function(
            self._next, autograph=False, reduce_retracing=True
        )

    def blocks(self, files: RecordFiles, records: int, batch_size: int) -> Iterator[Block]:
        """Each of the ``records`` records of ``files`` once."""
        batches = every_record(
            files, self._schema, self._inputs, records=records, batch_size=batch_size
        )
        self._every = max(1, records // _CONTENTS)
        parts: list[Any] = []
        first = most = 0
        for batch in self._batches(iter(batches)):
            if not most:
                most = max(1, min(_RECORDS, _BYTES // _bytes(batch)) // batch_size)
            parts.append(batch)
            if len(parts) == most:
                yield self._joined(parts, first)
                parts, first = [], first + most * batch_size
        if parts:
            yield self._joined(parts, first)

    def chosen(self, contents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those of other ``contents``, and of what was predicted, which hashes choose alike."""
        return contents[contents % self._every == 0], self._contents

    def _batches(self, iterator: Iterator[Any]) -> Iterator[dict[str, Any]]:
        """What a block has of each batch."""
        while True:
            try:
                batch = self._function(iterator)
            except tf.errors.OutOfRangeError:
                return
            yield batch

    def _inputs(self, features: dict[str, tf.Tensor]) -> Any:
        """What the models take, and all else that belongs to a batch of records."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self._transform(dict(features)))
        read = {name for each in (self._exported, self._baseline) if each for name in each.columns}
        raw = {name: features[name] for name in read}
        others = {"y": y, "columns": {name: features[name] for name in self._columns}}
        if weight is not None:
            others["weight"] = weight
        if reads_inputs(self._model):
            others["x"] = x
        content = content_of((x, y))  # AutoGraph knows no walrus
        if content is not None:
            others["contents"] = content
        if self._group is not None:
            value = features[self._group]
            text = value if value.dtype == tf.string else tf.strings.as_string(value)
            others["groups"] = tf.strings.to_hash_bucket_fast(text, GROUPS)
        return (x, raw), others

    def _next(self, iterator: Iterator[Any]) -> dict[str, Any]:
        """What a block has of the next batch."""
        (x, raw), others = next(iterator)
        predictions = {CANDIDATE: KERAS.predict(self._model, x)}
        masks = keras3.masks_of(predictions[CANDIDATE])
        # Those of weights and of this call. ``evaluate`` adds them to the loss of the batch.
        added = tf.add_n([tf.zeros([]), *(tf.cast(e, tf.float32) for e in self._model.losses)])
        for name, model in ((BASELINE, self._baseline), (CANDIDATE, self._exported)):
            if model is not None:
                predictions[name] = model.like(model.predict(raw), predictions[CANDIDATE])
        records = tf.shape(tf.nest.flatten(predictions)[0])[:1]
        added_loss = tf.fill(records, added)
        return {**others, "predictions": predictions, "added_loss": added_loss, "masks": masks}

    def _joined(self, parts: Sequence[Any], first: int) -> Block:
        """The block of several batches, of which ``first`` is the place of the first record."""
        whole = tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *parts)
        contents = np.asarray(whole.get("contents", ()), np.int64)
        sample = contents[contents % self._every == 0]
        self._contents = np.union1d(self._contents, sample)
        if not first and self._group is None and _are_copies(sample):
            self.copies = 1 - len(self._contents) / len(sample)
        if "groups" in whole:
            groups = np.asarray(whole["groups"])
        else:
            places = np.arange(first, first + len(whole["added_loss"]))
            groups = (contents if self.copies else places) % GROUPS
        return Block(
            features=whole["columns"],
            groups=groups,
            y=whole["y"],
            weight=whole.get("weight"),
            predictions=whole["predictions"],
            added_loss=whole["added_loss"],
            x=whole.get("x"),
            masks=whole["masks"],
            first=first,
        )


def _are_copies(contents: NDArray[np.int64]) -> bool:
    """Whether equal records depend on each other; one of a large share would hide all others."""
    counts = np.unique(contents, return_counts=True)[1]
    is_often = counts.max(initial=0) > _OFTEN * len(contents)
    return not is_often and _DIFFERENT <= len(counts) < _ALL * len(contents)


def content_of(structure: Any) -> tf.Tensor | None:
    """A hash of each record ``(records,)`` of tensors; None if one of them is ragged or sparse."""
    flat = tf.nest.flatten(structure)
    if not all(isinstance(each, tf.Tensor) for each in flat):
        return None
    hashes = tf.concat([tf.fingerprint(each) for each in flat], axis=1)
    return tf.bitcast(tf.fingerprint(hashes), tf.int64)


def reads_inputs(model: keras.Model) -> bool:
    """Whether the loss or the metrics may be computed from ``x``, which those of Keras are not."""
    own = [getattr(type(model), name) for name in ("compute_loss", "compute_metrics")]
    return own != [keras.Model.compute_loss, keras.Model.compute_metrics]


def _bytes(batch: Any) -> int:
    """The bytes of one record of a batch."""
    arrays = [np.asarray(each) for each in tf.nest.flatten(batch)]
    return max(1, sum(each.nbytes for each in arrays) // len(arrays[0]))
