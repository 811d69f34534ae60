"""The last step of ``prepare``: check all partitions together and publish the manifest."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.layout import PAGE, SCHEMA, dataset_key
from aerotrain.contract.layout import STATISTICS as SUMMARY
from aerotrain.contract.preparing import FinalizeArguments
from aerotrain.contract.status import Drift
from aerotrain.data.dataset import (
    Dataset,
    Schema,
    Shard,
    Split,
    json_text,
    load_statistics,
    schema_from_dict,
    schema_to_dict,
)
from aerotrain.data.partitions import (
    Rejections,
    WrittenPartition,
    key_of,
    written_partitions,
)
from aerotrain.data.prepare.duplicates import KEYS, check_unique
from aerotrain.data.prepare.partition import STATISTICS
from aerotrain.data.prepare.plan import DatasetPlan, as_text, latest_of, set_latest
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.drift import check_changes, compared
from aerotrain.data.statistics.page import page
from aerotrain.data.statistics.splits import differences
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, Store, open_store
from aerotrain.store.manifest import each_of


def run(replica: Replica) -> str:
    """Finalize the data set, unless it is finalized already.

    Returns:
        The data set's URL, for ``load_dataset``.

    Raises:
        FinalError: a partition is missing, a key occurs twice, or the data drifted from the
            last data set.
    """
    store = open_store(FinalizeArguments.from_dict(replica.job.arguments).output)
    root = open_store(replica.job.store)
    plan = DatasetPlan.read(store)
    if store.exists(MANIFEST):
        set_latest(root, plan.rules.name, plan.fingerprint)
        print(f"already finalized: {store.url}")
        return store.url
    partitions, rejections = written_partitions(store, plan)
    with_keys = {n: each.records for n, each in enumerate(partitions) if KEYS in each.files}
    check_unique(store, plan, with_keys, replica.scratch)  # equal keys may leave a split empty
    dataset = replace(_merged(plan, partitions), rejected=rejections.count)
    if warnings := list(_rounding(partitions, dataset.schema)):
        print(as_text("warning: values are rounded:", warnings))
    plan = replace(plan, inferred=[*plan.inferred, *warnings])
    _write_statistics(root, store, plan, dataset, rejections)
    store.put(MANIFEST, dataset.to_json().encode())
    set_latest(root, plan.rules.name, plan.fingerprint)
    counts = ", ".join(f"{name} {split.records}" for name, split in dataset.splits.items())
    print(f"finalized {store.url}: {counts} records")
    return store.url


def _merged(plan: DatasetPlan, partitions: Sequence[WrittenPartition]) -> Dataset:
    """The data set that consists of these partitions, in the plan's order.

    Raises:
        FinalError: two partitions have different features, or a split has no record.
    """
    splits: dict[str, Split] = {}
    for name in plan.rules.splits:
        shards: list[Shard] = []
        classes: Counter[int] = Counter()
        for number, partition in enumerate(partitions):
            split = Split.from_dict(partition.about["splits"][name])
            shards += [replace(each, file=key_of(each.file, number)) for each in split.shards]
            classes.update(split.classes)
        splits[name] = Split(shards=tuple(shards), classes=dict(classes))
    if not any(split.records for split in splits.values()):
        raise FinalError(
            "the data set is empty: none of its partitions has a record; check that the input is "
            "where the source looks for it"
        )
    for name, split in splits.items():
        if not split.records:
            raise FinalError(
                f"the split {name!r} got no record with its share of {plan.rules.splits[name]:g}; "
                "give it a larger share, or prepare more data"
            )
    return Dataset(
        fingerprint=plan.fingerprint,
        source=plan.source,
        schema=_common_schema(partitions),
        label=plan.rules.label,
        splits=splits,
    )


def _common_schema(partitions: Sequence[WrittenPartition]) -> Schema:
    """The schema, which all partitions that have records must share."""
    found = [
        (n, schema_from_dict(p.about["schema"])) for n, p in enumerate(partitions) if p.records
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


def _rounding(partitions: Sequence[WrittenPartition], schema: Schema) -> Iterator[tuple[str, str]]:
    """A warning for each column of which the stored type changes some values much."""
    rounded: Counter[str] = Counter()
    for partition in partitions:
        rounded.update(partition.about["rounded"])
    for name, count in sorted(rounded.items()):
        text = f"microseconds cut off the nanoseconds of {counted(count, 'time')}"
        if schema[name].is_float:
            text = (
                f"float32 changes {counted(count, 'value')} by a half or more, or to 0; float64 in "
                "'types' of the source keeps them"
            )
        yield f"column {name}", text


def _write_statistics(
    root: Store, store: Store, plan: DatasetPlan, dataset: Dataset, rejections: Rejections
) -> None:
    """Write the page of the statistics, and the statistics, unless the data drifted.

    The page also shows the last finalized data set, and what has drifted since.

    Raises:
        FinalError: they drifted; the message is a table of the changes.
    """
    statistics = Statistics()
    keys = [key_of(STATISTICS, number) for number in range(len(plan.partitions))]
    for document in each_of(store.get, keys):
        statistics.merge(Statistics.from_json(document))
    summary = statistics.summary()
    for name, words in dataset.names.items():
        summary[name]["names"] = list(words)
    comparison = None
    if baseline := latest_of(root, plan.rules.name):
        url = f"{root.url}/{dataset_key(baseline)}"
        if before := load_statistics(url):
            comparison = compared(url, before, summary, plan.rules)
    shown = page(
        store.url,
        summary,
        dataset.splits,
        plan.inferred,
        comparison,
        dataset.label,
        rejections,
        differences(store, dataset, summary, plan.rules),
    )
    store.put(PAGE, shown.encode())
    if comparison:
        print(Drift(columns=len({each.column for each in comparison.changes})), flush=True)
        if not plan.rules.allow_drift:
            check_changes(comparison.changes, plan.rules.drift, f"{store.url}/{PAGE}")
    schema = schema_to_dict(dataset.schema)
    store.put(SCHEMA, (json.dumps(schema, indent=1) + "\n").encode())
    store.put(SUMMARY, (json_text(summary, indent=1) + "\n").encode())
