"""The statistics of all columns of a data set: gathered by batch, merged, kept as JSON."""

import json
from collections.abc import Mapping
from typing import Any, Self

from aerotrain.data.dataset import Feature, Schema, schema_to_dict
from aerotrain.data.prepare.assignment import Hashes
from aerotrain.data.records import Columns
from aerotrain.data.statistics.column import ColumnStatistics


class Statistics:
    """Statistics by column."""

    def __init__(self, columns: Mapping[str, ColumnStatistics] | None = None) -> None:
        self.columns = dict(columns or {})

    def add(self, columns: Columns, missing: Mapping[str, int], hashes: Hashes) -> None:
        """Add records, each with its hash.

        ``missing`` counts the filled values, by column.
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
    """The schema as a JSON document; equal schemas give equal text."""
    return json.dumps(schema_to_dict(schema), indent=1) + "\n"


def feature_of(summary: Mapping[str, Any]) -> Feature:
    """The feature that a summary describes."""
    return Feature.from_dict(summary)
