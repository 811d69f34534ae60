"""Parts that an earlier data set has too: their shards are copied within the store."""

import json
from dataclasses import replace

from aerotrain.dataset import Split
from aerotrain.prepare.layout import (
    Plan,
    WrittenPart,
    known_part_key,
    part_key,
    part_keys_key,
    part_statistics_key,
    quarantine_key,
)
from aerotrain.store import MissingError, Store


def remember(root: Store, store: Store, plan: Plan, part: int) -> None:
    """Note at the top of the store where this part was written."""
    where = {"dataset": store.url.rpartition("/")[2], "part": part}
    root.put(known_part_key(plan.parts[part]), (json.dumps(where) + "\n").encode())


def copy_known(root: Store, store: Store, plan: Plan, part: int) -> WrittenPart | None:
    """Copy the part from the data set that has it already; None where none has it whole.

    Names of shards tell the part's number, which may be another here.
    """
    try:
        known = json.loads(root.get(known_part_key(plan.parts[part])))
        old, number = f"datasets/{known['dataset']}", known["part"]
        new = f"datasets/{store.url.rpartition('/')[2]}"
        written = WrittenPart.from_json(root.get(f"{old}/{part_key(number)}"))
        splits = {}
        for name, split in written.splits.items():
            shards = []
            for shard in split.shards:
                file = shard.file.replace(f"-{number:05d}-", f"-{part:05d}-", 1)
                root.copy(f"{old}/{shard.file}", f"{new}/{file}")
                shards.append(replace(shard, file=file))
            splits[name] = Split(shards=tuple(shards), classes=split.classes)
        root.copy(f"{old}/{part_statistics_key(number)}", f"{new}/{part_statistics_key(part)}")
        if written.has_keys:
            root.copy(f"{old}/{part_keys_key(number)}", f"{new}/{part_keys_key(part)}")
        if written.rejected:
            root.copy(f"{old}/{quarantine_key(number)}", f"{new}/{quarantine_key(part)}")
    except MissingError:
        return None  # the earlier data set was deleted, or never got so far
    return replace(written, splits=splits)
