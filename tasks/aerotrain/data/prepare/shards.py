"""Write the shards of one partition: sorted records, in files of about equal size."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.dataset import Shard
from aerotrain.data.prepare.assignment import order_of, shard_name
from aerotrain.data.prepare.external_shuffle import ExternalShuffle, Facts
from aerotrain.data.records.encoding import parts_of


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


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a partition is divided into shards: its splits sorted by name, and the size of shards."""

    splits: Sequence[str]
    partition: int
    least: int
    shard_bytes: int

    def name(self, split: int, shard: int) -> str:
        return shard_name(self.splits[split], self.partition, shard)

    def shards(self, facts: Facts, seed: int) -> NDArray[np.int64]:
        """The shard of each record, numbered within its split."""
        shards = np.empty(len(facts.hashes), np.int64)
        order = np.argsort(order_of(facts.hashes, seed), kind="stable")
        for split in range(len(self.splits)):
            rows = order[facts.splits[order] == split]
            shards[rows] = shard_numbers(facts.lengths[rows], self.least, self.shard_bytes)
        return shards


class _ShardFile:
    """A shard that is being written."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = (folder / name).open("wb")
        self._digest = hashlib.sha256()
        self._records = 0

    def write(self, rows: pa.LargeBinaryArray) -> None:
        offsets, content = parts_of(rows)
        data = content.data[offsets[0] : offsets[-1]]
        self._file.write(data)
        self._digest.update(data)
        self._records += len(rows)

    def close(self) -> Shard:
        size = self._file.tell()
        self._file.close()
        return Shard(
            file=self.name, records=self._records, bytes=size, sha256=self._digest.hexdigest()
        )


def write_shards(
    shuffle: ExternalShuffle, facts: Facts, cut: Cut, folder: Path
) -> dict[str, list[Shard]]:
    """Write the records of ``shuffle`` to files in ``folder``, and return the shards by split.

    ``facts`` are the shuffle's own, in which every record has its final split.
    """
    shards = cut.shards(facts, shuffle.seed)
    written: dict[str, list[Shard]] = {split: [] for split in cut.splits}
    under_way: dict[str, _ShardFile] = {}
    for rows, which in shuffle.sorted():
        for number, split in enumerate(cut.splits):
            mine = np.flatnonzero(facts.splits[which] == number)
            numbers = shards[which[mine]]
            for shard in np.unique(numbers):
                name = cut.name(number, int(shard))
                if split not in under_way or under_way[split].name != name:
                    if split in under_way:
                        written[split].append(under_way[split].close())
                    under_way[split] = _ShardFile(folder, name)
                under_way[split].write(rows.take(pa.array(mine[numbers == shard])))
    for split, file in under_way.items():
        written[split].append(file.close())
    return written
