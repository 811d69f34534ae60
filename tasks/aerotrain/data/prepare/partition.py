"""The second step of ``prepare``: read the fragments of partitions and write their shards.

A partition is written completely or not at all, so a task that was interrupted goes on with the
first one that is missing.
"""

import ctypes
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.layout import STATISTICS, dataset_key
from aerotrain.contract.preparing import PartitionArguments
from aerotrain.data.dataset import Split
from aerotrain.data.prepare.batch_writer import BatchWriter, batches_of
from aerotrain.data.prepare.duplicates import check_unique
from aerotrain.data.prepare.layout import (
    Plan,
    PlannedPartition,
    WrittenPartition,
    known_partition_key,
    numbers_of_task,
    partition_key,
    partition_keys_key,
    partition_statistics_key,
    quarantine_key,
)
from aerotrain.data.prepare.quarantine import Quarantine
from aerotrain.data.prepare.shards import write_shards
from aerotrain.data.prepare.shuffle import ExternalShuffle
from aerotrain.data.prepare.splitting import Stratifier, splits_of
from aerotrain.replica import Replica
from aerotrain.store import MissingError, Store, open_store

#: A number of shards that costs little, even if most of them are empty.
_FEW_SHARDS = 100

#: The file of a partition's key hashes in the scratch folder.
_KEYS = "keys"

#: Freed bytes that the process keeps; the arrays of one batch are a few times 4 MiB.
_KEPT_BYTES = 64 * 2**20

# https://man7.org/linux/man-pages/man3/mallopt.3.html
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def run(replica: Replica) -> dict[str, int]:
    """Write the shards of some partitions, one after another, except those that are written.

    Returns:
        ``{"first": …, "count": …, "records": how many the partitions have}``.

    Raises:
        FinalError: there is no such partition, or more than ``max_rejected`` records of one are
            rejected.
    """
    arguments = PartitionArguments.from_dict(replica.job.arguments)
    store, root = open_store(arguments.dataset), open_store(replica.job.store)
    plan = Plan.read(store)
    count = len(plan.partitions)
    numbers, done = numbers_of_task(store, arguments.first, arguments.count, count)
    keep_freed_memory()
    records = 0
    for number in numbers:
        if number in done:
            written = WrittenPartition.from_json(store.get(partition_key(number)))
        else:
            written = _copied_or_written(plan, number, store, root, replica.scratch)
        records += written.records
    return {"first": arguments.first, "count": arguments.count, "records": records}


def _copied_or_written(
    plan: Plan, number: int, store: Store, root: Store, scratch: Path
) -> WrittenPartition:
    """Copy the partition from an earlier data set that has it, or write it."""
    known = _copy_known(root, store, plan, number)
    written = known or _write(plan, number, store, scratch)
    _remember(root, store, plan, number)
    store.put(partition_key(number), written.to_json().encode())
    how = "is copied from an earlier data set" if known else "is written"
    records = counted(written.records, "record")
    print(f"partition {number} {how}: {records}, {written.rejected:,} in quarantine")
    return written


def keep_freed_memory() -> None:
    """Let this process keep freed memory for reuse.

    By default glibc returns arrays of some megabytes to the system at once, and the page faults
    of the next allocation take a third of the time of encoding.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries lack it, and keep more by themselves
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _remember(root: Store, store: Store, plan: Plan, partition: int) -> None:
    """Record at the top of the store where this partition was written."""
    where = {"dataset": store.url.rpartition("/")[2], "part": partition}
    root.put(known_partition_key(plan.partitions[partition]), (json.dumps(where) + "\n").encode())


def _copy_known(root: Store, store: Store, plan: Plan, partition: int) -> WrittenPartition | None:
    """Copy the partition from a data set that has it; None if no data set has all of it.

    The shards are renamed to the number that the partition has in this plan.
    """
    try:
        known = json.loads(root.get(known_partition_key(plan.partitions[partition])))
        old, number = dataset_key(known["dataset"]), known["part"]
        new = dataset_key(store.url.rpartition("/")[2])
        written = WrittenPartition.from_json(root.get(f"{old}/{partition_key(number)}"))
        splits = {}
        for name, split in written.splits.items():
            shards = []
            for shard in split.shards:
                file = shard.file.replace(f"-{number:05d}-", f"-{partition:05d}-", 1)
                root.copy(f"{old}/{shard.file}", f"{new}/{file}")
                shards.append(replace(shard, file=file))
            splits[name] = Split(shards=tuple(shards), classes=split.classes)
        root.copy(
            f"{old}/{partition_statistics_key(number)}",
            f"{new}/{partition_statistics_key(partition)}",
        )
        if written.has_keys:
            root.copy(
                f"{old}/{partition_keys_key(number)}", f"{new}/{partition_keys_key(partition)}"
            )
        if written.rejected:
            root.copy(f"{old}/{quarantine_key(number)}", f"{new}/{quarantine_key(partition)}")
    except MissingError:
        return None  # the earlier data set was deleted, or never completed
    return replace(written, splits=splits)


def _write(plan: Plan, number: int, store: Store, scratch: Path) -> WrittenPartition:
    """Write one partition and upload it to the store."""
    key = quarantine_key(number)
    quarantine = Quarantine(
        scratch / "quarantine.jsonl", plan.rules.max_rejected, f"{store.url}/{key}"
    )
    try:
        written = write_partition(
            plan, PlannedPartition.read(store, number), number, scratch, quarantine
        )
    finally:
        if quarantine.path.exists():
            store.upload(quarantine.path, key)
    for split in written.splits.values():
        for shard in split.shards:
            store.upload(scratch / shard.file, shard.file)
            (scratch / shard.file).unlink()
    store.upload(scratch / STATISTICS, partition_statistics_key(number))
    if written.has_keys:
        store.upload(scratch / _KEYS, partition_keys_key(number))
    return written


def write_partition(
    plan: Plan, planned: PlannedPartition, number: int, folder: Path, quarantine: Quarantine
) -> WrittenPartition:
    """Write the shards of one partition of ``plan``, and its statistics, into ``folder``.

    Raises:
        FinalError: too many records are rejected, or a key occurs twice; the message names them.
            Or there are more shards than records.
    """
    schema, rules = plan.schema, plan.rules
    shuffle = ExternalShuffle(folder, rules.seed)
    with quarantine:
        writer = BatchWriter(rules, shuffle, quarantine)
        for batch, schema in batches_of(plan, planned):
            writer.write(batch, schema)
        quarantine.check()
    shuffle.finish()
    _check_shards(plan.shards_per_partition, shuffle.records)
    has_keys = writer.has_keys and shuffle.records > 0
    if has_keys:
        check_unique(plan, planned, shuffle, folder / _KEYS)
    if rules.split_by["way"] == "stratified":
        _stratify(plan, shuffle, writer)
    splits = write_shards(shuffle, plan, number, folder, has_labels=writer.has_labels)
    (folder / STATISTICS).write_text(writer.statistics.to_json())
    return WrittenPartition(
        schema=schema if any(split.records for split in splits.values()) else None,
        splits=splits,
        has_keys=has_keys,
        rejected=quarantine.count,
        first_rejected=quarantine.first,
        rounded=writer.rounded,
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


def _stratify(plan: Plan, shuffle: ExternalShuffle, writer: BatchWriter) -> None:
    """Set the splits of all records, of which each class is divided by the shares."""
    splits = plan.rules.splits
    if len(plan.partitions) > 1 and not writer.has_keys:
        # An equal record in another partition must get the same split.
        shuffle.assign(lambda records: splits_of(records["hash"], splits))
        return
    counts: Counter[int] = Counter()
    for records in shuffle.attributes():
        strata, each = np.unique(records["stratum"], return_counts=True)
        counts.update(dict(zip(strata.tolist(), each.tolist(), strict=True)))
    stratifier = Stratifier(counts, splits)
    shuffle.assign(lambda records: stratifier.splits_of(records["stratum"], records["hash"]))
