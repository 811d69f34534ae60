"""Detection of duplicate keys.

Each partition stores the hashes of its keys next to its statistics, in the order of its shuffle, by
which they are sorted: they are the shuffle keys. ``finalize`` merges those of all partitions, one
range of values at a time. Where two hashes are equal, the records are read again to compare the
keys themselves.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.layout import PARTS
from aerotrain.data.hashing import Hashes, hashes_of, shuffle_keys
from aerotrain.data.partitions import NUMBER, Fragments, key_of, read_fragments
from aerotrain.data.prepare.batches import batches_of, key_texts
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.prepare.plan import DatasetPlan
from aerotrain.data.prepare.shuffle import ExternalShuffle
from aerotrain.store import Store
from aerotrain.store.manifest import each_of

#: The file of a partition's sorted key hashes, 8 bytes each, if its records have keys.
KEYS = f"{PARTS}/{NUMBER}.shuffle-keys"

#: Hashes of all partitions that are held in memory at once: 32 MiB.
RANGE_HASHES = 2**22


def write_keys(shuffle: ExternalShuffle, seed: int, path: Path) -> None:
    """Write the sorted hashes of the keys of one partition to ``path``."""
    with path.open("wb") as file:
        for attributes in shuffle.attributes():
            file.write(shuffle_keys(attributes["hash"], seed).astype("<u8").data)


def check_unique(
    store: Store, plan: DatasetPlan, records: Mapping[int, int], scratch: Path
) -> None:
    """Check that keys are unique in all partitions, which have ``records`` records each.

    Their hashes are on the disk meanwhile, 8 bytes each.

    Raises:
        FinalError: two records share a key; the message names their positions.
    """

    def fetched(partition: int) -> Hashes:
        path = scratch / f"{partition}.keys"
        store.download(key_of(KEYS, partition), path)
        return np.memmap(path, "<u8", "r")

    keys = list(each_of(fetched, records))
    ranges = max(1, -(-sum(records.values()) // RANGE_HASHES))
    for first, end in pairwise(2**64 * number // ranges for number in range(ranges + 1)):
        found = [_between(each, first, end - 1) for each in keys]
        hashes = np.concatenate([np.zeros(0, np.uint64), *found])
        partitions = np.repeat([*records], [len(each) for each in found])
        order = np.argsort(hashes, kind="stable")
        hashes, partitions = hashes[order], partitions[order]
        repeated = hashes[1:][hashes[1:] == hashes[:-1]]
        for target in np.unique(repeated):
            having = np.unique(partitions[hashes == target]).tolist()
            fragments = chain.from_iterable(read_fragments(store, number) for number in having)
            _check_same(plan, list(fragments), target, len(repeated))


def _between(hashes: Hashes, least: int, greatest: int) -> Hashes:
    """Those of the sorted hashes that are in this range."""
    first = np.searchsorted(hashes, np.uint64(least))
    return hashes[first : np.searchsorted(hashes, np.uint64(greatest), "right")]


def _check_same(plan: DatasetPlan, fragments: Fragments, target: np.uint64, count: int) -> None:
    """Raise ``FinalError`` if two records of that hash share their key, not just the hash."""
    seen: dict[str | bytes, str] = {}
    for key, place in _found(plan, fragments, target):
        if key in seen:
            raise FinalError(
                f"{counted(count, 'record')} repeat{'s' if count == 1 else ''} a key, the first at "
                f"{seen[key]} and {place}; give every record a key of its own"
            )
        seen[key] = place


def _found(
    plan: DatasetPlan, fragments: Fragments, target: np.uint64
) -> Iterator[tuple[str | bytes, str]]:
    """The keys with that hash and their positions, by reading the fragments again."""
    for batch, schema in batches_of(plan, fragments):
        fit = cast_to_schema(batch, schema, plan.rules)
        keys = key_texts(batch, fit, plan.rules) or ()
        for place in np.flatnonzero(shuffle_keys(hashes_of(keys), plan.rules.seed) == target):
            row = fit.rows[place]
            named = f" {batch.keys[row]!r}" if batch.keys else ""
            yield keys[int(place)], f"{batch.file}, {batch.unit} {batch.offsets[row]}{named}"
