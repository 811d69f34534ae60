"""A data set under way: where its documents lie in the store, and what they say.

In the folder ``datasets/<fingerprint>/``: ``plan.json`` and, for each part, ``plan/00003.json``
with its pieces come first; ``parts/00003.json`` when that part's shards are written, with
``parts/00003.statistics.json``, ``parts/00003.keys`` and ``quarantine/00003.jsonl`` beside it;
``manifest.json`` last. ``parts/<fingerprint of the part>.json`` at the top of the store tells
where such a part was written before, and ``latest/<name>.json`` which data set was sealed last.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.preparing import PlanArguments
from aerotrain.dataset import VERSION, Schema, Split, schema_from_dict, schema_to_dict
from aerotrain.sources import Rejected
from aerotrain.store import MissingError, Store

PLAN = "plan.json"


def folder_of(fingerprint: str) -> str:
    """Where a pipeline's store keeps the data set of that fingerprint."""
    return f"datasets/{fingerprint}"


def fragments_key(partition: int) -> str:
    """What names the pieces that this part is made of."""
    return f"plan/{partition:05d}.json"


def partition_key(partition: int) -> str:
    """What says that this part's shards are all written."""
    return f"parts/{partition:05d}.json"


def partition_statistics_key(partition: int) -> str:
    """What was counted of this part's records."""
    return f"parts/{partition:05d}.statistics.json"


def partition_keys_key(partition: int) -> str:
    """The sorted hashes of the keys of this part's records, 8 bytes each, where they have keys."""
    return f"parts/{partition:05d}.keys"


def quarantine_key(partition: int) -> str:
    """The records of this part that were not taken, a JSON object a line."""
    return f"quarantine/{partition:05d}.jsonl"


def known_partition_key(fingerprint: str) -> str:
    """At the top of the store: where a part of that fingerprint was written."""
    return f"parts/{fingerprint}.json"


def fingerprint_of(description: Any) -> str:
    """A short name for a JSON value: equal values, equal names."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be written: the source with all that was settled of it, and by which rules.

    ``schema`` is None where only reading the records shows it. ``partitions`` are the fingerprints
    of the parts, ``baseline`` the data set that was sealed before, if any.
    """

    source: Mapping[str, Any]
    schema: Schema | None
    rules: PlanArguments
    partitions: tuple[str, ...]
    shards_per_partition: int
    baseline: str | None = None
    version: int = VERSION

    @property
    def fingerprint(self) -> str:
        """The data set's name, made of all that decides what is written."""
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
        }
        return json.dumps(document, sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, store: Store) -> Self:
        """The plan of the data set in ``store``.

        Raises:
            FinalError: it was not planned, or by another version of aerotrain.
        """
        try:
            data = json.loads(store.get(PLAN))
        except MissingError as error:
            raise FinalError(
                f"no data set is planned at {store.url}; run aerotrain.prepare.plan first"
            ) from error
        if data["version"] != VERSION:
            raise FinalError(
                f"the data set at {store.url} was planned for version {data['version']} of the "
                f"format, this is version {VERSION}; plan it again"
            )
        return cls(
            source=data["source"],
            schema=None if data["schema"] is None else schema_from_dict(data["schema"]),
            rules=PlanArguments.of(data["rules"]),
            partitions=tuple(data["parts"]),
            shards_per_partition=data["shards_per_part"],
            baseline=data["baseline"],
        )


def content_rules(rules: PlanArguments) -> dict[str, Any]:
    """Of the rules those that decide the bytes of the shards."""
    names = ("splits", "split_by", "key", "label", "fill", "ranges", "seed", "shard_bytes")
    data = asdict(rules)
    return {name: data[name] for name in names} | {"shards": rules.shards}


@dataclass(frozen=True, kw_only=True)
class PlannedPartition:
    """The pieces that one part is made of, and about how many bytes its records take."""

    fragments: Sequence[Mapping[str, Any]]
    bytes: int | None

    def to_json(self) -> str:
        return json.dumps({"bytes": self.bytes, "pieces": list(self.fragments)}) + "\n"

    @classmethod
    def read(cls, store: Store, partition: int) -> Self:
        data = json.loads(store.get(fragments_key(partition)))
        return cls(fragments=data["pieces"], bytes=data["bytes"])


@dataclass(frozen=True, kw_only=True)
class WrittenPartition:
    """What one part has come to: its schema, None where it had no record, and its shards.

    ``rejected`` counts the records that were not taken, ``first_rejected`` are some of them.
    ``has_keys`` tells whether the records have keys, and these lie beside.
    """

    schema: Schema | None
    splits: Mapping[str, Split]
    has_keys: bool = False
    rejected: int = 0
    first_rejected: Sequence[Rejected] = field(default=())

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
        )
