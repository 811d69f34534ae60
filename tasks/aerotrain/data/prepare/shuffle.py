"""Shuffle the records of one partition in little memory, for any number and size of records.

Records are sorted by their shuffle keys. They are distributed over buckets on the local disk, each
of one range of keys, so that sorting the buckets one by one sorts all records. A bucket that is too
large to be sorted in memory is distributed again; one of a single key is in order already.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.hashing import Hashes, shuffle_keys
from aerotrain.data.records.encoding import binary_array, content_of
from aerotrain.data.records.sizes import parts_of

#: Bytes of records that are held until they are distributed, and that are sorted at once.
BUCKET_BYTES = 32 * 2**20

_BUCKETS = 256

#: What is known of each record: the hash that determines its split and its place in the order, its
#: class for ``stratified``, its label, the length of its frame, and the number of its split.
ATTRIBUTES = np.dtype(
    [("hash", "u8"), ("stratum", "u8"), ("label", "i8"), ("length", "i8"), ("split", "i1")]
)
Attributes: TypeAlias = NDArray[np.void]
Frames: TypeAlias = pa.LargeBinaryArray


class ExternalShuffle:
    """Takes records in any order, and yields them in the shuffle order of ``seed``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._path = folder / "bucket"
        self._held: list[tuple[Frames, Attributes]] = []
        self._held_bytes = 0
        self._buckets: list[_Bucket] = []

    def add(self, frames: Frames, attributes: Attributes) -> None:
        """Add records with their attributes, before ``finish``."""
        self._held.append((frames, attributes))
        self._held_bytes += _bytes_of(attributes)
        if self._held_bytes > BUCKET_BYTES:
            self._buckets = self._buckets or _divided(self._path, 0, 2**64 - 1)
            self._release()

    def finish(self) -> None:
        """End the addition of records."""
        self._buckets = self._buckets or [_Bucket(self._path, 0)]
        self._release()
        self._buckets = [each for bucket in self._buckets for each in self._sortable(bucket)]

    @property
    def records(self) -> int:
        """The number of records, after ``finish``."""
        return sum(bucket.records for bucket in self._buckets)

    def attributes(self) -> Iterator[Attributes]:
        """The attributes of all records in order, in parts."""
        for bucket in self._buckets:
            for found in bucket.attributes():
                yield found[self._order(found)]

    def sorted(self) -> Iterator[tuple[Frames, Attributes]]:
        """The frames of all records in order, and their attributes, in parts.

        Each bucket is deleted after it was read.
        """
        for bucket in self._buckets:
            for frames, attributes in bucket.parts():
                order = self._order(attributes)
                yield frames.take(pa.array(order)), attributes[order]
            bucket.delete()

    def _release(self) -> None:
        """Move the records that are held to the buckets."""
        if self._held:
            frames = pa.concat_arrays([each for each, _ in self._held])
            attributes = np.concatenate([each for _, each in self._held])
            self._held, self._held_bytes = [], 0
            self._distribute(frames, attributes, self._buckets)

    def _distribute(self, frames: Frames, attributes: Attributes, over: "list[_Bucket]") -> None:
        keys = self._keys(attributes)
        firsts = np.array([bucket.first for bucket in over], np.uint64)
        which = np.searchsorted(firsts, keys, side="right") - 1
        order = np.argsort(which, kind="stable")
        frames, attributes, keys = frames.take(pa.array(order)), attributes[order], keys[order]
        edges = np.searchsorted(which[order], np.arange(len(over) + 1)).tolist()
        for bucket, (start, end) in zip(over, pairwise(edges), strict=True):
            if start < end:
                bucket.append(frames[start:end], attributes[start:end], keys[start:end])

    def _sortable(self, bucket: "_Bucket") -> "Iterator[_Bucket]":
        """The bucket, or those over which its records had to be distributed."""
        if bucket.bytes <= BUCKET_BYTES or bucket.least == bucket.greatest:
            if bucket.records:
                yield bucket
            return
        smaller = _divided(bucket.path, bucket.least, bucket.greatest)
        for frames, attributes in bucket.parts():
            self._distribute(frames, attributes, smaller)
        bucket.delete()
        for each in smaller:
            yield from self._sortable(each)

    def _order(self, attributes: Attributes) -> NDArray[np.int64]:
        return np.argsort(self._keys(attributes), kind="stable")

    def _keys(self, attributes: Attributes) -> Hashes:
        return shuffle_keys(attributes["hash"], self._seed)


@dataclass
class _Bucket:
    """Records of one range of keys, from ``first`` on, in two files: of attributes, of frames.

    ``least`` and ``greatest`` are the extremes of their keys.
    """

    path: Path
    first: int
    records: int = 0
    bytes: int = 0
    least: int = 2**64 - 1
    greatest: int = 0

    def append(self, frames: Frames, attributes: Attributes, keys: Hashes) -> None:
        with self.path.open("ab") as file:
            file.write(content_of(frames).data)
        with self._attributes.open("ab") as file:
            file.write(attributes.tobytes())
        self.records += len(attributes)
        self.bytes += _bytes_of(attributes)
        self.least = min(self.least, int(keys.min()))
        self.greatest = max(self.greatest, int(keys.max()))

    def attributes(self) -> Iterator[Attributes]:
        """The attributes, in parts: in one if the bucket can be sorted in memory."""
        with self._attributes.open("rb") as file:
            while len(found := np.fromfile(file, ATTRIBUTES, _records_at_once())):
                yield found

    def parts(self) -> Iterator[tuple[Frames, Attributes]]:
        """The records, in parts: in one if the bucket can be sorted in memory."""
        with self.path.open("rb") as file:
            for found in self.attributes():
                for part in parts_of(found["length"] + ATTRIBUTES.itemsize, BUCKET_BYTES):
                    attributes = found[part]
                    ends = np.append(0, np.cumsum(attributes["length"]))
                    yield binary_array(ends, np.fromfile(file, np.uint8, ends[-1])), attributes

    def delete(self) -> None:
        self.path.unlink()
        self._attributes.unlink()

    @property
    def _attributes(self) -> Path:
        return self.path.with_name(f"{self.path.name}.attributes")


def _divided(path: Path, least: int, greatest: int) -> list[_Bucket]:
    """Buckets of equal ranges of the keys from ``least`` to ``greatest``."""
    width = (greatest - least) // _BUCKETS + 1
    firsts = range(least, greatest + 1, width)
    return [
        _Bucket(path.with_name(f"{path.name}-{number:03d}"), first)
        for number, first in enumerate(firsts)
    ]


def _bytes_of(attributes: Attributes) -> int:
    """The bytes of records and of their attributes."""
    return int(attributes["length"].sum()) + attributes.nbytes


def _records_at_once() -> int:
    """More records than a bucket that can be sorted in memory may have."""
    return BUCKET_BYTES // ATTRIBUTES.itemsize
