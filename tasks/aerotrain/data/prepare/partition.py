"""The second step of ``prepare``: read the fragments of one partition and write its shards."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.contract.preparing import PartitionArguments
from aerotrain.data.dataset import Split
from aerotrain.data.prepare.assignment import splits_of
from aerotrain.data.prepare.batch_writer import BatchWriter, schema_of_columns
from aerotrain.data.prepare.duplicates import check_unique, write_keys
from aerotrain.data.prepare.external_shuffle import ExternalShuffle, buckets_for
from aerotrain.data.prepare.layout import (
    Plan,
    PlannedPartition,
    WrittenPartition,
    partition_key,
    partition_keys_key,
    partition_statistics_key,
    quarantine_key,
)
from aerotrain.data.prepare.memory import keep_freed_memory
from aerotrain.data.prepare.quarantine import Quarantine
from aerotrain.data.prepare.reuse import copy_known, remember
from aerotrain.data.prepare.shards import Cut, write_shards
from aerotrain.data.prepare.splitting import stratified
from aerotrain.data.sources import open_source
from aerotrain.data.statistics.summary import STATISTICS
from aerotrain.replica import Replica
from aerotrain.store import Store, open_store

#: The file of a partition's key hashes in the scratch folder.
KEYS = "keys"


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
    known = copy_known(root, store, plan, number)
    written = known or _write(plan, number, store, replica.scratch)
    remember(root, store, plan, number)
    store.put(key, written.to_json().encode())
    how = "is copied from an earlier data set" if known else "is written"
    print(f"partition {number} {how}: {written.records} records, {written.rejected} in quarantine")
    return {"partition": number, "records": written.records}


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
        store.upload(scratch / KEYS, partition_keys_key(number))
    return written


def write_partition(
    plan: Plan, planned: PlannedPartition, number: int, folder: Path, quarantine: Quarantine
) -> WrittenPartition:
    """Write the shards of one partition of ``plan``, and its statistics, into ``folder``.

    Raises:
        FinalError: too many records are rejected, or a key occurs twice; the message names them.
    """
    source = open_source(plan.source)
    schema = plan.schema
    buckets = buckets_for(planned.bytes)
    with quarantine, ExternalShuffle(folder, buckets, plan.rules.seed) as shuffle:
        writer = BatchWriter(plan.rules, shuffle, quarantine)
        for fragment in planned.fragments:
            for batch in source.read(fragment, schema):
                schema = schema or schema_of_columns(batch, plan.rules)
                writer.write(batch, schema)
        quarantine.check()
        has_keys = writer.has_keys and shuffle.facts is not None
        if has_keys:
            check_unique(plan, planned, shuffle.hashes)
            write_keys(shuffle.hashes, folder / KEYS)
        splits = _cut(plan, number, folder, shuffle, writer)
        (folder / STATISTICS).write_text(writer.statistics.to_json())
    return WrittenPartition(
        schema=schema if any(split.shards for split in splits.values()) else None,
        splits=splits,
        has_keys=has_keys,
        rejected=quarantine.count,
        first_rejected=quarantine.first,
    )


def _cut(
    plan: Plan, number: int, folder: Path, shuffle: ExternalShuffle, writer: BatchWriter
) -> dict[str, Split]:
    """Write the shuffled records into the shards of each split."""
    rules = plan.rules
    names = sorted(rules.splits)
    facts = shuffle.facts
    if facts is None:
        return {name: Split() for name in names}
    if rules.split_by["way"] == "stratified":
        splits = (
            stratified(facts.strata, facts.hashes, rules.splits, plan.partitions[number])
            if len(plan.partitions) == 1 or writer.has_keys
            # An equal record in another partition must get the same split.
            else splits_of(facts.hashes, rules.splits).astype(np.int8)
        )
        facts = replace(facts, splits=splits)
    cut = Cut(
        splits=names,
        partition=number,
        least=plan.shards_per_partition,
        shard_bytes=rules.shard_bytes,
    )
    shards = write_shards(shuffle, facts, cut, folder)
    classes = {
        name: _counted(facts.labels[facts.splits == split]) if writer.has_labels else {}
        for split, name in enumerate(names)
    }
    return {name: Split(shards=tuple(shards[name]), classes=classes[name]) for name in names}


def _counted(labels: NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
