"""The base of sources of text with a record on each line: types of columns, and bad lines.

``csv.py`` and ``jsonl.py`` say how lines are parsed.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import column_of
from aerotrain.data.sources import lines
from aerotrain.data.sources.files import (
    FileSource,
    InputFile,
    checked_beginning,
    constants,
    file_and_span,
    fragment_of,
)
from aerotrain.data.sources.lines import BYTE_ORDER_MARK, Block
from aerotrain.data.sources.protocol import (
    Batch,
    Fragment,
    Rejected,
    SourceError,
    check_columns,
    check_selected,
)

#: Bytes of one fragment of a file.
FRAGMENT_BYTES = 64 * 2**20

#: The types of columns are inferred from so many bytes of each sampled file, after its header.
_SAMPLED_BYTES = 2**20

#: The types that text may be parsed as; everything else stays a string.
_TYPES = {"bool": pa.bool_(), "int64": pa.int64(), "float32": pa.float64(), "string": pa.string()}

#: Values that are parsed at once, also where a line has few bytes, such as ``{}``.
_CELLS = 2**20

Types = Mapping[str, pa.DataType]


@dataclass(frozen=True)
class TextSource(FileSource, ABC):
    """Text files below a URL.

    ``encoding`` is that of the files if not UTF-8. ``types`` sets the types of columns that cannot
    be inferred from the first lines, such as ``{"price": "float32"}``.
    """

    options: ClassVar[Set[str]] = frozenset({"encoding", "types", "columns"})

    @abstractmethod
    def parse(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        """Parse whole lines of UTF-8 into a table. Raises ``pa.ArrowInvalid``."""

    @abstractmethod
    def why_other_format(self, beginning: bytes, first_lines: list[bytes]) -> str | None:
        """What the file is instead and what to do, by its first bytes; None if it may be read."""

    def header(self, file: InputFile) -> list[str]:
        """The names of the columns in the file's first line, if the kind has them there."""
        return []

    def check_header(self, file: InputFile, header: list[str], names: list[str]) -> None:
        """Check that the file has these columns. Raises ``SourceError``."""

    def blocks(self, file: InputFile, start: int, end: int) -> Iterator[Block]:
        """The lines of records that begin from ``start`` up to ``end``."""
        return lines.blocks(file, start, end)

    def lines_of_first(self, header: list[str], rest: Iterator[bytes]) -> int:
        """How many lines the record takes that begins on the first line of ``rest``."""
        return 1

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        source = super().of(description)
        for name, kind in description.get("types", {}).items():
            if kind not in _TYPES:
                raise SpecError(
                    f"the column {name!r} cannot be of type {kind!r}"
                    f"{nearest(str(kind), list(_TYPES))}; the types are {', '.join(_TYPES)}"
                )
        try:
            keeps_line_ends = "a\n".encode(source.encoding) == b"a\n"
        except LookupError as error:
            raise SpecError(
                f"there is no encoding {source.encoding!r}; use one of Python's"
            ) from error
        if not keeps_line_ends:
            raise SpecError(
                f"files in {source.encoding} cannot be divided at their line ends; write them in "
                "UTF-8"
            )
        return source

    @property
    def encoding(self) -> str:
        return self.description.get("encoding", "utf-8")

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            for start, end in lines.ranges(file, FRAGMENT_BYTES):
                size = self.content_bytes(file) if file.compression else end - start
                yield fragment_of(file, (start, end), size)

    def schema(self) -> Schema:
        """The schema by the first lines of up to four files; columns of nulls there are strings."""
        last = len(self.files) - 1
        sampled = sorted({number * last // 3 for number in range(4)})
        rejected: list[Rejected] = []
        counts = self._types_in((self.files[number] for number in sampled), rejected)
        if not counts:  # these files have no record; others may
            each = (self._types_in([file], rejected) for file in self.files)
            counts = next(filter(None, each), counts)
        if not counts:
            raise self._no_record(rejected)
        columns = self.description.get("columns", list(counts))
        check_selected(self.files[0].url, columns, list(counts))
        return {name: _most_frequent(counts[name]) for name in columns}

    def _no_record(self, rejected: list[Rejected]) -> SourceError:
        if rejected:
            first = rejected[0]
            return SourceError(
                f"none of the first lines of {first.file} is a record, the first failure is at "
                f"byte {first.offset}: {first.reason}"
            )
        return SourceError(
            f"the source is empty: none of {len(self.files)} files, {self.files[0].url} the "
            "first, has a record; check that the input is where the source looks for it"
        )

    def _types_in(
        self, files: Iterable[InputFile], rejected: list[Rejected]
    ) -> dict[str, Counter[Feature]]:
        """For each column, how many of the files' first lines have which inferred type."""
        counts: dict[str, Counter[Feature]] = {}
        for file in files:
            self._check_format(file)
            header = self.header(file)
            end = _SAMPLED_BYTES + len(",".join(header).encode())
            block = next(self.blocks(file, 0, min(file.size, end)), None)
            for table, _ in self._tables(file, block, header, {}, rejected) if block else ():
                names = table.column_names
                selected = self.description.get("columns", names)
                check_columns(file.url, [name for name in names if name in selected], names)
                for name, values in zip(names, table.columns, strict=True):
                    counts.setdefault(name, Counter())[self._inferred(name, values)] += len(table)
                counts |= {name: Counter([Feature("string")]) for name in file.partitions}
        return counts

    def _check_format(self, file: InputFile) -> None:
        beginning = checked_beginning(file)
        first_lines = beginning.removeprefix(BYTE_ORDER_MARK).strip().splitlines() or [b""]
        if what := self.why_other_format(beginning, first_lines):
            raise SourceError(f"{file.url} {what}")

    def _inferred(self, name: str, values: pa.ChunkedArray) -> Feature:
        if name in self.description.get("types", {}):
            return Feature(self.description["types"][name])
        kind = values.type
        if (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_list(kind)
            or pa.types.is_struct(kind)
        ):
            return column_of(name, values.drop_null()).feature
        return Feature("string")

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, (start, end) = file_and_span(description)
        header = self.header(file)
        types = {name: _arrow(each) for name, each in schema.items() if name not in file.partitions}
        lines_at_once = max(1, _CELLS // max(1, len(types)))
        for block in self.blocks(file, start, end):  # without records, it may lack a header too
            self.check_header(file, header, list(types))
            for part in block.parts(lines_at_once):
                yield self._batch(file, part, header, types)

    def _batch(self, file: InputFile, block: Block, header: list[str], types: Types) -> Batch:
        """The block as columns, with Hive partitions, without the lines that do not parse."""
        rejected: list[Rejected] = []
        parsed = list(self._tables(file, block, header, types, rejected))
        offsets = np.concatenate([*(rows for _, rows in parsed), np.zeros(0, np.int64)])
        table = pa.concat_tables([each for each, _ in parsed]) if parsed else pa.table({})
        columns = {name: table[name] for name in table.column_names}
        return Batch(
            columns=columns | constants(file, len(offsets)),
            file=file.url,
            offsets=offsets,
            unit="byte",
            rejected=rejected,
        )

    def _tables(
        self,
        file: InputFile,
        block: Block,
        header: list[str],
        types: Types,
        rejected: list[Rejected],
    ) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        """The lines of a block as tables, each with the file offsets of its rows.

        A block that parses is one table. Otherwise the lines that do not parse are found by
        bisection and added to ``rejected``; further lines of the same record are skipped.
        """
        starts = block.starts()
        pending = [(0, len(starts) - 1)]
        skipped_to = 0
        while pending:
            first, last = pending.pop()
            first = max(first, skipped_to)
            if first >= last:
                continue
            try:
                table = self._table(header, block.content[starts[first] : starts[last]], types)
                if len(table) != last - first:
                    raise pa.ArrowInvalid("the line holds no record, or several")
            except pa.ArrowInvalid as error:
                if last - first > 1:
                    middle = (first + last) // 2
                    pending += [(middle, last), (first, middle)]
                    continue
                offset = block.offset + int(starts[first])
                reason = str(error).splitlines()[0][:300]
                rejected.append(Rejected(file.url, offset, "byte", reason))
                rest = (block.content[begin:end] for begin, end in pairwise(starts[first:]))
                skipped_to = first + self.lines_of_first(header, rest)
            else:
                yield table, block.offset + starts[first:last]

    def _table(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        if self.encoding != "utf-8":
            try:
                content = content.decode(self.encoding).encode()
            except UnicodeDecodeError as error:
                raise pa.ArrowInvalid(str(error)) from error
        return self.parse(header, content, types)


def _most_frequent(counts: Counter[Feature]) -> Feature:
    """The type that most lines have; integers count as floats if some lines have floats."""
    for each in [each for each in counts if each.dtype == "int64"]:
        wider = Feature("float32", each.shape)
        if wider in counts:
            counts[wider] += counts.pop(each)
    return max(counts, key=lambda each: (counts[each], str(each)))


def _arrow(feature: Feature) -> pa.DataType:
    kind = _TYPES.get(feature.dtype, pa.int64())
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind
