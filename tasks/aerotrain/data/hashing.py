"""The hashes of records and of documents: they decide splits, order, samples and fingerprints.

The hash of a record is that of its key, or of its content if it has no key, so that equal
records are always in one split. It does not depend on the order of the records, nor on the
number of partitions or shards.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_FLOAT_BITS = 53  # with more of them the quotient could round up to 1


def hashes_of(keys: Sequence[str | bytes]) -> Hashes:
    """One hash for each key."""
    texts = (key.encode() if isinstance(key, str) else key for key in keys)
    digests = (hashlib.blake2b(each, digest_size=8, person=b"split").digest() for each in texts)
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def content_hashes(checksums: NDArray[np.uint32], lengths: NDArray[np.int64]) -> Hashes:
    """One hash for each record, made of the CRC-32C and the length that its frame holds anyway.

    Different records may collide; they then share a split and a position in the order.
    """
    return mixed(checksums.astype(np.uint64) << np.uint64(32) ^ lengths.astype(np.uint64))


def position_hashes(file: str, offsets: NDArray[np.int64]) -> Hashes:
    """One hash for each record, made of its position: equal records have different hashes."""
    return mixed(hashes_of([file])[0] + offsets.astype(np.uint64))


def shuffle_keys(hashes: Hashes, seed: int) -> Hashes:
    """The keys by which records are sorted to shuffle them; independent of the splits."""
    key = int.from_bytes(hashlib.blake2b(f"order {seed}".encode(), digest_size=8).digest())
    return mixed(hashes ^ np.uint64(key))


def uniform(hashes: Hashes) -> NDArray[np.float64]:
    """Hashes as floats, uniform in [0, 1)."""
    return (hashes >> np.uint64(64 - _FLOAT_BITS)) / 2.0**_FLOAT_BITS


def mixed(values: Hashes) -> Hashes:
    """The bit mixer (finalizer) of SplitMix64: https://prng.di.unimi.it/splitmix64.c.

    It is a bijection: different values stay different.
    """
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def short_hash(*texts: str) -> str:
    """The hash of the texts, as 20 hexadecimal digits: the fingerprint of a fragment."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=10).hexdigest()


def fingerprint_of(document: Any) -> str:
    """The hash of a JSON value, as 20 hexadecimal digits: equal values, equal fingerprints."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]
