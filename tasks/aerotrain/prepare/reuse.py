"""Parts that an earlier data set has too: their shards are copied within the store."""

import json
from dataclasses import replace

from aerotrain.dataset import Split
from aerotrain.prepare.layout import (
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
    """Note at the top of the store where this part was written."""
    where = {"dataset": store.url.rpartition("/")[2], "part": partition}
    root.put(known_partition_key(plan.partitions[partition]), (json.dumps(where) + "\n").encode())


def copy_known(root: Store, store: Store, plan: Plan, partition: int) -> WrittenPartition | None:
    """Copy the part from the data set that has it already; None where none has it whole.

    Names of shards tell the part's number, which may be another here.
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
        return None  # the earlier data set was deleted, or never got so far
    return replace(written, splits=splits)
