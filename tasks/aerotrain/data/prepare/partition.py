"""The second step of ``prepare``: read the fragments of one partition and write its shards."""

import ctypes
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.contract.preparing import PartitionArguments
from aerotrain.data.dataset import STATISTICS, Split
from aerotrain.data.prepare.batch_writer import BatchWriter, batches_of
from aerotrain.data.prepare.duplicates import check_unique, write_keys
from aerotrain.data.prepare.layout import (
    Plan,
    PlannedPartition,
    WrittenPartition,
    known_partition_key,
    partition_key,
    partition_keys_key,
    partition_statistics_key,
    quarantine_key,
)
from aerotrain.data.prepare.quarantine import Quarantine
from aerotrain.data.prepare.shards import Attributes, ExternalShuffle, write_shards
from aerotrain.data.prepare.splitting import splits_of, stratified
from aerotrain.replica import Replica
from aerotrain.store import MissingError, Store, open_store

#: The file of a partition's key hashes in the scratch folder.
_KEYS = "keys"

#: Freed bytes that the process keeps; the arrays of one batch are a few times 4 MiB.
_KEPT_BYTES = 64 * 2**20

# https://man7.org/linux/man-pages/man3/mallopt.3.html
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def run(replica: Replica) -> dict[str, int]:
    """Write the shards of one partition, unless they are written already.

    Returns:
        ``{"partition": its number, "records": how many it has}``.

    Raises:
        FinalError: there is no such partition, or more than ``max_rejected`` records are
            rejected.
    """
    arguments = PartitionArguments.of(replica.job.arguments)
    store = open_store(arguments.dataset)
    number, key = arguments.partition, partition_key(arguments.partition)
    plan = Plan.read(store)
    if not 0 <= number < len(plan.partitions):
        raise FinalError(
            f"there is no partition {number}; the plan of {store.url} has "
            f"{len(plan.partitions)}, numbered from 0"
        )
    if store.exists(key):
        written = WrittenPartition.from_json(store.get(key))
        print(f"partition {number} is written already, with {written.records} records: skipped")
        return {"partition": number, "records": written.records}
    keep_freed_memory()
    root = open_store(replica.job.store)
    known = _copy_known(root, store, plan, number)
    written = known or _write(plan, number, store, replica.scratch)
    _remember(root, store, plan, number)
    store.put(key, written.to_json().encode())
    how = "is copied from an earlier data set" if known else "is written"
    print(f"partition {number} {how}: {written.records} records, {written.rejected} in quarantine")
    return {"partition": number, "records": written.records}


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
        old, number = f"datasets/{known['dataset']}", known["part"]
        new = f"datasets/{store.url.rpartition('/')[2]}"
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
    quarantine = Quarantine(scratch / "quarantine.jsonl", plan.rules.max_rejected)
    try:
        written = write_partition(
            plan, PlannedPartition.read(store, number), number, scratch, quarantine
        )
    finally:
        if quarantine.path.exists():
            store.upload(quarantine.path, quarantine_key(number))
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
    """
    schema = plan.schema
    with quarantine, ExternalShuffle(folder, planned.bytes, plan.rules.seed) as shuffle:
        writer = BatchWriter(plan.rules, shuffle, quarantine)
        for batch, schema in batches_of(plan, planned):
            writer.write(batch, schema)
        quarantine.check()
        attributes = shuffle.attributes
        has_keys = writer.has_keys and attributes is not None
        if attributes is not None and has_keys:
            check_unique(plan, planned, attributes.hashes)
            write_keys(attributes.hashes, folder / _KEYS)
        splits = _write_splits(plan, number, folder, attributes, writer)
        (folder / STATISTICS).write_text(writer.statistics.to_json())
    return WrittenPartition(
        schema=schema if attributes is not None else None,
        splits=splits,
        has_keys=has_keys,
        rejected=quarantine.count,
        first_rejected=quarantine.first,
    )


def _write_splits(
    plan: Plan, number: int, folder: Path, attributes: Attributes | None, writer: BatchWriter
) -> dict[str, Split]:
    """Write the shuffled records into the shards of each split."""
    rules = plan.rules
    names = sorted(rules.splits)
    if attributes is None:
        return {name: Split() for name in names}
    if rules.split_by["way"] == "stratified":
        splits = (
            stratified(attributes.strata, attributes.hashes, rules.splits)
            if len(plan.partitions) == 1 or writer.has_keys
            # An equal record in another partition must get the same split.
            else splits_of(attributes.hashes, rules.splits)
        )
        attributes = replace(attributes, splits=splits)
    shards = write_shards(writer.shuffle, attributes, plan, number, folder)
    classes = {
        name: _counted(attributes.labels[attributes.splits == split]) if writer.has_labels else {}
        for split, name in enumerate(names)
    }
    return {name: Split(shards=tuple(shards[name]), classes=classes[name]) for name in names}


def _counted(labels: NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
