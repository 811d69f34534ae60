"""The source of text files, CSV and JSON lines, with a record on each line."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import column_of
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.first_bytes import check_beginning
from aerotrain.data.sources.formats import Csv, Format, JsonLines, Types
from aerotrain.data.sources.lines import (
    Block,
    Parse,
    blocks,
    content_bytes,
    first_line,
    parsed,
    ranges,
    tables,
)
from aerotrain.data.sources.naming import file_and_span, fragment_of
from aerotrain.data.sources.options import check_once, checked
from aerotrain.data.sources.protocol import Batch, Fragment, Rejected, SourceError
from aerotrain.data.sources.whole_files import WholeFiles

#: Bytes of one fragment of a file.
FRAGMENT_BYTES = 64 * 2**20

#: How many files the types of columns are inferred from.
_LOOKED_INTO = 3

#: Bytes of each such file, after its header.
_LOOKED_AT = 2**20

#: The types that text may be parsed as; everything else stays a string.
_TYPES = {"bool": pa.bool_(), "int64": pa.int64(), "float32": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class TextSource(WholeFiles):
    """Text files below a URL.

    ``encoding`` is that of the files if not UTF-8. ``types`` sets the types of columns that cannot
    be inferred from the first lines, such as ``{"price": "float32"}``.
    """

    format: Format

    @classmethod
    def csv(cls, description: Mapping[str, Any]) -> Self:
        """A source of kind ``csv``: its ``delimiter``, and ``names`` where files have no header."""
        checked(description, {"url"}, {"delimiter", "names", "encoding", "types", "columns"})
        names = tuple(description.get("names", ()))
        return cls(description, Csv(description.get("delimiter", ","), names)).validated()

    @classmethod
    def jsonl(cls, description: Mapping[str, Any]) -> Self:
        """A source of kind ``jsonl``."""
        checked(description, {"url"}, {"encoding", "types", "columns"})
        return cls(description, JsonLines()).validated()

    def validated(self) -> Self:
        for name, kind in self.description.get("types", {}).items():
            if kind not in _TYPES:
                raise SpecError(
                    f"the column {name!r} cannot be of type {kind!r}"
                    f"{nearest(str(kind), list(_TYPES))}; the types are {', '.join(_TYPES)}"
                )
        encoding = self.description.get("encoding", "utf-8")
        try:
            fits = "a\n".encode(encoding) == b"a\n"
        except LookupError as error:
            raise SpecError(f"there is no encoding {encoding!r}; use one of Python's") from error
        if not fits:
            raise SpecError(
                f"files in {encoding} cannot be divided at their line ends; write them in UTF-8"
            )
        return self

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            for start, end in ranges(file, FRAGMENT_BYTES):
                yield fragment_of(file, (start, end), content_bytes(file, start, end))

    def schema(self) -> Schema:
        """The schema by the first block of some files; columns of nulls there are strings."""
        count = len(self.files)
        numbers = sorted({number * (count - 1) // _LOOKED_INTO for number in range(1, 4)} | {0})
        rejected: list[Rejected] = []
        votes = self._votes((self.files[number] for number in numbers), rejected)
        if not votes:  # these files have no record; others may
            each = (self._votes([file], rejected) for file in self.files)
            votes = next(filter(None, each), votes)
        if not votes:
            raise self._empty(rejected)
        return self._chosen({name: _elected(each) for name, each in votes.items()})

    def _empty(self, rejected: list[Rejected]) -> SourceError:
        """Why no file has a record."""
        for each in rejected:
            return SourceError(
                f"none of the first lines of {each.file} is a record, the first failure is at byte "
                f"{each.offset}: {each.reason}"
            )
        return SourceError(
            f"the source is empty: none of {len(self.files)} files, {self.files[0].url} the "
            "first, has a record; check that the input is where the source looks for it"
        )

    def _votes(
        self, files: Iterable[InputFile], rejected: list[Rejected]
    ) -> dict[str, Counter[Feature]]:
        """For each column, the number of the files' first lines by their inferred type."""
        votes: dict[str, Counter[Feature]] = {}
        for file in files:
            check_beginning(file, self.description["kind"], self.description.get("delimiter"))
            header = self._header(file)
            begin = _LOOKED_AT + len(",".join(header).encode())
            content = self._without_header(blocks(file, 0, min(file.size, begin)))
            parse = self._parse(header, {})
            block = next(content, None)
            for table, _ in tables(file, block, parse, rejected) if block else ():
                for name, values in zip(table.column_names, table.columns, strict=True):
                    if name in self.description.get("columns", [name]):
                        check_once(file.url, name, table.column_names)
                    votes.setdefault(name, Counter())[self._inferred(name, values)] += len(table)
                votes |= {name: Counter([Feature("string")]) for name in file.partitions}
        return votes

    def _inferred(self, name: str, values: pa.ChunkedArray) -> Feature:
        if name in self.description.get("types", {}):
            return Feature(self.description["types"][name])
        known = values.drop_null()
        if pa.types.is_null(values.type) or not (
            pa.types.is_integer(values.type)
            or pa.types.is_floating(values.type)
            or pa.types.is_boolean(values.type)
            or pa.types.is_list(values.type)
            or pa.types.is_struct(values.type)
        ):
            return Feature("string")
        return column_of(name, known).feature

    def _chosen(self, schema: Mapping[str, Feature]) -> Schema:
        columns = self.description.get("columns", list(schema))
        for name in columns:
            if name not in schema:
                raise SpecError(
                    f"{self.files[0].url} has no column {name!r}{nearest(name, list(schema))}; "
                    f"it has {', '.join(schema)}"
                )
        return {name: schema[name] for name in columns}

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, (start, end) = file_and_span(description)
        header = self._header(file)
        types = {name: _arrow(each) for name, each in schema.items() if name not in file.partitions}
        content = blocks(file, start, end)
        for block in content if start else self._without_header(content):
            if self.format.has_header:  # a file without records may lack a header too
                self._check_header(file, header, schema)
            yield parsed(file, block, self._parse(header, types))

    def _check_header(self, file: InputFile, header: list[str], schema: Schema) -> None:
        for name in schema:
            if name not in header and name not in file.partitions:
                raise SourceError(
                    f"{file.url} has no column {name!r}{nearest(name, header)}; its header is "
                    f"{', '.join(header) or 'empty'}; give all files the same columns, or name "
                    "those to read in 'columns'"
                )
            check_once(file.url, name, header)

    def _parse(self, header: list[str], types: Types) -> Parse:
        return _Parse(self.format, self.description.get("encoding", "utf-8"), header, types)

    def _header(self, file: InputFile) -> list[str]:
        if not self.format.has_header:
            return []
        encoding = self.description.get("encoding", "utf-8")
        try:
            text = first_line(file).decode(encoding)
            return self.format.header(text) if text.strip() else []
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{file.url} is not {encoding.upper()} at byte {error.start} of its first line; "
                "set 'encoding', such as 'latin-1'"
            ) from error
        except csv.Error as error:
            raise SourceError(f"the first line of {file.url} is not a header: {error}") from error

    def _without_header(self, content: Iterator[Block]) -> Iterator[Block]:
        for number, block in enumerate(content):
            if number or not self.format.has_header:
                yield block
                continue
            cut = block.content.find(b"\n") + 1
            if 0 < cut < len(block.content):
                yield Block(block.offset + cut, block.content[cut:])


@dataclass(frozen=True)
class _Parse:
    """Parses whole lines of a file with the columns ``header`` into a table."""

    format: Format
    encoding: str
    header: list[str]
    types: Types

    def __call__(self, content: bytes) -> pa.Table:
        if self.encoding != "utf-8":
            try:
                content = content.decode(self.encoding).encode()
            except UnicodeDecodeError as error:
                raise pa.ArrowInvalid(str(error)) from error
        try:
            return self.format.table(self.header, content, self.types)
        except KeyError as error:  # a column of a file without a header
            raise SpecError(f"{error}; see 'names' and 'columns' of the source") from error

    def lines_of_first(self, lines: Iterator[bytes]) -> int:
        return self.format.lines_of_first(self.header, lines)


def _elected(votes: Counter[Feature]) -> Feature:
    """The type that most lines have; integers count as floats if some lines have floats."""
    whole = [each for each in votes if each.dtype == "int64"]
    for each in whole:
        wider = Feature("float32", each.shape)
        if wider in votes:
            votes[wider] += votes.pop(each)
    return max(votes, key=lambda each: (votes[each], str(each)))


def _arrow(feature: Feature) -> pa.DataType:
    kind = _TYPES.get(feature.dtype, pa.int64())
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind
