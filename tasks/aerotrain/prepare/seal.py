"""The last step of ``prepare``: the manifest, when every part is there."""

from collections import Counter
from collections.abc import Mapping, Sequence

from aerotrain.contract.errors import FinalError
from aerotrain.contract.steps import SealArguments
from aerotrain.dataset import Dataset, Schema, Split
from aerotrain.prepare.layout import Plan, WrittenPart, part_key
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, MissingError, Store, open_store


def run(replica: Replica) -> str:
    """Seal the data set, unless it is sealed already.

    Returns:
        The data set's URL, for ``load_dataset``.

    Raises:
        FinalError: a part is missing, or what is there cannot be read in the planned way.
    """
    store = open_store(SealArguments.of(replica.job.arguments).dataset)
    if store.exists(MANIFEST):
        print(f"already sealed: {store.url}")
        return store.url
    plan = Plan.read(store)
    dataset = merge(plan, _written_parts(store, len(plan.parts)))
    store.put(MANIFEST, dataset.to_json().encode())
    counts = ", ".join(f"{name} {split.records}" for name, split in dataset.splits.items())
    print(f"sealed {store.url}: {counts} records")
    return store.url


def merge(plan: Plan, parts: Sequence[WrittenPart]) -> Dataset:
    """The data set that these parts, in the plan's order, are together.

    Raises:
        FinalError: two parts have other features, or a split has no record.
    """
    splits = {name: _merged([part.splits[name] for part in parts]) for name in plan.splits}
    _check_filled(splits, plan.splits)
    return Dataset(
        fingerprint=plan.fingerprint,
        source=plan.source,
        schema=_schema(parts),
        splits=splits,
    )


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
