"""The last step of ``prepare``: check all partitions together and publish the manifest."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PAGE, PICTURES, QUARANTINE, SCHEMA, STATISTICS, dataset_key
from aerotrain.contract.preparing import FinalizeArguments
from aerotrain.contract.status import Drift
from aerotrain.data.dataset import (
    Dataset,
    Schema,
    Split,
    json_text,
    load_dataset,
    load_pictures,
    load_statistics,
    schema_to_dict,
)
from aerotrain.data.prepare.duplicates import check_unique_across
from aerotrain.data.prepare.inferred import as_text, rounding
from aerotrain.data.prepare.layout import (
    Plan,
    WrittenPartition,
    partition_key,
    partition_statistics_key,
    quarantine_key,
    set_latest,
)
from aerotrain.data.prepare.quarantine import SHOWN, check_rejected
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.drift import check_changes
from aerotrain.data.statistics.page import DataComparison, Described, Rejections, page
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, MissingError, Store, open_store
from aerotrain.store.manifest import each_of


def run(replica: Replica) -> str:
    """Finalize the data set, unless it is finalized already.

    Returns:
        The data set's URL, for ``load_dataset``.

    Raises:
        FinalError: a partition is missing, a key occurs twice, or the data drifted from the
            last data set.
    """
    store = open_store(FinalizeArguments.from_dict(replica.job.arguments).dataset)
    root = open_store(replica.job.store)
    plan = Plan.read(store)
    if store.exists(MANIFEST):
        set_latest(root, plan.rules.name, plan.fingerprint)
        print(f"already finalized: {store.url}")
        return store.url
    partitions = written_partitions(store, plan)
    dataset = merge_partitions(plan, partitions)
    rejected = rejections_of(store, partitions)
    check_rejected(rejected.count, rejected.first, plan.rules.max_rejected, rejected.url)
    check_unique_across(
        store, plan, [partition.records if partition.has_keys else 0 for partition in partitions]
    )
    rounded: Counter[str] = Counter()
    for partition in partitions:
        rounded.update(partition.rounded)
    if warnings := rounding(rounded, dataset.schema):
        print(as_text("warning: values are rounded:", warnings))
    plan = replace(plan, inferred=[*plan.inferred, *warnings])
    write_statistics(root, store, plan, dataset, rejected)
    store.put(MANIFEST, dataset.to_json().encode())
    set_latest(root, plan.rules.name, plan.fingerprint)
    counts = ", ".join(f"{name} {split.records}" for name, split in dataset.splits.items())
    print(f"finalized {store.url}: {counts} records")
    return store.url


def write_statistics(
    root: Store, store: Store, plan: Plan, dataset: Dataset, rejected: Rejections
) -> None:
    """Write the page of the statistics, and the statistics, unless the data drifted.

    The page also shows the last finalized data set, and what has drifted since.

    Raises:
        FinalError: they drifted; the message is a table of the changes.
    """
    statistics = Statistics()
    keys = map(partition_statistics_key, range(len(plan.partitions)))
    for document in each_of(store.get, keys):
        statistics.merge(Statistics.from_json(document))
    summary, pictures = statistics.summary(), statistics.pictures()
    for name, words in dataset.names.items():
        summary[name]["names"] = list(words)
    now = Described(url=store.url, summary=summary, pictures=pictures)
    comparison = _compared(root, plan, now)
    shown = page(now, dataset.splits, plan.inferred, comparison, dataset.label, rejected)
    store.put(PAGE, shown.encode())
    if comparison:
        print(Drift(columns=len({each.column for each in comparison.changes})), flush=True)
    if comparison and not plan.rules.allow_drift:
        check_changes(comparison.changes, plan.rules.drift, f"{store.url}/{PAGE}")
    schema = schema_to_dict(dataset.schema)
    store.put(SCHEMA, (json.dumps(schema, indent=1) + "\n").encode())
    if pictures:
        store.put(PICTURES, json.dumps(pictures).encode())
    store.put(STATISTICS, (json_text(summary, indent=1) + "\n").encode())


def _compared(root: Store, plan: Plan, now: Described) -> DataComparison | None:
    """The comparison with the data set that was finalized last; None if there is none."""
    if not plan.baseline:
        return None
    url = f"{root.url}/{dataset_key(plan.baseline)}"
    summary = load_statistics(url)
    before = Described(url=url, summary=summary, pictures=load_pictures(url))
    return DataComparison.of(before, now, plan.rules) if summary else None


def merge_partitions(plan: Plan, partitions: Sequence[WrittenPartition]) -> Dataset:
    """The data set that consists of these partitions, in the plan's order.

    Raises:
        FinalError: two partitions have different features, or a split has no record.
    """
    shares = plan.rules.splits
    splits = {
        name: _merge_splits([partition.splits[name] for partition in partitions]) for name in shares
    }
    _check_not_empty(splits, shares)
    return Dataset(
        fingerprint=plan.fingerprint,
        source=plan.source,
        schema=_schema(partitions),
        label=plan.rules.label,
        splits=splits,
    )


def rejections_of(store: Store, partitions: Sequence[WrittenPartition]) -> Rejections:
    """What was rejected of the data set in ``store``."""
    of = [number for number, each in enumerate(partitions) if each.rejected]
    return Rejections(
        count=sum(each.rejected for each in partitions),
        first=[each for partition in partitions for each in partition.first_rejected][:SHOWN],
        url=f"{store.url}/{quarantine_key(of[0]) if len(of) == 1 else QUARANTINE}",
    )


def _check_not_empty(splits: Mapping[str, Split], shares: Mapping[str, float]) -> None:
    """Check that the data set, and each of its splits, has a record."""
    if not any(split.records for split in splits.values()):
        raise FinalError(
            "the data set is empty: none of its partitions has a record; check that the input is "
            "where the source looks for it"
        )
    for name, split in splits.items():
        if not split.records:
            raise FinalError(
                f"the split {name!r} got no record with its share of {shares[name]:g}; give it a "
                "larger share, or prepare more data"
            )


def written_partitions(store: Store, plan: Plan) -> list[WrittenPartition]:
    """What was written of each partition of the plan.

    Raises:
        FinalError: some are not written.
    """
    count = len(plan.partitions)
    found = list(each_of(lambda number: _written_partition(store, number), range(count)))
    written = [each for each in found if each is not None]
    if len(written) < count:
        missing = [str(number) for number, each in enumerate(found) if each is None]
        rest = ", …" if len(missing) > SHOWN else ""
        raise FinalError(
            f"{len(missing)} of {count} partitions of {store.url} are not written: "
            f"{', '.join(missing[:SHOWN])}{rest}; run prepare again with the same source; "
            "the partitions that are written are kept"
        )
    return written


def _written_partition(store: Store, number: int) -> WrittenPartition | None:
    try:
        return WrittenPartition.from_json(store.get(partition_key(number)))
    except MissingError:
        return None


def _merge_splits(splits: Sequence[Split]) -> Split:
    classes: Counter[int] = Counter()
    for split in splits:
        classes.update(split.classes)
    return Split(
        shards=tuple(shard for split in splits for shard in split.shards),
        classes=dict(classes),
    )


def _schema(partitions: Sequence[WrittenPartition]) -> Schema:
    """The schema, which all partitions that have records must share."""
    found = [
        (number, partition.schema)
        for number, partition in enumerate(partitions)
        if partition.schema is not None
    ]
    first, schema = found[0]
    for number, other in found:
        if other != schema:
            raise FinalError(
                f"the records of partition {number} have {_features(other)}, those of partition "
                f"{first} have {_features(schema)}; give all records the same features"
            )
    return schema


def _features(schema: Schema) -> str:
    return ", ".join(f"{name!r} ({feature})" for name, feature in sorted(schema.items()))


def page_of_two(before: str, now: str) -> str:
    """The page of the data set at ``now``, compared with the one at ``before``.

    Columns are compared by the rules with which ``now`` was prepared.

    Raises:
        FinalError: one of them has no statistics, or is of another version.
        MissingError: one of them is not finished.
    """
    load_dataset(before)
    dataset, store = load_dataset(now), open_store(now)
    plan = Plan.read(store)
    described = _described(now)
    comparison = DataComparison.of(_described(before), described, plan.rules)
    rejected = rejections_of(store, written_partitions(store, plan))
    return page(described, dataset.splits, plan.inferred, comparison, dataset.label, rejected)


def _described(url: str) -> Described:
    summary = load_statistics(url)
    if not summary:
        raise FinalError(f"the data set at {url} has no statistics; prepare it again")
    return Described(url=url, summary=summary, pictures=load_pictures(url))
