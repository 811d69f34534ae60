"""The shards of a data set on this machine's disk, each verified by its hash, and their indexes."""

import mmap
import struct
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Dataset, Shard, Split
from aerotrain.store import Store, StoredFile, fetch_file, open_store
from aerotrain.store.manifest import in_order

#: The folder of shards below the scratch folder.
FOLDER = "shards"

#: Bytes of a TFRecord before a record, its length and that length's checksum, and after it.
HEAD, FOOT = 12, 4

#: The suffix of an index. It holds two int64 per record: the offset and the length.
INDEX = ".index"

_LENGTH = struct.Struct("<Q")

SHARDS_AT_ONCE = 4
RANGES_AT_ONCE = 8

#: Shards on the disk where each is read once: one that is read, and the next ones.
ON_DISK = 3


def split_of(dataset: Dataset, name: str) -> Split:
    """The split of that name, which is not empty.

    Raises:
        FinalError: there is none, or it is empty.
    """
    if name not in dataset.splits:
        raise FinalError(
            f"the data set has no split {name!r}{nearest(name, list(dataset.splits))}; "
            f"it has {', '.join(dataset.splits)}"
        )
    split = dataset.splits[name]
    if not split.records:
        raise FinalError(
            f"the split {name!r} of the data set is empty; give it a larger share, or more data"
        )
    return split


def download(url: str, shards: Sequence[Shard], scratch: Path) -> list[Path]:
    """Download shards of the data set at ``url`` below ``scratch``, unless they exist there.

    Returns:
        The paths of the shards.

    Raises:
        CorruptError: a shard does not match the data set's manifest; the message names it.
    """
    store = open_store(url)
    with (
        ThreadPoolExecutor(RANGES_AT_ONCE) as ranges,
        ThreadPoolExecutor(SHARDS_AT_ONCE) as pool,
    ):
        return list(pool.map(lambda shard: download_shard(store, shard, scratch, ranges), shards))


def in_turn(url: str, shards: Sequence[Shard], scratch: Path) -> Iterator[Path]:
    """Each shard of the data set at ``url``, below ``scratch`` until the next one is requested.

    The next ones are downloaded meanwhile, so that ``ON_DISK`` of them take space at most.

    Raises:
        CorruptError: a shard does not match the data set's manifest; the message names it.
    """
    store = open_store(url)
    with (
        tempfile.TemporaryDirectory(prefix=f"{FOLDER}-", dir=scratch) as folder,
        ThreadPoolExecutor(RANGES_AT_ONCE) as ranges,
        ThreadPoolExecutor(SHARDS_AT_ONCE) as pool,
    ):

        def fetched(shard: Shard) -> Path:
            return download_shard(store, shard, Path(folder), ranges)

        for path in in_order(pool, fetched, shards, ON_DISK):
            yield path
            path.unlink()


def enough(shards: Sequence[Shard], records: int) -> list[Shard]:
    """The first of ``shards`` that hold ``records`` records together, or all of them."""
    chosen: list[Shard] = []
    for shard in shards:
        if sum(each.records for each in chosen) >= records:
            break
        chosen.append(shard)
    return chosen


def download_shard(store: Store, shard: Shard, scratch: Path, ranges: Executor) -> Path:
    """Download one shard of the data set in ``store``, as ``download`` does, by ``ranges``."""
    path = scratch / FOLDER / shard.file
    expected = StoredFile(bytes=shard.bytes, sha256=shard.sha256)
    if not path.exists() or StoredFile.of(path) != expected:
        fetch_file(store, shard.file, expected, path, ranges)
    return path


@dataclass(frozen=True)
class Indexed:
    """A shard on this disk, and its index, or None if all records have the same length."""

    shard: Shard
    index: Path | None

    def offset(self, record: int) -> int:
        """The offset of that record's frame in the shard, or the shard's end."""
        if self.index is None:
            return self.shard.bytes // self.shard.records * record
        if record == self.shard.records:
            return self.shard.bytes
        [place] = np.fromfile(self.index, "<i8", 1, offset=16 * record)
        return int(place) - HEAD


def write_index(shard: Shard, path: Path) -> Indexed:
    """Find the records of the shard at ``path``, and write its index next to it.

    Raises:
        FinalError: the shard does not contain the records of the manifest.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        places = np.empty((shard.records, 2), "<i8")
        offset = found = 0
        while offset < shard.bytes and found < shard.records:
            if offset + HEAD + FOOT > shard.bytes:
                break
            [length] = _LENGTH.unpack_from(content, offset)
            places[found] = offset + HEAD, length
            offset += HEAD + length + FOOT
            found += 1
    if (offset, found) != (shard.bytes, shard.records):
        raise FinalError(
            f"{shard.file} is not the {shard.records} records in {shard.bytes} bytes that its "
            f"manifest says: after {found} of them {offset} bytes are passed; prepare the data "
            "set again"
        )
    index = path.with_name(path.name + INDEX)
    places.tofile(index)
    return Indexed(shard, index)
