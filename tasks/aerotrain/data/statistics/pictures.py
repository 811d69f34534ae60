"""Pictures of some records: small ones of each class, of the records with the smallest hashes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature
from aerotrain.data.hashing import Hashes
from aerotrain.data.records.columns import Column
from aerotrain.pages.html import ENCODED, thumbnail

#: The first classes have pictures, each so many.
CLASSES, OF_CLASS = 10, 8

#: The least edge of an array of pixels.
_LEAST_EDGE = 4

#: Labels with longer texts, in bytes, are no classes.
_MAX_LABEL_BYTES = 64

#: A class: the value of the label, or None if the records have no classes.
Label = int | str | None

#: Of each class, its pictures in base64.
Sheet = Sequence[tuple[Label, Sequence[str]]]


@dataclass
class Pictures:
    """The pictures of a column by class, and in each class by the hash of the record.

    Those that are damaged are None, and keep their place, so that a merge in any order, of any
    partitions, has the same result.
    """

    classes: dict[Label, dict[int, str | None]] = field(default_factory=dict)

    def add(self, column: Column, labels: Column | None, hashes: Hashes) -> None:
        """Add records of which ``column`` has pictures; those of other columns are ignored."""
        for label, rows in _by_class(labels, _rows_with_pictures(column)):
            known = self.classes.get(label, {})
            first = rows[np.argsort(hashes[rows], kind="stable")[:OF_CLASS]]
            if len(known) == OF_CLASS:
                first = first[hashes[first] < max(known)]
            taken = column.take(first).values
            pictures = map(thumbnail, taken.to_pylist() if column.is_text else taken)
            self._keep(label, dict(zip(hashes[first].tolist(), pictures, strict=True)))
        self._keep_first_classes()

    def merge(self, other: "Pictures") -> None:
        for label, pictures in other.classes.items():
            self._keep(label, pictures)
        self._keep_first_classes()

    def _keep(self, label: Label, others: Mapping[int, str | None]) -> None:
        both = {**others, **self.classes.get(label, {})}
        if both:
            self.classes[label] = {key: both[key] for key in sorted(both)[:OF_CLASS]}

    def _keep_first_classes(self) -> None:
        self.classes = {label: self.classes[label] for label in _in_order(self.classes)[:CLASSES]}

    @property
    def sheet(self) -> Sheet:
        """The pictures by class, in the order of the labels."""
        found = ((label, [*filter(None, each.values())]) for label, each in self.classes.items())
        return [(label, pictures) for label, pictures in found if pictures]

    def to_list(self) -> list[Any]:
        """The complete state as JSON."""
        return [[label, [*map(list, each.items())]] for label, each in self.classes.items()]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> Self:
        return cls({label: dict(each) for label, each in data})


def _in_order(labels: Mapping[Label, Any]) -> list[Label]:
    """Numbers before texts; a label has one type, unless partitions differ."""
    return sorted(labels, key=lambda label: (isinstance(label, str), label or 0, str(label)))


def _by_class(
    labels: Column | None, rows: NDArray[np.int64]
) -> Iterator[tuple[Label, NDArray[np.int64]]]:
    """The rows of each of the first classes; of a single class if the label is none."""
    if not len(rows):
        return
    if labels is None or labels.feature.shape or labels.feature.is_float:
        yield None, rows
        return
    values = labels.take(rows).values
    if labels.is_text:
        if pc.max(pc.binary_length(values)).as_py() > _MAX_LABEL_BYTES:
            yield None, rows
            return
        values = np.array([each.decode("utf-8", "replace") for each in values.to_pylist()])
    for label in np.unique(values)[:CLASSES]:
        yield label.item(), rows[values == label]


def _rows_with_pictures(column: Column) -> NDArray[np.int64]:
    if is_array_of_pixels(column.feature):
        return np.arange(len(column))
    if not column.is_text or column.feature.shape:
        return np.zeros(0, np.int64)
    begins = [pc.starts_with(column.values, pattern=each) for each in ENCODED]
    return np.flatnonzero(pc.or_(*begins).to_numpy(zero_copy_only=False))


def is_array_of_pixels(feature: Feature) -> bool:
    """Whether the values are rows of grey, RGB or RGBA pixels."""
    edges, channels = feature.shape[:2], feature.shape[2:]
    return (
        feature.dtype == "uint8"
        and len(edges) == 2
        and min(edges) >= _LEAST_EDGE
        and channels in ((), (1,), (3,), (4,))
    )
