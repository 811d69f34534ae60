"""Which split a record belongs to, and where it comes in the order: arithmetic on its hash.

A record that has a key is hashed by it, any other by its content, so that equal records are
always in one split. The hash decides the split whatever the order of the records, the number of
parts or of shards.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_FLOAT_BITS = 53  # with more of them the quotient could round up to 1


def split_of(key: str, splits: Mapping[str, float]) -> str:
    """The split of the record ``key``, given each split's share; the shares add up to 1."""
    return sorted(splits)[int(splits_of(hashes_of([key]), splits)[0])]


def hashes_of(keys: Sequence[str | bytes]) -> Hashes:
    """One hash for each key."""
    digests = (
        hashlib.blake2b(_bytes(key), digest_size=8, person=b"split").digest() for key in keys
    )
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def content_hashes(checksums: NDArray[np.uint32], lengths: NDArray[np.int64]) -> Hashes:
    """One hash for each record by the CRC-32C and the length that its file holds anyway.

    Of different records some share one, and then their place in the order and their split.
    """
    return mixed(checksums.astype(np.uint64) << np.uint64(32) ^ lengths.astype(np.uint64))


def position_hashes(file: str, offsets: NDArray[np.int64]) -> Hashes:
    """One hash for each record by where it lies: equal records have different ones."""
    return mixed(hashes_of([file])[0] + offsets.astype(np.uint64))


def points_of(hashes: Hashes) -> NDArray[np.float64]:
    """Where each record lies on the line from 0 to 1."""
    return (hashes >> np.uint64(64 - _FLOAT_BITS)) / 2.0**_FLOAT_BITS


def splits_of(hashes: Hashes, splits: Mapping[str, float]) -> NDArray[np.int64]:
    """The number of each record's split, among the splits sorted by name.

    The splits lie side by side on the line from 0 to 1, on which each record has its point.
    """
    ends = np.cumsum([splits[name] for name in sorted(splits)])
    found = np.searchsorted(ends, points_of(hashes), side="right")
    # The shares may add up to a little less than 1, as floats do.
    return np.minimum(found, len(splits) - 1)


def order_of(hashes: Hashes, seed: int) -> Hashes:
    """Numbers by which records are sorted to be shuffled; none says anything of its split."""
    key = int.from_bytes(hashlib.blake2b(f"order {seed}".encode(), digest_size=8).digest())
    return mixed(hashes ^ np.uint64(key))


def mixed(values: Hashes) -> Hashes:
    """Each of 64 bits changed by each other: https://prng.di.unimi.it/splitmix64.c, its finish.

    Different values stay different.
    """
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def shards_per_partition(shards: int, partitions: int) -> int:
    """How many shards each of ``partitions`` parts writes, so that there are ``shards`` or more."""
    return -(-shards // partitions)


def shard_name(split: str, partition: int, shard: int) -> str:
    """The file of a part's shard, such as ``train-00003-000.tfrecord``."""
    return f"{split}-{partition:05d}-{shard:03d}.tfrecord"


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
