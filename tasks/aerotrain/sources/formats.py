"""How the lines of each kind of text are parsed."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from aerotrain.sources.json_depth import check_depth

Types = Mapping[str, pa.DataType]


class Format(Protocol):
    """How the lines of one kind of file are parsed."""

    @property
    def has_header(self) -> bool: ...

    def table(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        """Whole lines as a table. Raises ``pa.ArrowInvalid``."""
        ...

    def header(self, line: str) -> list[str]:
        """The names in a file's first line."""
        ...


@dataclass(frozen=True)
class Csv:
    """Comma-separated values with a header, or with other separators, or ``names`` of its own."""

    delimiter: str = ","
    names: tuple[str, ...] = ()

    @property
    def has_header(self) -> bool:
        return not self.names

    def header(self, line: str) -> list[str]:
        return next(csv.reader([line], delimiter=self.delimiter))

    def table(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        names = header or list(self.names)
        self._check_last_line(content)
        return pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, block_size=max(len(content), 1)
            ),
            pyarrow.csv.ParseOptions(delimiter=self.delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types) or None,
                timestamp_parsers=[],
                strings_can_be_null=True,
                null_values=["", "NULL", "null", "NA", "N/A", "NaN", "nan"],
                quoted_strings_can_be_null=False,
            ),
        )

    def _check_last_line(self, content: bytes) -> None:
        """Refuse a last line whose quotes do not end: Arrow takes the line's end for a text's."""
        last = content[content.rfind(b"\n", 0, -1) + 1 :]
        if last.count(b'"') % 2 == 0:
            return
        try:
            list(
                csv.reader([last.decode("utf-8", "replace")], delimiter=self.delimiter, strict=True)
            )
        except csv.Error as error:
            raise pa.ArrowInvalid(
                f"a value in quotes does not end in its line ({error}); files are cut at line "
                "ends, so write values without line breaks, or as JSON lines or Parquet"
            ) from error


@dataclass(frozen=True)
class JsonLines:
    """One JSON object a line."""

    has_header = False

    def header(self, line: str) -> list[str]:
        raise NotImplementedError

    def table(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        check_depth(content)
        return pyarrow.json.read_json(
            pa.BufferReader(content),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(content), 1)),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(types.items())) if types else None,
                unexpected_field_behavior="ignore" if types else "infer",
            ),
        )
