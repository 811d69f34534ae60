"""The second step of ``prepare``: read the pieces of one part, write its shards, and say so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.contract.preparing import PartArguments
from aerotrain.dataset import Split
from aerotrain.prepare.assignment import splits_of
from aerotrain.prepare.duplicates import check_unique, write_keys
from aerotrain.prepare.intake import Intake, schema_of_columns
from aerotrain.prepare.layout import (
    Plan,
    PlannedPart,
    WrittenPart,
    part_key,
    part_keys_key,
    part_statistics_key,
    quarantine_key,
)
from aerotrain.prepare.memory import keep_freed_memory
from aerotrain.prepare.quarantine import Quarantine
from aerotrain.prepare.reuse import copy_known, remember
from aerotrain.prepare.scatter import Scatter, buckets_for
from aerotrain.prepare.shards import Cut, write_shards
from aerotrain.prepare.splitting import stratified
from aerotrain.replica import Replica
from aerotrain.sources import open_source
from aerotrain.statistics.summary import STATISTICS
from aerotrain.store import Store, open_store

#: The hashes of a part's keys, in its scratch folder.
KEYS = "keys"


def run(replica: Replica) -> dict[str, int]:
    """Write the shards of one part, unless they are written already.

    Returns:
        ``{"part": its number, "records": how many it has}``.

    Raises:
        FinalError: there is no such part, or more of its records cannot be taken than may be.
    """
    arguments = PartArguments.of(replica.job.arguments)
    store = open_store(arguments.dataset)
    number, key = arguments.part, part_key(arguments.part)
    plan = Plan.read(store)
    if not 0 <= number < len(plan.parts):
        raise FinalError(
            f"there is no part {number}; the plan of {store.url} has {len(plan.parts)}, from 0"
        )
    if store.exists(key):
        written = WrittenPart.from_json(store.get(key))
        print(f"part {number} is written already, with {written.records} records: skipped")
        return {"part": number, "records": written.records}
    keep_freed_memory()
    root = open_store(replica.job.store)
    known = copy_known(root, store, plan, number)
    written = known or _write(plan, number, store, replica.scratch)
    remember(root, store, plan, number)
    store.put(key, written.to_json().encode())
    how = "is copied from an earlier data set" if known else "is written"
    print(f"part {number} {how}: {written.records} records, {written.rejected} in quarantine")
    return {"part": number, "records": written.records}


def _write(plan: Plan, number: int, store: Store, scratch: Path) -> WrittenPart:
    """Write one part, and bring it to the store."""
    quarantine = Quarantine(scratch / "quarantine.jsonl", plan.rules.max_rejected)
    try:
        written = write_part(plan, PlannedPart.read(store, number), number, scratch, quarantine)
    finally:
        if quarantine.path.exists():
            store.upload(quarantine.path, quarantine_key(number))
    for split in written.splits.values():
        for shard in split.shards:
            store.upload(scratch / shard.file, shard.file)
            (scratch / shard.file).unlink()
    store.upload(scratch / STATISTICS, part_statistics_key(number))
    if written.has_keys:
        store.upload(scratch / KEYS, part_keys_key(number))
    return written


def write_part(
    plan: Plan, planned: PlannedPart, number: int, folder: Path, quarantine: Quarantine
) -> WrittenPart:
    """Write the shards of one part of ``plan``, and its statistics, into ``folder``.

    Raises:
        FinalError: too many records cannot be taken, or two have one key; it says which.
    """
    source = open_source(plan.source)
    schema = plan.schema
    buckets = buckets_for(planned.bytes)
    with quarantine, Scatter(folder, buckets, plan.rules.seed) as scatter:
        intake = Intake(plan.rules, scatter, quarantine)
        for piece in planned.pieces:
            for batch in source.read(piece, schema):
                schema = schema or schema_of_columns(batch, plan.rules)
                intake.take(batch, schema)
        quarantine.check()
        has_keys = intake.has_keys and scatter.facts is not None
        if has_keys:
            check_unique(plan, planned, scatter.hashes)
            write_keys(scatter.hashes, folder / KEYS)
        splits = _cut(plan, number, folder, scatter, intake)
        (folder / STATISTICS).write_text(intake.statistics.to_json())
    return WrittenPart(
        schema=schema if any(split.shards for split in splits.values()) else None,
        splits=splits,
        has_keys=has_keys,
        rejected=quarantine.count,
        first_rejected=quarantine.first,
    )


def _cut(
    plan: Plan, number: int, folder: Path, scatter: Scatter, intake: Intake
) -> dict[str, Split]:
    """Cut what the scatter holds into the shards of each split."""
    rules = plan.rules
    names = sorted(rules.splits)
    facts = scatter.facts
    if facts is None:
        return {name: Split() for name in names}
    if rules.split_by["way"] == "stratified":
        splits = (
            stratified(facts.strata, facts.hashes, rules.splits, plan.parts[number])
            if len(plan.parts) == 1 or intake.has_keys
            # An equal record in another part must go the same way.
            else splits_of(facts.hashes, rules.splits).astype(np.int8)
        )
        facts = replace(facts, splits=splits)
    cut = Cut(splits=names, part=number, least=plan.shards_per_part, shard_bytes=rules.shard_bytes)
    shards = write_shards(scatter, facts, cut, folder)
    classes = {
        name: _counted(facts.labels[facts.splits == split]) if intake.has_labels else {}
        for split, name in enumerate(names)
    }
    return {name: Split(shards=tuple(shards[name]), classes=classes[name]) for name in names}


def _counted(labels: NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
