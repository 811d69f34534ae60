"""External shuffle: records are distributed over buckets on the local disk, by their sort key.

Each bucket holds one range of sort keys, so that sorting the buckets one by one sorts all records
with only one bucket in memory.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.prepare.assignment import Hashes, order_of
from aerotrain.data.records import Frames
from aerotrain.data.records.encoding import parts_of, texts

#: About how many bytes of records one bucket holds; twice that is in memory while it is sorted.
BUCKET_BYTES = 32 * 2**20

_MOST_BUCKETS = 256
_WRITTEN_AT_ONCE = 2**17


def buckets_for(content: int | None) -> int:
    """How many buckets ``content`` bytes of records need; None if the size is unknown."""
    if content is None:
        return 32
    return max(1, min(_MOST_BUCKETS, -(-content // BUCKET_BYTES)))


@dataclass
class Facts:
    """Per-record arrays of a bucket, in the order in which the records were added."""

    hashes: Hashes
    lengths: NDArray[np.int64]
    splits: NDArray[np.int8]
    labels: NDArray[np.int64]
    strata: Hashes

    @classmethod
    def concat(cls, facts: list[Self]) -> Self:
        return cls(*(np.concatenate([getattr(each, name) for each in facts]) for name in _FACTS))

    def take(self, rows: NDArray[np.int64]) -> "Facts":
        return Facts(*(getattr(self, name)[rows] for name in _FACTS))


_FACTS = ("hashes", "lengths", "splits", "labels", "strata")


@dataclass
class _Bucket:
    path: Path
    file: IO[bytes]
    facts: list[Facts] = field(default_factory=list)


class ExternalShuffle(AbstractContextManager["ExternalShuffle"]):
    """Takes records in any order and yields them in the shuffle order of ``seed``."""

    def __init__(self, folder: Path, buckets: int, seed: int) -> None:
        self.seed = seed
        self._open = ExitStack()
        self._buckets = []
        for number in range(buckets):
            path = folder / f"bucket-{number:03d}"
            file = self._open.enter_context(path.open("wb", buffering=_WRITTEN_AT_ONCE))
            self._buckets.append(_Bucket(path, file))

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def add(self, frames: Frames, facts: Facts) -> None:
        """Add records with their ``facts``."""
        order = order_of(facts.hashes, self.seed)
        which = (order >> np.uint64(32)) * np.uint64(len(self._buckets)) >> np.uint64(32)
        by_bucket = np.argsort(which, kind="stable")
        rows = frames.rows.take(pa.array(by_bucket))
        offsets, content = parts_of(rows)
        view = content.data
        sorted_facts = facts.take(by_bucket)
        edges = np.searchsorted(which[by_bucket], np.arange(len(self._buckets) + 1))
        for bucket, (start, end) in zip(self._buckets, pairwise(edges), strict=True):
            if start < end:
                bucket.file.write(view[offsets[start] : offsets[end]])
                bucket.facts.append(sorted_facts.take(np.arange(start, end)))

    @property
    def hashes(self) -> Hashes:
        """The hashes of all records."""
        every = [each.hashes for bucket in self._buckets for each in bucket.facts]
        return np.concatenate([np.zeros(0, np.uint64), *every])

    @property
    def facts(self) -> Facts | None:
        """The facts of all records, bucket by bucket; None if there is no record."""
        every = [each for bucket in self._buckets for each in bucket.facts]
        return Facts.concat(every) if every else None

    def sorted(self) -> Iterator[tuple[pa.LargeBinaryArray, NDArray[np.int64]]]:
        """The frames of each bucket in order, and their indices in ``facts``.

        Each bucket is deleted after it was read.
        """
        self._open.close()
        first = 0
        for bucket in self._buckets:
            if bucket.facts:
                facts = Facts.concat(bucket.facts)
                offsets = np.concatenate([[0], np.cumsum(facts.lengths)])
                rows = texts(offsets, np.fromfile(bucket.path, np.uint8))
                order = np.argsort(order_of(facts.hashes, self.seed), kind="stable")
                yield rows.take(pa.array(order)), first + order
                first += len(order)
            bucket.path.unlink()
