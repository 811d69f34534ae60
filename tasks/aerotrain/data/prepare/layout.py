"""The store layout of a data set in preparation: keys, and the documents that lie there.

In the folder ``datasets/<fingerprint>/``: ``plan.json`` and, for each partition,
``plan/00003.json`` with its fragments come first; ``parts/00003.json`` when the shards of that
partition are written, with ``parts/00003.statistics.json``, ``parts/00003.shuffle-keys`` and
``quarantine/00003.jsonl``; ``manifest.json`` comes last. At the top of the store,
``parts/<fingerprint of a partition>.json`` says where that partition was written, and
``latest/<name>.json`` which data set was finalized last.

In the documents, a partition is a "part" and a fragment a "piece".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PARTS, PLAN, QUARANTINE, latest_key
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import VERSION, Schema, Split, schema_from_dict, schema_to_dict
from aerotrain.data.hashing import fingerprint_of
from aerotrain.data.prepare.inferred import Facts
from aerotrain.data.sources import Rejected
from aerotrain.store import MissingError, Store
from aerotrain.store.manifest import each_of


def fragments_key(partition: int) -> str:
    """The key of the document that lists the partition's fragments."""
    return f"plan/{partition:05d}.json"


def partition_key(partition: int) -> str:
    """The key of the document that exists once all shards of the partition are written."""
    return f"{PARTS}/{partition:05d}.json"


def partition_statistics_key(partition: int) -> str:
    """The key of the statistics of the partition's records."""
    return f"{PARTS}/{partition:05d}.statistics.json"


def partition_keys_key(partition: int) -> str:
    """The key of the partition's sorted key hashes, 8 bytes each, if its records have keys."""
    return f"{PARTS}/{partition:05d}.shuffle-keys"


def shard_key(split: str, partition: int, shard: int) -> str:
    """The key of a partition's shard, such as ``train-00003-000.tfrecord``."""
    return f"{split}-{partition:05d}-{shard:03d}.tfrecord"


def quarantine_key(partition: int) -> str:
    """The key of the partition's rejected records, as JSON lines."""
    return f"{QUARANTINE}{partition:05d}.jsonl"


def known_partition_key(fingerprint: str) -> str:
    """The key, at the top of the store, of the place where that partition was written."""
    return f"{PARTS}/{fingerprint}.json"


def latest_of(root: Store, name: str) -> str | None:
    """The fingerprint of the data set of that name that was finalized last: the drift baseline."""
    try:
        fingerprint: str = json.loads(root.get(latest_key(name)))["fingerprint"]
    except MissingError:
        return None
    return fingerprint


def set_latest(root: Store, name: str, fingerprint: str) -> None:
    """Make this data set the baseline of later ones."""
    if latest_of(root, name) != fingerprint:
        root.put(latest_key(name), (json.dumps({"fingerprint": fingerprint}) + "\n").encode())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be written: the source, as it was when it was listed, and the rules.

    ``schema`` is None if it is known only once records are read. ``partitions`` are the
    fingerprints of the partitions, ``baseline`` that of the data set finalized before, if any.
    ``inferred`` is what is shown of the source.
    """

    source: Mapping[str, Any]
    schema: Schema | None
    rules: PlanArguments
    partitions: tuple[str, ...]
    shards_per_partition: int
    baseline: str | None = None
    inferred: Facts = ()
    version: int = VERSION

    @property
    def fingerprint(self) -> str:
        """The data set's name: a hash of everything that decides what is written."""
        return fingerprint_of(
            [
                self.version,
                dict(self.source),
                self._written_schema(),
                content_rules(self.rules),
                self.partitions,
            ]
        )

    def _written_schema(self) -> dict[str, Any] | None:
        return None if self.schema is None else schema_to_dict(self.schema)

    def to_json(self) -> str:
        document = {
            "version": self.version,
            "source": dict(self.source),
            "schema": self._written_schema(),
            "rules": asdict(self.rules),
            "parts": list(self.partitions),
            "shards_per_part": self.shards_per_partition,
            "baseline": self.baseline,
            "inferred": self.inferred,
        }
        return json.dumps(document, sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, store: Store) -> Self:
        """The plan of the data set in ``store``.

        Raises:
            FinalError: it was not planned, or planned by another version of aerotrain.
        """
        try:
            data = json.loads(store.get(PLAN))
        except MissingError as error:
            raise FinalError(
                f"no data set is planned at {store.url}; run prepare for its source"
            ) from error
        if data["version"] != VERSION:
            raise FinalError(
                f"the data set at {store.url} was planned for version {data['version']} of the "
                f"format, this is version {VERSION}; plan it again"
            )
        return cls(
            source=data["source"],
            schema=None if data["schema"] is None else schema_from_dict(data["schema"]),
            rules=PlanArguments.from_dict(data["rules"]),
            partitions=tuple(data["parts"]),
            shards_per_partition=data["shards_per_part"],
            baseline=data["baseline"],
            inferred=data.get("inferred", []),
        )


def numbers_of_task(
    store: Store, first: int, count: int, planned: int
) -> tuple[range, frozenset[int]]:
    """The numbers of ``count`` of ``planned`` partitions, and those of them that are written.

    Raises:
        FinalError: there are no such partitions.
    """
    numbers = range(first, first + count)
    if not 0 <= numbers.start < numbers.stop <= planned:
        raise FinalError(
            f"there are no partitions {numbers.start} to {numbers.stop - 1}; the plan of "
            f"{store.url} has {planned}, numbered from 0"
        )
    exist = each_of(store.exists, map(partition_key, numbers))
    done = frozenset(number for number, exists in zip(numbers, exist, strict=True) if exists)
    if done:
        print(f"{len(done)} of {len(numbers)} partitions are written already: skipped")
    return numbers, done


def content_rules(rules: PlanArguments) -> dict[str, Any]:
    """The rules that decide the bytes of the shards."""
    names = ("splits", "split_by", "key", "label", "fill", "ranges", "seed", "shard_bytes")
    data = asdict(rules)
    return {name: data[name] for name in names} | {"shards": rules.shards}


@dataclass(frozen=True, kw_only=True)
class PlannedPartition:
    """The fragments of one partition."""

    fragments: Sequence[Mapping[str, Any]]

    def to_json(self) -> str:
        return json.dumps({"pieces": list(self.fragments)}) + "\n"

    @classmethod
    def read(cls, store: Store, partition: int) -> Self:
        data = json.loads(store.get(fragments_key(partition)))
        return cls(fragments=data["pieces"])


@dataclass(frozen=True, kw_only=True)
class WrittenPartition:
    """The result of one partition: its shards, and its schema, None if it had no record.

    ``rejected`` counts the rejected records, ``first_rejected`` are some of them. ``has_keys``
    says whether the records have keys, whose hashes are then stored as well. ``rounded`` counts
    the values of each column that float32 changes much.
    """

    schema: Schema | None
    splits: Mapping[str, Split]
    has_keys: bool = False
    rejected: int = 0
    first_rejected: Sequence[Rejected] = field(default=())
    rounded: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(split.records for split in self.splits.values())

    def to_json(self) -> str:
        document = {
            "schema": None if self.schema is None else schema_to_dict(self.schema),
            "splits": {name: split.to_dict() for name, split in self.splits.items()},
            "has_keys": self.has_keys,
            "rejected": self.rejected,
            "first_rejected": [asdict(each) for each in self.first_rejected],
            "rounded": dict(self.rounded),
        }
        return json.dumps(document, sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        return cls(
            schema=None if data["schema"] is None else schema_from_dict(data["schema"]),
            splits={name: Split.from_dict(split) for name, split in data["splits"].items()},
            has_keys=data["has_keys"],
            rejected=data["rejected"],
            first_rejected=[Rejected(**each) for each in data["first_rejected"]],
            rounded=data.get("rounded", {}),
        )
