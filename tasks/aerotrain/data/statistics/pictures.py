"""Pictures of some records: small ones, of the records with the smallest hashes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature
from aerotrain.data.hashing import Hashes
from aerotrain.data.records import Column
from aerotrain.pages.html import ENCODED, thumbnail

#: The pictures of a column.
PICTURES = 32

#: The least edge of an array of pixels.
_LEAST_EDGE = 4

#: Bytes of the text of a label that are kept.
_LABEL_BYTES = 60

#: The class of a record by its label, or None; and its picture in base64, or None if it is damaged.
Picture = tuple[int | str | None, str | None]


@dataclass
class Pictures:
    """The pictures of a column by the hashes of their records.

    Those that are damaged keep their place, so that a merge in any order, of any partitions, has
    the same result.
    """

    by_hash: dict[int, Picture] = field(default_factory=dict)

    def add(self, column: Column, labels: Column | None, hashes: Hashes) -> None:
        """Add records of which ``column`` has pictures; those of other columns are ignored."""
        rows = _rows_with_pictures(column)
        rows = rows[np.argsort(hashes[rows], kind="stable")[:PICTURES]]
        if len(self.by_hash) == PICTURES:
            rows = rows[hashes[rows] < max(self.by_hash)]
        if not len(rows):
            return
        taken = column.take(rows).values
        pictures = map(thumbnail, taken.to_pylist() if column.is_text else taken)
        classes = _classes(labels, rows)
        found = zip(classes, pictures, strict=True)
        self.keep(dict(zip(hashes[rows].tolist(), found, strict=True)))

    def keep(self, others: Mapping[int, Picture]) -> None:
        """Keep those with the smallest hashes of these and others."""
        both = {**others, **self.by_hash}
        self.by_hash = {key: both[key] for key in sorted(both)[:PICTURES]}

    @property
    def shown(self) -> list[Picture]:
        """The pictures that are not damaged, in the order of their labels."""
        found = [each for each in self.by_hash.values() if each[1]]
        return sorted(found, key=lambda each: (isinstance(each[0], str), each[0] or 0))


def _classes(labels: Column | None, rows: NDArray[np.int64]) -> list[int | str | None]:
    """The label of each record, if that is one number or text."""
    if labels is None or labels.feature.shape or labels.feature.is_float:
        return [None] * len(rows)
    values = labels.take(rows).values
    if labels.is_text:
        return [each[:_LABEL_BYTES].decode("utf-8", "replace") for each in values.to_pylist()]
    return [int(each) for each in values]


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
