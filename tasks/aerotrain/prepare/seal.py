"""The last step of ``prepare``: the manifest, when every part is there."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from aerotrain.contract.errors import FinalError
from aerotrain.contract.preparing import SealArguments
from aerotrain.dataset import Dataset, Schema, Split
from aerotrain.prepare.duplicates import check_unique_in_all
from aerotrain.prepare.latest import set_latest
from aerotrain.prepare.layout import Plan, WrittenPart, folder_of, part_key, part_statistics_key
from aerotrain.prepare.quarantine import SHOWN, check_rejected
from aerotrain.replica import Replica
from aerotrain.sources import Rejected
from aerotrain.statistics.comparing import changes, check_changes
from aerotrain.statistics.dataset import Statistics, schema_text
from aerotrain.statistics.page import page
from aerotrain.statistics.summary import PAGE, SCHEMA, STATISTICS, load_statistics
from aerotrain.store import MANIFEST, MissingError, Store, open_store


def run(replica: Replica) -> str:
    """Seal the data set, unless it is sealed already.

    Returns:
        The data set's URL, for ``load_dataset``.

    Raises:
        FinalError: a part is missing, two records have one key, or the data are not like the last.
    """
    store = open_store(SealArguments.of(replica.job.arguments).dataset)
    root = open_store(replica.job.store)
    plan = Plan.read(store)
    if store.exists(MANIFEST):
        set_latest(root, plan.rules.name, plan.fingerprint)
        print(f"already sealed: {store.url}")
        return store.url
    parts = _written_parts(store, len(plan.parts))
    dataset = merge(plan, parts)
    check_rejected(*_rejected(parts), plan.rules.max_rejected)
    check_unique_in_all(store, plan, [part.records if part.has_keys else 0 for part in parts])
    describe(root, store, plan, dataset)
    store.put(MANIFEST, dataset.to_json().encode())
    set_latest(root, plan.rules.name, plan.fingerprint)
    counts = ", ".join(f"{name} {split.records}" for name, split in dataset.splits.items())
    print(f"sealed {store.url}: {counts} records")
    return store.url


def describe(root: Store, store: Store, plan: Plan, dataset: Dataset) -> None:
    """Write what the data are like, unless they are not like those that were sealed last.

    Raises:
        FinalError: they are not; the message is a table of what changed.
    """
    statistics = Statistics()
    for number in range(len(plan.parts)):
        statistics.merge(Statistics.from_json(store.get(part_statistics_key(number))))
    summary = statistics.summary()
    before = load_statistics(f"{root.url}/{folder_of(plan.baseline)}") if plan.baseline else {}
    if before and not plan.rules.allow_drift:
        check_changes(changes(before, summary, plan.rules.drift), plan.rules.drift)
    store.put(SCHEMA, schema_text(statistics.schema()).encode())
    store.put(PAGE, page(store.url, summary, dataset.splits).encode())
    store.put(STATISTICS, (json.dumps(summary, indent=1) + "\n").encode())


def merge(plan: Plan, parts: Sequence[WrittenPart]) -> Dataset:
    """The data set that these parts, in the plan's order, are together.

    Raises:
        FinalError: two parts have other features, or a split has no record.
    """
    shares = plan.rules.splits
    splits = {name: _merged([part.splits[name] for part in parts]) for name in shares}
    _check_filled(splits, shares)
    return Dataset(
        fingerprint=plan.fingerprint,
        source=plan.source,
        schema=_schema(parts),
        splits=splits,
    )


def _rejected(parts: Sequence[WrittenPart]) -> tuple[int, list[Rejected]]:
    """How many records no part took, and the first of them."""
    return sum(part.rejected for part in parts), [
        each for part in parts for each in part.first_rejected
    ][:SHOWN]


def _check_filled(splits: Mapping[str, Split], shares: Mapping[str, float]) -> None:
    """Refuse a data set, or a split of it, that has no record."""
    if not any(split.records for split in splits.values()):
        raise FinalError(
            "the data set is empty: none of its parts has a record; see whether its input is "
            "where the source looks for it"
        )
    for name, split in splits.items():
        if not split.records:
            raise FinalError(
                f"the split {name!r} got no record with its share of {shares[name]:g}; give it a "
                "larger share, or prepare more data"
            )


def _written_parts(store: Store, count: int) -> list[WrittenPart]:
    written, missing = [], []
    for number in range(count):
        try:
            written.append(WrittenPart.from_json(store.get(part_key(number))))
        except MissingError:
            missing.append(str(number))
    if missing:
        raise FinalError(
            f"{len(missing)} of {count} parts of {store.url} are not written: part "
            f"{', '.join(missing)}; run aerotrain.prepare.part for each, then seal again"
        )
    return written


def _merged(splits: Sequence[Split]) -> Split:
    classes: Counter[int] = Counter()
    for split in splits:
        classes.update(split.classes)
    return Split(
        shards=tuple(shard for split in splits for shard in split.shards),
        classes=dict(classes),
    )


def _schema(parts: Sequence[WrittenPart]) -> Schema:
    """The one schema of all parts that have records."""
    first, schema = next(
        (number, part.schema) for number, part in enumerate(parts) if part.schema is not None
    )
    for number, part in enumerate(parts):
        if part.schema is not None and part.schema != schema:
            raise FinalError(
                f"the records of part {number} have {_described(part.schema)}, those of part "
                f"{first} have {_described(schema)}; give all parts the same features"
            )
    return schema


def _described(schema: Schema) -> str:
    return ", ".join(f"{name!r} ({feature})" for name, feature in sorted(schema.items()))
