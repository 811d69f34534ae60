"""A data set under way: where its documents lie in the store, and what they say.

``datasets/<fingerprint>/plan.json`` comes first, ``parts/00003.json`` when that part's shards
are written, ``manifest.json`` last. Only ``prepare`` reads the first two.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import VERSION, Schema, Split, schema_from_dict, schema_to_dict
from aerotrain.store import MissingError, Store

PLAN = "plan.json"


def folder_of(fingerprint: str) -> str:
    """Where a pipeline's store keeps the data set of that fingerprint."""
    return f"datasets/{fingerprint}"


def part_key(part: int) -> str:
    """What says that this part's shards are all written."""
    return f"parts/{part:05d}.json"


def fingerprint_of(description: Any) -> str:
    """A short name for a JSON value: equal values, equal names."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be written: the parts of a source, each into so many shards of each split."""

    source: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...]
    fingerprint: str
    splits: Mapping[str, float]
    shards_per_part: int
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

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
        return cls(**{**data, "parts": tuple(data["parts"])})


@dataclass(frozen=True, kw_only=True)
class WrittenPart:
    """What one part has come to: its schema, None where it had no record, and its shards."""

    schema: Schema | None
    splits: Mapping[str, Split]

    @property
    def records(self) -> int:
        return sum(split.records for split in self.splits.values())

    def to_json(self) -> str:
        document = {
            "schema": None if self.schema is None else schema_to_dict(self.schema),
            "splits": {name: split.to_dict() for name, split in self.splits.items()},
        }
        return json.dumps(document, sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        return cls(
            schema=None if data["schema"] is None else schema_from_dict(data["schema"]),
            splits={name: Split.from_dict(split) for name, split in data["splits"].items()},
        )
