"""The second step of ``prepare``: read the fragments of partitions and write their shards."""

import ctypes
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path, PurePath
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.layout import PARTS
from aerotrain.contract.preparing import PartitionArguments
from aerotrain.data.dataset import Shard, Split, schema_to_dict
from aerotrain.data.partitions import (
    NUMBER,
    Fragments,
    Quarantine,
    WrittenPartition,
    write_partitions,
)
from aerotrain.data.prepare.batch_writer import BatchWriter, batches_of
from aerotrain.data.prepare.duplicates import KEYS, check_unique
from aerotrain.data.prepare.plan import DatasetPlan
from aerotrain.data.prepare.shuffle import Attributes, ExternalShuffle
from aerotrain.data.prepare.splitting import SplitNumbers, Stratifier, splits_of
from aerotrain.data.records.encoding import content_of
from aerotrain.replica import Replica
from aerotrain.store import open_store

#: Returns the splits of records; and a function that makes one for a pass over all in their order.
SplitOf: TypeAlias = Callable[[Attributes], SplitNumbers]
Splitter: TypeAlias = Callable[[], SplitOf]

#: The file of the statistics of a partition's records.
STATISTICS = f"{PARTS}/{NUMBER}.statistics.json"

#: A number of shards that costs little, even if most of them are empty.
_FEW_SHARDS = 100

#: Freed bytes that the process keeps; the arrays of one batch are a few times 4 MiB.
_KEPT_BYTES = 64 * 2**20

# https://man7.org/linux/man-pages/man3/mallopt.3.html
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def run(replica: Replica) -> dict[str, int]:
    """Write the shards of some partitions; returns and raises as ``write_partitions``."""
    given = PartitionArguments.from_dict(replica.job.arguments)
    plan = DatasetPlan.read(open_store(given.output))
    keep_freed_memory()

    def write(fragments: Fragments, quarantine: Quarantine, folder: Path) -> WrittenPartition:
        return _write(plan, fragments, quarantine, folder)

    return write_partitions(replica, plan, given.output, given.first, given.count, write)


def keep_freed_memory() -> None:
    """Let this process keep freed memory for reuse.

    By default glibc returns arrays of some megabytes to the system at once, and the page faults
    of the next allocation take a third of the time of encoding.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries lack it, and keep more by themselves
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _write(
    plan: DatasetPlan, fragments: Fragments, quarantine: Quarantine, folder: Path
) -> WrittenPartition:
    """Write the shards of one partition, and its statistics, into ``folder``.

    Raises:
        FinalError: too many records are rejected, or a key occurs twice; the message names them.
            Or there are more shards than records.
    """
    schema, rules = plan.schema, plan.rules
    shuffle = ExternalShuffle(folder, rules.seed)
    writer = BatchWriter(rules, shuffle, quarantine)
    for batch, schema in batches_of(plan, fragments):
        writer.write(batch, schema)
    quarantine.check()
    shuffle.finish()
    records = shuffle.records
    _check_shards(plan.shards_per_partition, records)
    has_keys = writer.has_keys and records > 0
    if has_keys:
        check_unique(plan, fragments, shuffle, folder / PurePath(KEYS).name)
    splitter = _splitter(plan, shuffle, has_keys=writer.has_keys)
    splits = write_shards(shuffle, splitter, plan, folder, has_labels=writer.has_labels)
    (folder / PurePath(STATISTICS).name).write_text(writer.statistics.to_json())
    shards = [shard.file for split in splits.values() for shard in split.shards]
    return WrittenPartition(
        records=records,
        files=[*shards, STATISTICS, *([KEYS] if has_keys else [])],
        about={
            "schema": schema_to_dict(schema) if schema and records else None,
            "splits": {name: split.to_dict() for name, split in splits.items()},
            "rounded": dict(writer.rounded),
        },
    )


def _check_shards(shards: int, records: int) -> None:
    """Check that most shards of a split would have a record.

    Raises:
        FinalError: they would not.
    """
    if shards > max(_FEW_SHARDS, records):
        raise FinalError(
            f"a partition of {counted(records, 'record')} cannot be divided into {shards} "
            f"shards of each split; ask for {max(_FEW_SHARDS, records)} shards or fewer"
        )


def _splitter(plan: DatasetPlan, shuffle: ExternalShuffle, *, has_keys: bool) -> Splitter:
    """The function for the splits of this partition; ``stratified`` divides each class."""
    splits = plan.rules.splits
    if plan.rules.split_by["way"] != "stratified":
        return lambda: itemgetter("split")
    if len(plan.partitions) > 1 and not has_keys:
        # An equal record in another partition must get the same split.
        return lambda: lambda records: splits_of(records["hash"], splits)
    counts: Counter[int] = Counter()
    for records in shuffle.attributes():
        strata, each = np.unique(records["stratum"], return_counts=True)
        counts.update(dict(zip(strata.tolist(), each.tolist(), strict=True)))

    def splitter() -> SplitOf:
        stratifier = Stratifier(counts, splits)
        return lambda records: stratifier.splits_of(records["stratum"], records["hash"])

    return splitter


# --- shards


def write_shards(
    shuffle: ExternalShuffle,
    splitter: Splitter,
    plan: DatasetPlan,
    folder: Path,
    *,
    has_labels: bool,
) -> dict[str, Split]:
    """Write the records of ``shuffle`` to files in ``folder``.

    Returns:
        The shards by split, with the count of each label if there are labels.
    """
    names = sorted(plan.rules.splits)
    totals = [Totals() for _ in names]
    split_of = splitter()
    for attributes in shuffle.attributes():
        of_splits = split_of(attributes)
        for split, each in enumerate(totals):
            each.add(attributes[of_splits == split])
    numbers = [
        ShardNumbers(each, plan.shards_per_partition, plan.rules.shard_bytes) for each in totals
    ]
    written: dict[str, list[Shard]] = {name: [] for name in names}
    open_files: dict[str, _ShardFile] = {}
    split_of = splitter()
    for frames, attributes in shuffle.sorted():
        of_splits = split_of(attributes)
        for split, name in enumerate(names):
            rows = np.flatnonzero(of_splits == split)
            shards = numbers[split].of(attributes["length"][rows])
            for shard in np.unique(shards):
                key = f"{name}-{NUMBER}-{shard:03d}.tfrecord"
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
