"""Write the shuffled records of one partition as shards, and count them."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.dataset import Shard, Split
from aerotrain.data.prepare.layout import Plan, shard_key
from aerotrain.data.prepare.shuffle import Attributes, ExternalShuffle
from aerotrain.data.records.encoding import content_of


def write_shards(
    shuffle: ExternalShuffle, plan: Plan, partition: int, folder: Path, *, has_labels: bool
) -> dict[str, Split]:
    """Write the records of ``shuffle``, which have their final splits, to files in ``folder``.

    Returns:
        The shards by split, with the count of each label if there are labels.
    """
    names = sorted(plan.rules.splits)
    totals = [Totals() for _ in names]
    for attributes in shuffle.attributes():
        for split, each in enumerate(totals):
            each.add(attributes[attributes["split"] == split])
    numbers = [
        ShardNumbers(each, plan.shards_per_partition, plan.rules.shard_bytes) for each in totals
    ]
    written: dict[str, list[Shard]] = {name: [] for name in names}
    open_files: dict[str, _ShardFile] = {}
    for frames, attributes in shuffle.sorted():
        for split, name in enumerate(names):
            rows = np.flatnonzero(attributes["split"] == split)
            shards = numbers[split].of(attributes["length"][rows])
            for shard in np.unique(shards):
                key = shard_key(name, partition, int(shard))
                if name not in open_files or open_files[name].key != key:
                    if name in open_files:
                        written[name].append(open_files[name].close())
                    open_files[name] = _ShardFile(folder, key)
                open_files[name].write(frames.take(pa.array(rows[shards == shard])))
    for name, file in open_files.items():
        written[name].append(file.close())
    return {
        name: Split(shards=tuple(written[name]), classes=dict(each.labels) if has_labels else {})
        for name, each in zip(names, totals, strict=True)
    }


@dataclass
class Totals:
    """The records of one split: their number, their bytes, and how many have each label."""

    records: int = 0
    bytes: int = 0
    largest: int = 0
    labels: Counter[int] = field(default_factory=Counter)

    def add(self, attributes: Attributes) -> None:
        lengths = attributes["length"]
        self.records += len(lengths)
        self.bytes += int(lengths.sum())
        self.largest = max(self.largest, int(lengths.max(initial=0)))
        labels, counts = np.unique(attributes["label"], return_counts=True)
        self.labels.update(dict(zip(labels.tolist(), counts.tolist(), strict=True)))


class ShardNumbers:
    """The shards of the records of one split, given their lengths in order.

    Shards are near ``shard_bytes``; there are at least ``least``, unless some would be empty.
    """

    def __init__(self, totals: Totals, least: int, shard_bytes: int) -> None:
        shards = -(-totals.bytes // shard_bytes)
        # A record that is larger than an average shard might leave one empty.
        self._by_size = shards > least and totals.largest * shards <= totals.bytes
        self._total = totals.bytes if self._by_size else totals.records
        self._shards = shards if self._by_size else min(max(least, shards), totals.records)
        self._before = 0

    def of(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The shard of each of the next records."""
        units = lengths if self._by_size else np.ones_like(lengths)
        ends = self._before + np.cumsum(units)
        self._before = int(ends[-1]) if len(ends) else self._before
        return (ends - units) * self._shards // max(1, self._total)


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
