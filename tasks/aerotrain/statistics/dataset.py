"""The statistics of a whole data set: gathered, merged, kept, and read back by a model."""

import json
from collections.abc import Mapping
from typing import Any, Self

from aerotrain.dataset import Feature, Schema, schema_to_dict
from aerotrain.prepare.assignment import Hashes
from aerotrain.records import Columns
from aerotrain.statistics.column import ColumnStatistics


class Statistics:
    """The statistics of some records, by column."""

    def __init__(self, columns: Mapping[str, ColumnStatistics] | None = None) -> None:
        self.columns = dict(columns or {})

    def add(self, columns: Columns, missing: Mapping[str, int], hashes: Hashes) -> None:
        """Look at some more records, each with a hash of its own.

        ``missing`` counts what was filled, by column.
        """
        for name, column in columns.items():
            statistics = self.columns.setdefault(name, ColumnStatistics(column.feature))
            statistics.add(column, missing.get(name, 0), hashes)

    def merge(self, other: Self) -> None:
        for name, column in other.columns.items():
            if name in self.columns:
                self.columns[name].merge(column)
            else:
                self.columns[name] = column

    def to_json(self) -> str:
        document = {name: self.columns[name].to_dict() for name in sorted(self.columns)}
        return json.dumps(document) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        data = json.loads(text)
        return cls({name: ColumnStatistics.from_dict(each) for name, each in data.items()})

    def summary(self) -> dict[str, dict[str, Any]]:
        return {name: self.columns[name].summary() for name in sorted(self.columns)}

    def schema(self) -> Schema:
        return {name: column.feature for name, column in self.columns.items()}


def schema_text(schema: Schema) -> str:
    """The schema as a document of its own: the same text for the same schema."""
    return json.dumps(schema_to_dict(schema), indent=1) + "\n"


def feature_of(summary: Mapping[str, Any]) -> Feature:
    """The feature that a summary is of."""
    return Feature.from_dict(summary)
