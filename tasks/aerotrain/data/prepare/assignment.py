"""Record hashes, and the split and the shuffle order that follow from them.

The hash of a record is that of its key, or of its content where it has no key, so that equal
records are always in one split. The split does not depend on the order of the records, the number
of partitions or the number of shards.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_FLOAT_BITS = 53  # with more of them the quotient could round up to 1


def split_of(key: str, splits: Mapping[str, float]) -> str:
    """The split of the record ``key``. ``splits`` holds each split's share; they add up to 1."""
    return sorted(splits)[int(splits_of(hashes_of([key]), splits)[0])]


def hashes_of(keys: Sequence[str | bytes]) -> Hashes:
    """One hash for each key."""
    digests = (
        hashlib.blake2b(_bytes(key), digest_size=8, person=b"split").digest() for key in keys
    )
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def content_hashes(checksums: NDArray[np.uint32], lengths: NDArray[np.int64]) -> Hashes:
    """One hash for each record, made of the CRC-32C and the length that its frame holds anyway.

    Different records may collide; they then share a split and a position in the order.
    """
    return mixed(checksums.astype(np.uint64) << np.uint64(32) ^ lengths.astype(np.uint64))


def position_hashes(file: str, offsets: NDArray[np.int64]) -> Hashes:
    """One hash for each record, made of its position: equal records have different hashes."""
    return mixed(hashes_of([file])[0] + offsets.astype(np.uint64))


def points_of(hashes: Hashes) -> NDArray[np.float64]:
    """Hashes as floats, uniform in [0, 1)."""
    return (hashes >> np.uint64(64 - _FLOAT_BITS)) / 2.0**_FLOAT_BITS


def splits_of(hashes: Hashes, splits: Mapping[str, float]) -> NDArray[np.int64]:
    """The index of each record's split among the splits sorted by name.

    The shares of the splits divide [0, 1) into intervals; a record's hash falls into one of them.
    """
    ends = np.cumsum([splits[name] for name in sorted(splits)])
    found = np.searchsorted(ends, points_of(hashes), side="right")
    # Rounding may let the shares add up to slightly less than 1.
    return np.minimum(found, len(splits) - 1)


def order_of(hashes: Hashes, seed: int) -> Hashes:
    """Sort keys that shuffle records; they are independent of the splits."""
    key = int.from_bytes(hashlib.blake2b(f"order {seed}".encode(), digest_size=8).digest())
    return mixed(hashes ^ np.uint64(key))


def mixed(values: Hashes) -> Hashes:
    """The bit mixer (finalizer) of SplitMix64: https://prng.di.unimi.it/splitmix64.c.

    It is a bijection: different values stay different.
    """
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def shards_per_partition(shards: int, partitions: int) -> int:
    """How many shards of a split each partition writes, so that at least ``shards`` exist."""
    return -(-shards // partitions)


def shard_name(split: str, partition: int, shard: int) -> str:
    """The file name of a partition's shard, such as ``train-00003-000.tfrecord``."""
    return f"{split}-{partition:05d}-{shard:03d}.tfrecord"


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
