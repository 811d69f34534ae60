"""What readers of a data set see: its manifest with schema, splits and shards, its statistics."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import STATISTICS
from aerotrain.store import MANIFEST, MissingError, Store, open_store

VERSION = 1

#: The split on which models are trained, and the one on which they are measured meanwhile.
TRAIN_SPLIT, VALIDATION_SPLIT = "train", "validation"

#: The statistics of a column that are numbers, perhaps infinite or NaN.
_NUMBERS = ("min", "max", "mean", "std")


@dataclass(frozen=True)
class Feature:
    """One feature of every record: its dtype, by TensorFlow's name, and the shape of one value.

    ``uint8`` and ``float64`` are stored as their raw bytes, one string a record, little-endian in C
    order; other integers and ``bool`` as an int64 list, ``float32`` as a float list, ``string`` as
    a bytes list.
    """

    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"

    @property
    def is_float(self) -> bool:
        return self.dtype in ("float32", "float64")

    @property
    def is_raw(self) -> bool:
        """Whether the values of a record are stored as one string of their bytes."""
        return self.dtype in ("uint8", "float64")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(dtype=data["dtype"], shape=tuple(data["shape"]))


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file: its key in the data set's folder, its records, its size in bytes."""

    file: str
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split: its shards, none of them empty, and the records of each class.

    ``classes`` counts the values of the feature ``label`` where that is one integer, and is
    empty where it is not.
    """

    shards: tuple[Shard, ...] = ()
    classes: Mapping[int, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """How many records all shards hold together."""
        return sum(shard.records for shard in self.shards)

    def to_dict(self) -> dict[str, Any]:
        """JSON, in an order that depends only on the content."""
        return {
            "records": self.records,
            "shards": [asdict(shard) for shard in self.shards],
            "classes": {str(label): self.classes[label] for label in sorted(self.classes)},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            shards=tuple(Shard(**shard) for shard in data["shards"]),
            classes={int(label): count for label, count in data["classes"].items()},
        )


Schema = Mapping[str, Feature]


def schema_to_dict(schema: Schema) -> dict[str, Any]:
    """The schema as JSON, in the order of its names."""
    return {name: asdict(schema[name]) for name in sorted(schema)}


def schema_from_dict(data: Mapping[str, Any]) -> dict[str, Feature]:
    """The schema that a JSON document holds."""
    return {name: Feature.from_dict(feature) for name, feature in data.items()}


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A finished data set. ``fingerprint`` is its name; the same input always has the same one.

    ``label`` is the feature that a model is to predict, if there is one of that name. ``rejected``
    counts the records of the source that are in no split, as they are in quarantine.
    """

    fingerprint: str
    source: Mapping[str, Any]
    schema: Schema
    splits: Mapping[str, Split]
    label: str = "label"
    rejected: int = 0
    version: int = VERSION

    @property
    def records(self) -> int:
        """How many records all splits hold together."""
        return sum(split.records for split in self.splits.values())

    @property
    def names(self) -> dict[str, Sequence[str]]:
        """The words of columns that hold numbers of words, such as the names of classes."""
        renamed, types = self.source.get("rename", {}), self.source.get("types", {})
        names = {renamed.get(n, n): each for n, each in types.items() if not isinstance(each, str)}
        if classes := self.source.get("classes"):
            names[renamed.get("label", "label")] = classes
        return {name: each for name, each in names.items() if name in self.schema}

    def to_json(self) -> str:
        """The manifest: the same text for the same data set, byte for byte."""
        document = {
            "version": self.version,
            "fingerprint": self.fingerprint,
            "source": dict(self.source),
            "schema": schema_to_dict(self.schema),
            "label": self.label,
            "rejected": self.rejected,
            "splits": {name: split.to_dict() for name, split in sorted(self.splits.items())},
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``to_json`` wrote.

        Raises:
            FinalError: it is not a manifest, or of another version of the format.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise FinalError(
                    f"the data set is in version {data['version']} of the format, this is "
                    f"version {VERSION}; prepare it again, or use the aerotrain that wrote it"
                )
            return cls(
                fingerprint=data["fingerprint"],
                source=data["source"],
                schema=schema_from_dict(data["schema"]),
                label=data["label"],
                rejected=data.get("rejected", 0),
                splits={name: Split.from_dict(each) for name, each in data["splits"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FinalError(
                f"this is not the manifest of a data set: {error!r}; prepare the data set again"
            ) from error


def load_dataset(url: str) -> Dataset:
    """The finished data set in the folder ``url``; ``open_store(url)`` holds its shards.

    Raises:
        MissingError: no data set was finalized there.
    """
    store = open_store(url)
    try:
        return Dataset.from_json(store.get(MANIFEST))
    except MissingError as error:
        raise MissingError(
            f"there is no finished data set at {url}; run its prepare to the end first"
        ) from error


def load_statistics(url: str) -> dict[str, dict[str, Any]]:
    """The summary of each column of the data set at ``url``; empty if it has none.

    Each has ``missing`` and ``distinct``; numbers have ``min``, ``max``, ``mean``, ``std`` and
    ``quantiles`` too. ``vocabulary`` holds the values of a categorical column with their counts,
    most frequent first. ``names`` are the words of a column of numbers of words, such as classes.
    """
    return statistics_in(open_store(url))


def statistics_in(store: Store) -> dict[str, dict[str, Any]]:
    """The summary of each column of the data set in ``store``, as ``load_statistics`` returns."""
    try:
        data: dict[str, dict[str, Any]] = json.loads(store.get(STATISTICS))
    except MissingError:
        return {}
    for column in data.values():
        column |= as_numbers({name: column[name] for name in _NUMBERS if name in column})
        if "quantiles" in column:
            column["quantiles"] = as_numbers(column["quantiles"])
    return data


def json_text(document: Any, indent: int | None = None) -> str:
    """A document as JSON, where infinity and NaN, which JSON lacks, are strings.

    They are "Infinity", "-Infinity" and "NaN", as in the JSON of protocol buffers:
    https://protobuf.dev/programming-guides/json/. Arrays of NumPy are lists.
    """
    return json.dumps(_with_strings(document), indent=indent, allow_nan=False)


def _with_strings(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _with_strings(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_strings(each) for each in value]
    is_number = not isinstance(value, float) or isfinite(value)
    return value if is_number else json.dumps(value)


def as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers by name that ``json_text`` wrote, infinity and NaN included."""
    return {
        name: float(value) if isinstance(value, str) else value for name, value in values.items()
    }
