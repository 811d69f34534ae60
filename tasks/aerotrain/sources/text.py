"""CSV and JSON lines: files of text, each line of which is a record."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.dataset import Feature, Schema
from aerotrain.records import column_of
from aerotrain.sources.files import InputFile
from aerotrain.sources.json_depth import check_depth
from aerotrain.sources.lines import Block, blocks, content_bytes, parsed, ranges, tables
from aerotrain.sources.naming import piece_of, renewed
from aerotrain.sources.options import check_once, checked
from aerotrain.sources.protocol import Batch, Piece, SourceError
from aerotrain.sources.whole_files import WholeFiles

#: Bytes of a file that are one piece.
PIECE_BYTES = 64 * 2**20

#: How many files are looked into for the types of their columns.
_LOOKED_INTO = 3

#: What a text may be parsed as; everything else stays a string.
_TYPES = {"bool": pa.bool_(), "int64": pa.int64(), "float32": pa.float64(), "string": pa.string()}

Types = Mapping[str, pa.DataType]


class Format(Protocol):
    """How the lines of one kind of file are parsed."""

    @property
    def has_header(self) -> bool: ...

    def table(
        self, header: list[str], content: bytes, types: Mapping[str, pa.DataType]
    ) -> pa.Table:
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

    def table(
        self, header: list[str], content: bytes, types: Mapping[str, pa.DataType]
    ) -> pa.Table:
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

    def table(
        self, header: list[str], content: bytes, types: Mapping[str, pa.DataType]
    ) -> pa.Table:
        check_depth(content)
        return pyarrow.json.read_json(
            pa.BufferReader(content),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(content), 1)),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(types.items())) if types else None,
                unexpected_field_behavior="ignore" if types else "infer",
            ),
        )


@dataclass(frozen=True)
class TextSource(WholeFiles):
    """Files of lines below a URL.

    ``encoding`` is what the files are in, where it is not UTF-8. ``types`` gives columns a type
    that their first lines do not show, such as ``{"price": "float32"}``.
    """

    format: Format

    @classmethod
    def csv(cls, description: Mapping[str, Any]) -> Self:
        """A source of kind ``csv``: its ``delimiter``, and ``names`` where files have no header."""
        checked(description, {"url"}, {"delimiter", "names", "encoding", "types", "columns"})
        names = tuple(description.get("names", ()))
        return cls(description, Csv(description.get("delimiter", ","), names))._checked()

    @classmethod
    def jsonl(cls, description: Mapping[str, Any]) -> Self:
        """A source of kind ``jsonl``."""
        checked(description, {"url"}, {"encoding", "types", "columns"})
        return cls(description, JsonLines())._checked()

    def _checked(self) -> Self:
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
                f"files in {encoding} cannot be cut at their line ends; write them in UTF-8"
            )
        return self

    def pieces(self) -> Iterator[Piece]:
        for file in self.files:
            for start, end in ranges(file, PIECE_BYTES):
                yield piece_of(file, (start, end), content_bytes(file, start, end))

    def schema(self) -> Schema:
        """By the first block of some of the files; columns that are null there are strings."""
        count = len(self.files)
        numbers = sorted({number * (count - 1) // _LOOKED_INTO for number in range(1, 4)} | {0})
        votes = self._votes(self.files[number] for number in numbers)
        if not votes:  # those have no record; another may
            votes = next(filter(None, (self._votes([file]) for file in self.files)), votes)
        if not votes:
            raise SourceError(
                f"the source is empty: none of {len(self.files)} files, {self.files[0].url} the "
                "first, has a record; see whether its input is where the source looks for it"
            )
        return self._chosen({name: _elected(each) for name, each in votes.items()})

    def _votes(self, files: Iterable[InputFile]) -> dict[str, Counter[Feature]]:
        """How many of the first lines of those files have each type, column by column."""
        votes: dict[str, Counter[Feature]] = {}
        for file in files:
            content = self._without_header(blocks(file, 0, min(file.size, 2**20)))
            parse = self._parse(self._header(file), {})
            for table, _ in tables(file, next(content, Block(0, b"")), parse, []):
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
        file, (start, end) = renewed(description)
        header = self._header(file)
        types = {name: _arrow(each) for name, each in schema.items() if name not in file.partitions}
        content = blocks(file, start, end)
        for block in content if start else self._without_header(content):
            if self.format.has_header:  # a file without a record may be without a header too
                self._check_header(file, header, schema)
            yield parsed(file, block, self._parse(header, types))

    def _check_header(self, file: InputFile, header: list[str], schema: Schema) -> None:
        for name in schema:
            if name not in header and name not in file.partitions:
                raise SourceError(
                    f"{file.url} has no column {name!r}{nearest(name, header)}; its header is "
                    f"{', '.join(header) or 'empty'}; give all files the same columns, or name "
                    "those that are wanted in 'columns'"
                )
            check_once(file.url, name, header)

    def _parse(self, header: list[str], types: Types) -> Any:
        encoding = self.description.get("encoding", "utf-8")

        def parse(content: bytes) -> pa.Table:
            if encoding != "utf-8":
                try:
                    content = content.decode(encoding).encode()
                except UnicodeDecodeError as error:
                    raise pa.ArrowInvalid(str(error)) from error
            try:
                return self.format.table(header, content, types)
            except KeyError as error:  # a column of a file without a header
                raise SpecError(f"{error}; see 'names' and 'columns' of the source") from error

        return parse

    def _header(self, file: InputFile) -> list[str]:
        if not self.format.has_header:
            return []
        with file.stream() as stream:
            line = bytes(stream.read(2**16)).partition(b"\n")[0].removeprefix(b"\xef\xbb\xbf")
        text = line.decode(self.description.get("encoding", "utf-8"), "replace")
        return self.format.header(text.rstrip("\r")) if text.strip() else []

    def _without_header(self, content: Iterator[Block]) -> Iterator[Block]:
        for number, block in enumerate(content):
            if number or not self.format.has_header:
                yield block
                continue
            cut = block.content.find(b"\n") + 1
            if 0 < cut < len(block.content):
                yield Block(block.offset + cut, block.content[cut:])


def _elected(votes: Counter[Feature]) -> Feature:
    """The type that most lines have; whole numbers are floats where some have fractions."""
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
