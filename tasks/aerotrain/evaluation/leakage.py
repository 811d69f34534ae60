"""Columns that alone give the target away, as a copy of it does, or what is known only after it.

A table of the column's values, learned on one half of the records, predicts the other half.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The records that are looked at, and the fewest.
SAMPLE, _FEWEST = 5000, 200

#: The share of training records that may be in another split, by chance.
_COPIED = 0.01

#: Ranges of a number that has more values.
_RANGES = 64

#: The share of right predictions, or of the variance that is explained, which is suspected; and of
#: the errors of the best constant that may be left.
_SUSPECTED, _LEFT = 0.98, 0.1

#: The most classes: more values of a target are numbers.
_CLASSES = 50


def leaking_columns(columns: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> list[str]:
    """One sentence for each column ``(records,)`` that alone predicts the target ``y``.

    ``y`` are classes ``(records,)`` or ``(records, classes)``, or numbers ``(records,)``.
    """
    if y.ndim > 1 and y.shape[1] > 1:
        y = y.argmax(axis=1)
    y = y.reshape(-1)
    if len(y) < _FEWEST or y.dtype.kind not in "fiub":
        return []
    target = y.astype(np.float64)
    are_classes = len(np.unique(target)) <= _CLASSES and not (target % 1).any()
    score = _accuracy if are_classes else _explained
    return list(_sentences(columns, target, score, "labels" if are_classes else "variance"))


def copied(
    split: str, of_training: NDArray[np.int64], contents: NDArray[np.int64]
) -> Iterator[str]:
    """A sentence if records of the training are also in ``split``, by the contents of some.

    Records of a few values are often equal, and are not looked at.
    """
    if len(of_training) and len(np.unique(of_training)) > len(of_training) / 2:
        share = float(np.isin(of_training, contents).mean())
        if share >= _COPIED:
            yield (
                f"{share:.1%} of {len(of_training):,} records of the training are also in the "
                f"split {split!r}, as far as the model sees, so the metrics are better than those "
                "of new records: give copies one key or remove them from the data, or let the "
                "transform keep what distinguishes them"
            )


def _sentences(
    columns: Mapping[str, NDArray[Any]], y: NDArray[Any], score: Any, what: str
) -> Iterator[str]:
    for name, values in columns.items():
        values = values[: len(y)]
        if values.ndim != 1 or len(values) != len(y):
            continue
        found, constant = score(_parts(values), y)
        if found >= _SUSPECTED and 1 - found <= _LEFT * (1 - constant):
            yield (
                f"the column {name!r} alone predicts {found:.1%} of the {what}: make sure that it "
                "is known when predictions are made, and not made of the label"
            )


def _parts(values: NDArray[Any]) -> NDArray[np.int64]:
    """The number of the value, or of the range of values, of each record."""
    unique, places = np.unique(values, return_inverse=True)
    if values.dtype.kind in "fiu" and len(unique) > _RANGES:
        numbers = np.nan_to_num(values.astype(np.float64), nan=np.inf)
        shares = np.arange(1, _RANGES) / _RANGES
        edges = np.unique(np.quantile(numbers[np.isfinite(numbers)], shares))
        return np.searchsorted(edges, numbers, side="right")
    return places


def _accuracy(parts: NDArray[np.int64], y: NDArray[Any]) -> tuple[float, float]:
    """The share of right labels in one half, by the most frequent label of each part of the other.

    Also that of the most frequent label of all.
    """
    classes, labels = np.unique(y, return_inverse=True)
    counts = np.zeros((parts.max() + 1, len(classes)), np.int64)
    np.add.at(counts, (parts[::2], labels[::2]), 1)
    most = counts.sum(axis=0).argmax()
    best = np.where(counts.any(axis=1), counts.argmax(axis=1), most)
    return float((best[parts[1::2]] == labels[1::2]).mean()), float((labels[1::2] == most).mean())


def _explained(parts: NDArray[np.int64], y: NDArray[Any]) -> tuple[float, float]:
    """The share of the variance of one half that the means of the parts of the other explain."""
    sums, counts = np.zeros(parts.max() + 1), np.zeros(parts.max() + 1)
    np.add.at(sums, parts[::2], y[::2])
    np.add.at(counts, parts[::2], 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), y[::2].mean())
    variance = float(y[1::2].var())
    if not np.isfinite(variance) or variance == 0:
        return 0.0, 0.0
    return 1 - float(((y[1::2] - means[parts[1::2]]) ** 2).mean()) / variance, 0.0
