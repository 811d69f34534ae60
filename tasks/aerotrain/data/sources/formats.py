"""Parsers of text formats: CSV and JSON lines to Arrow tables."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from aerotrain.data.sources.json_depth import check_depth

#: How many lines are searched for the end of a quoted value.
_MOST_LINES = 1000

Types = Mapping[str, pa.DataType]


class Format(Protocol):
    """The parser of one text format."""

    @property
    def has_header(self) -> bool: ...

    def table(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        """Parse whole lines into a table. Raises ``pa.ArrowInvalid``."""
        ...

    def header(self, line: str) -> list[str]:
        """The column names in a file's first line."""
        ...

    def lines_of_first(self, header: list[str], lines: Iterator[bytes]) -> int:
        """How many lines the record takes that begins on the first line."""
        ...


@dataclass(frozen=True)
class Csv:
    """Delimiter-separated values, with a header or with ``names`` for the columns."""

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
        read = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, block_size=max(len(content), 1)
            ),
            pyarrow.csv.ParseOptions(delimiter=self.delimiter),
            pyarrow.csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types) or None,
                timestamp_parsers=[],
                null_values=["", "NULL", "null", "NA", "N/A", "NaN", "nan"],
            ),
        )
        # Only an empty text is missing: NA is a country, and Null a name.
        return pa.table([_nulls_for_empty(each) for each in read.columns], read.column_names)

    def lines_of_first(self, header: list[str], lines: Iterator[bytes]) -> int:
        texts = (line.decode("utf-8", "replace").rstrip("\r\n") + "\n" for line in lines)
        reader = csv.reader(islice(texts, _MOST_LINES), delimiter=self.delimiter, strict=True)
        try:
            is_record = len(next(reader)) == len(header or self.names)
        except (csv.Error, StopIteration):
            return 1  # an unterminated quote
        return reader.line_num if is_record else 1

    def _check_last_line(self, content: bytes) -> None:
        """Check that the last line closes its quotes; Arrow would end the text with the line."""
        content = content.rstrip(b"\r\n")  # blank lines may follow it
        last = content[content.rfind(b"\n") + 1 :]
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
    """One JSON object on each line."""

    has_header = False

    def header(self, line: str) -> list[str]:
        raise NotImplementedError

    def lines_of_first(self, header: list[str], lines: Iterator[bytes]) -> int:
        return 1

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


def _nulls_for_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_string(column.type):
        return column
    empty = pc.equal(column, "")
    return (
        pc.if_else(empty, pa.scalar(None, pa.string()), column) if pc.any(empty).as_py() else column
    )
