"""Pictures of some records: of each class those with the smallest hashes, bounded in bytes."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature
from aerotrain.data.hashing import Hashes
from aerotrain.data.records import Column

#: The first classes have pictures, each so many, as far as they fit into so many bytes.
CLASSES, OF_CLASS, CLASS_BYTES = 10, 8, 24_000

#: Longer edges of arrays of pixels are reduced to this.
_EDGE = 48

#: The least edge of an array of pixels.
_LEAST_EDGE = 4

#: What encoded pictures begin with: PNG and JPEG. Others, as SVG, may hold links or scripts.
_BEGINS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")

#: Labels with longer texts, in bytes, are no classes.
_MAX_LABEL_BYTES = 64

#: A class: the value of the label, or None if the records have no classes.
Label = int | str | None

#: Of each class, its pictures in base64.
Sheet = Sequence[tuple[Label, Sequence[str]]]


@dataclass
class Pictures:
    """The pictures of a column by class, and in each class by the hash of the record.

    Each has its size in bytes. Pictures that do not fit into ``CLASS_BYTES`` after those with
    smaller hashes have no content, but keep their place, so that a merge in any order, of any
    partitions, has the same result.
    """

    classes: dict[Label, dict[int, tuple[int, str | None]]] = field(default_factory=dict)

    def add(self, column: Column, labels: Column | None, hashes: Hashes) -> None:
        """Add records of which ``column`` has pictures; those of other columns are ignored."""
        for label, rows in _by_class(labels, _rows_with_pictures(column)):
            known = self.classes.get(label, {})
            first = rows[np.argsort(hashes[rows], kind="stable")[:OF_CLASS]]
            if len(known) == OF_CLASS:
                first = first[hashes[first] < max(known)]
            contents = _encoded(column, first)
            found = zip(hashes[first].tolist(), contents, strict=True)
            self._keep(label, {key: (len(each), _base64(each)) for key, each in found})
        self._keep_first_classes()

    def merge(self, other: "Pictures") -> None:
        for label, pictures in other.classes.items():
            self._keep(label, pictures)
        self._keep_first_classes()

    def _keep(self, label: Label, others: Mapping[int, tuple[int, str | None]]) -> None:
        both = {**others, **self.classes.get(label, {})}
        kept, total = {}, 0
        for key in sorted(both)[:OF_CLASS]:
            size, content = both[key]
            total += size
            kept[key] = (size, content if total <= CLASS_BYTES else None)
        if kept:
            self.classes[label] = kept

    def _keep_first_classes(self) -> None:
        for label in _in_order(self.classes)[CLASSES:]:
            del self.classes[label]

    @property
    def sheet(self) -> Sheet:
        """The pictures that fit, by class in the order of the labels."""
        return [
            (label, [text for _, text in self.classes[label].values() if text is not None])
            for label in _in_order(self.classes)
        ]

    def to_list(self) -> list[Any]:
        """The complete state as JSON."""
        return [
            [label, [[key, *self.classes[label][key]] for key in sorted(self.classes[label])]]
            for label in _in_order(self.classes)
        ]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> Self:
        return cls({label: {key: (size, text) for key, size, text in each} for label, each in data})


def _in_order(labels: Mapping[Label, Any]) -> list[Label]:
    """Numbers before texts; a label has one type, unless partitions differ."""
    return sorted(labels, key=lambda label: (isinstance(label, str), label or 0, str(label)))


def _by_class(
    labels: Column | None, rows: NDArray[np.int64]
) -> Iterator[tuple[Label, NDArray[np.int64]]]:
    """The rows of each of the first classes; of a single class if the label is none."""
    if labels is None or labels.feature.shape or labels.feature.is_float or not len(rows):
        if len(rows):
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
    begins = [pc.starts_with(column.values, pattern=each) for each in _BEGINS]
    fits = pc.less_equal(pc.binary_length(column.values), CLASS_BYTES)
    found = pc.and_(pc.or_(*begins), fits).to_numpy(zero_copy_only=False)
    return np.flatnonzero(found)


def is_array_of_pixels(feature: Feature) -> bool:
    """Whether the values are rows of grey, RGB or RGBA pixels."""
    edges, channels = feature.shape[:2], feature.shape[2:]
    return (
        feature.dtype == "uint8"
        and len(edges) == 2
        and min(edges) >= _LEAST_EDGE
        and channels in ((), (1,), (3,), (4,))
    )


def _encoded(column: Column, rows: NDArray[np.int64]) -> list[bytes]:
    taken = column.take(rows).values
    if column.is_text:
        texts: list[bytes] = taken.to_pylist()
        return texts
    return [png(reduced(each)) for each in taken]


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


def reduced(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture with edges of at most 48 pixels, each the mean of a square of the original."""
    step = -(-max(pixels.shape[:2]) // _EDGE)
    if step == 1:
        return pixels
    step = min(step, *pixels.shape[:2])
    height, width = (edge // step for edge in pixels.shape[:2])
    whole = pixels[: height * step, : width * step]
    squares = whole.reshape(height, step, width, step, *pixels.shape[2:])
    # Of a ribbon, which stays long, every second pixel and so on.
    every = -(-max(height, width) // _EDGE)
    return squares.mean(axis=(1, 3)).round().astype(np.uint8)[::every, ::every]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An array ``(height, width)`` or ``(height, width, 1, 3 or 4)`` as a PNG file.

    The format: https://www.w3.org/TR/png-3/.
    """
    height, width = pixels.shape[:2]
    color = {1: 0, 3: 2, 4: 6}[pixels[0, 0].size]
    lines = pixels.reshape(height, -1)
    filtered = np.hstack([np.zeros((height, 1), np.uint8), lines]).tobytes()  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    return _BEGINS[0] + b"".join(
        [_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(filtered)), _chunk(b"IEND", b"")]
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
