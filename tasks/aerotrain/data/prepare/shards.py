"""Shuffle the records of one partition on the local disk, and write them as shards.

The shuffle is external: records are distributed over buckets by their shuffle keys. Each bucket
holds one range of keys, so that sorting the buckets one by one sorts all records with only one
bucket in memory.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.dataset import Shard
from aerotrain.data.hashing import Hashes, shuffle_keys
from aerotrain.data.prepare.layout import Plan, shard_key
from aerotrain.data.records import Frames
from aerotrain.data.records.encoding import binary_array, content_of

#: About how many bytes of records one bucket holds; twice that is in memory while it is sorted.
BUCKET_BYTES = 32 * 2**20

_MOST_BUCKETS = 256

#: Buckets of a partition of unknown size.
_DEFAULT_BUCKETS = 32

_WRITTEN_AT_ONCE = 2**17


@dataclass
class Attributes:
    """Attributes of records, an array each: all that must be in memory to write their shards."""

    hashes: Hashes
    lengths: NDArray[np.int64]
    splits: NDArray[np.int8]
    labels: NDArray[np.int64]
    strata: Hashes

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        return cls(*map(np.concatenate, zip(*(vars(each).values() for each in parts), strict=True)))

    def take(self, rows: NDArray[np.int64]) -> "Attributes":
        return Attributes(*(array[rows] for array in vars(self).values()))


@dataclass
class _Bucket:
    path: Path
    file: IO[bytes]
    attributes: list[Attributes] = field(default_factory=list)


class ExternalShuffle(AbstractContextManager["ExternalShuffle"]):
    """Takes records in any order and yields them in the shuffle order of ``seed``.

    ``content`` is about how many bytes of records there will be, None if it is unknown.
    """

    def __init__(self, folder: Path, content: int | None, seed: int) -> None:
        self.seed = seed
        self._open = ExitStack()
        self._buckets = []
        count = _DEFAULT_BUCKETS if content is None else -(-content // BUCKET_BYTES)
        for number in range(max(1, min(_MOST_BUCKETS, count))):
            path = folder / f"bucket-{number:03d}"
            file = self._open.enter_context(path.open("wb", buffering=_WRITTEN_AT_ONCE))
            self._buckets.append(_Bucket(path, file))

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def add(self, frames: Frames, attributes: Attributes) -> None:
        """Add records with their attributes."""
        keys = shuffle_keys(attributes.hashes, self.seed)
        which = (keys >> np.uint64(32)) * np.uint64(len(self._buckets)) >> np.uint64(32)
        by_bucket = np.argsort(which, kind="stable")
        rows = frames.rows.take(pa.array(by_bucket))
        attributes = attributes.take(by_bucket)
        edges = np.searchsorted(which[by_bucket], np.arange(len(self._buckets) + 1))
        for bucket, (start, end) in zip(self._buckets, pairwise(edges.tolist()), strict=True):
            if start < end:
                bucket.file.write(content_of(rows.slice(start, end - start)).data)
                bucket.attributes.append(attributes.take(np.arange(start, end)))

    @property
    def attributes(self) -> Attributes | None:
        """The attributes of all records, bucket by bucket; None if there is no record."""
        every = [each for bucket in self._buckets for each in bucket.attributes]
        return Attributes.concat(every) if every else None

    def sorted(self) -> Iterator[tuple[pa.LargeBinaryArray, NDArray[np.int64]]]:
        """The frames of each bucket in order, and their indices in ``attributes``.

        Each bucket is deleted after it was read.
        """
        self._open.close()
        first = 0
        for bucket in self._buckets:
            if bucket.attributes:
                attributes = Attributes.concat(bucket.attributes)
                offsets = np.concatenate([[0], np.cumsum(attributes.lengths)])
                rows = binary_array(offsets, np.fromfile(bucket.path, np.uint8))
                order = np.argsort(shuffle_keys(attributes.hashes, self.seed), kind="stable")
                yield rows.take(pa.array(order)), first + order
                first += len(order)
            bucket.path.unlink()


def write_shards(
    shuffle: ExternalShuffle, attributes: Attributes, plan: Plan, partition: int, folder: Path
) -> dict[str, list[Shard]]:
    """Write the records of ``shuffle`` to files in ``folder``, and return the shards by split.

    ``attributes`` are the shuffle's own, in which every record has its final split.
    """
    names = sorted(plan.rules.splits)
    shards = _assigned_shards(attributes, plan, shuffle.seed)
    written: dict[str, list[Shard]] = {name: [] for name in names}
    open_files: dict[str, _ShardFile] = {}
    for rows, which in shuffle.sorted():
        for split, name in enumerate(names):
            in_split = np.flatnonzero(attributes.splits[which] == split)
            numbers = shards[which[in_split]]
            for shard in np.unique(numbers):
                key = shard_key(name, partition, int(shard))
                if name not in open_files or open_files[name].key != key:
                    if name in open_files:
                        written[name].append(open_files[name].close())
                    open_files[name] = _ShardFile(folder, key)
                open_files[name].write(rows.take(pa.array(in_split[numbers == shard])))
    for name, file in open_files.items():
        written[name].append(file.close())
    return written


def _assigned_shards(attributes: Attributes, plan: Plan, seed: int) -> NDArray[np.int64]:
    """The shard of each record, numbered within its split."""
    shards = np.empty(len(attributes.hashes), np.int64)
    order = np.argsort(shuffle_keys(attributes.hashes, seed), kind="stable")
    for split in range(len(plan.rules.splits)):
        rows = order[attributes.splits[order] == split]
        shards[rows] = shard_numbers(
            attributes.lengths[rows], plan.shards_per_partition, plan.rules.shard_bytes
        )
    return shards


def shard_numbers(lengths: NDArray[np.int64], least: int, shard_bytes: int) -> NDArray[np.int64]:
    """The shard of each record of a split, in order. ``lengths`` are the records' sizes in bytes.

    Shards are near ``shard_bytes``; there are at least ``least``, unless some would be empty.
    """
    if not len(lengths):
        return lengths
    total = int(lengths.sum())
    by_size = -(-total // shard_bytes)
    before = np.cumsum(lengths) - lengths
    numbers = before * by_size // total
    if by_size > least and len(np.unique(numbers)) >= least:
        return numbers
    # With so few records, equal counts make sure that no shard is empty.
    count = min(least, len(lengths))
    return np.arange(len(lengths)) * count // len(lengths)


class _ShardFile:
    """A shard that is being written."""

    def __init__(self, folder: Path, key: str) -> None:
        self.key = key
        self._file = (folder / key).open("wb")
        self._digest = hashlib.sha256()
        self._records = 0

    def write(self, rows: pa.LargeBinaryArray) -> None:
        data = content_of(rows).data
        self._file.write(data)
        self._digest.update(data)
        self._records += len(rows)

    def close(self) -> Shard:
        size = self._file.tell()
        self._file.close()
        return Shard(
            file=self.key, records=self._records, bytes=size, sha256=self._digest.hexdigest()
        )
