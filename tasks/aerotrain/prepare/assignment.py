"""Which split and which shard a record belongs to: arithmetic on its key, and nothing else."""

import hashlib
from collections.abc import Mapping


def split_of(key: str, splits: Mapping[str, float]) -> str:
    """The split of the record ``key``, given each split's share; the shares add up to 1.

    A key falls on a fixed point of the line from 0 to 1, on which the splits lie side by side
    in the order of their names. So it is in the same split whatever the order of the records,
    the number of parts or of shards.
    """
    point = _point(key, b"split")
    end = 0.0
    names = sorted(splits)
    for name in names:
        end += splits[name]
        if point < end:
            return name
    return names[-1]  # the shares add up to a little less than 1, as floats do


def shard_of(key: str, shards: int) -> int:
    """Which of a part's ``shards`` shards the record ``key`` goes into, from 0."""
    # Another point than its split's, or a split's records would meet in a few shards.
    return int(_point(key, b"shard") * shards)


def shards_per_part(shards: int, parts: int) -> int:
    """How many shards each of ``parts`` parts writes, so that there are ``shards`` or more."""
    return -(-shards // parts)


def shard_name(split: str, part: int, parts: int, shard: int, per_part: int) -> str:
    """The file of a part's shard, numbered through all parts: ``train-00003-of-00008.tfrecord``."""
    return f"{split}-{part * per_part + shard:05d}-of-{parts * per_part:05d}.tfrecord"


def _point(key: str, purpose: bytes) -> float:
    """A number of at least 0 and below 1, uniform over keys and independent by purpose."""
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=purpose).digest()
    # A float holds 53 bits; with more of them the quotient could round up to 1.
    return (int.from_bytes(digest) >> 11) / 2**53
