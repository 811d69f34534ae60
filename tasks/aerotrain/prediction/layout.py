"""The store layout of predictions: keys, and the documents that lie there.

In the folder ``predictions/<fingerprint>/``: ``plan.json`` and, for each partition,
``plan/00003.json`` with its fragments come first; ``data/part-00003.parquet`` and, after it,
``parts/00003.json`` when that partition is predicted, with ``quarantine/00003.jsonl`` if records of
it were rejected; ``manifest.json`` comes last. Other programs read the whole folder ``data``.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import pyarrow as pa

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import DATA, PLAN
from aerotrain.contract.preparing import PredictArguments
from aerotrain.data.dataset import Schema, schema_from_dict, schema_to_dict
from aerotrain.data.sources import Rejected
from aerotrain.serving.classes import Classes
from aerotrain.store import MissingError, Store

#: The version of the format of all documents here, and of the keys.
VERSION = 2


def file_key(partition: int) -> str:
    """The key of the partition's predictions; there is none if it has no record."""
    return f"{DATA}/part-{partition:05d}.parquet"


@dataclass(frozen=True, kw_only=True)
class PredictionPlan:
    """What is to be predicted, by the version at the URL ``model``.

    ``reading`` are the features as which the source is read, or None if it knows them itself.
    ``needed`` are those that the model takes. ``columns`` are the columns of the files, ``classes``
    those of the model's outputs.
    ``fingerprint`` names everything that decides their bytes.
    """

    model: str
    arguments: PredictArguments
    source: Mapping[str, Any]
    reading: Schema | None
    needed: Schema
    columns: pa.Schema
    partitions: int
    fingerprint: str
    classes: Mapping[str, Classes] = field(default_factory=dict)

    def to_json(self) -> str:
        document = {
            "version": VERSION,
            "model": self.model,
            "arguments": asdict(self.arguments),
            "source": dict(self.source),
            "reading": self.reading and schema_to_dict(self.reading),
            "needed": schema_to_dict(self.needed),
            "columns": base64.b64encode(self.columns.serialize()).decode(),
            "partitions": self.partitions,
            "fingerprint": self.fingerprint,
            "classes": {name: asdict(each) for name, each in self.classes.items()},
        }
        return json.dumps(document, sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, store: Store) -> Self:
        """The plan of the predictions in ``store``.

        Raises:
            FinalError: nothing is planned there, or by another version of aerotrain.
        """
        try:
            data = json.loads(store.get(PLAN))
        except MissingError as error:
            raise FinalError(f"no predictions are planned at {store.url}; plan them") from error
        if data["version"] != VERSION:
            raise FinalError(
                f"the predictions at {store.url} were planned for version {data['version']} of the "
                f"format, this is version {VERSION}; plan them again"
            )
        return cls(
            model=data["model"],
            arguments=PredictArguments.from_dict(data["arguments"]),
            source=data["source"],
            reading=data["reading"] and schema_from_dict(data["reading"]),
            needed=schema_from_dict(data["needed"]),
            columns=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["columns"]))),
            partitions=data["partitions"],
            fingerprint=data["fingerprint"],
            classes={name: Classes(**each) for name, each in data.get("classes", {}).items()},
        )


@dataclass(frozen=True, kw_only=True)
class PredictedPartition:
    """The result of one partition: its records and the size of its file in bytes.

    ``rejected`` counts the records that have no prediction, ``first_rejected`` are some of them.
    """

    records: int
    size: int
    rejected: int = 0
    first_rejected: Sequence[Rejected] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        first = [Rejected(**each) for each in data.pop("first_rejected")]
        return cls(**data, first_rejected=first)
