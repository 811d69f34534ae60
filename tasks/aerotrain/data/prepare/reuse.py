"""Reuse of partitions that an earlier data set has: their shards are copied within the store."""

import json
from dataclasses import replace

from aerotrain.data.dataset import Split
from aerotrain.data.prepare.layout import (
    Plan,
    WrittenPartition,
    known_partition_key,
    partition_key,
    partition_keys_key,
    partition_statistics_key,
    quarantine_key,
)
from aerotrain.store import MissingError, Store


def remember(root: Store, store: Store, plan: Plan, partition: int) -> None:
    """Record at the top of the store where this partition was written."""
    where = {"dataset": store.url.rpartition("/")[2], "part": partition}
    root.put(known_partition_key(plan.partitions[partition]), (json.dumps(where) + "\n").encode())


def copy_known(root: Store, store: Store, plan: Plan, partition: int) -> WrittenPartition | None:
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
