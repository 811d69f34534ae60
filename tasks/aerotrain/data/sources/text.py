"""The base of sources of text with a record on each line: types of columns, and bad lines.

``csv.py`` and ``jsonl.py`` say how lines are parsed.
"""

import re
from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import SpecError
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import column_of, is_list_type
from aerotrain.data.sources import lines
from aerotrain.data.sources.batch import Batch, Fragment, Rejected, SourceError
from aerotrain.data.sources.declared import COLUMN_OPTIONS, check_columns
from aerotrain.data.sources.files import InputFile, checked_beginning
from aerotrain.data.sources.lines import BYTE_ORDER_MARK, LineBlock
from aerotrain.data.sources.source import FileSource, Inferred, file_and_span, fragment_of, spread

#: Bytes of one fragment of a file.
FRAGMENT_BYTES = 64 * 2**20

#: The types of columns are inferred from so many bytes at so many places of all files.
_SAMPLED_BYTES, _PLACES = 2**19, 8

#: The share of numbers in a column of texts from which it is in doubt.
_MANY = 0.5

#: What Arrow says of a text that it cannot parse.
_UNPARSED = re.compile(r"Failed to parse string: ('.*') as a scalar of type")

#: The number of a row among those that Arrow was given, here a single one.
_ROW = re.compile(r"(?<=parse error: )Row #1: | in row 0$")

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})*(\.\d+)?$"
_WITH_COMMAS = r"^[+-]?\d+(,\d+)?$|" + _THOUSANDS

#: Values that are parsed at once, also where a line has few bytes, such as ``{}``.
_CELLS = 2**20

Types = Mapping[str, pa.DataType]

#: For each column, how many lines have which type, None where they do not show it.
Counts = dict[str, Counter[Feature | None]]


class TextSource(FileSource):
    """Text files below a URL. ``encoding`` is that of the files if not UTF-8."""

    options: ClassVar[Set[str]] = COLUMN_OPTIONS | {"encoding", "nulls"}

    #: Whether each line names its columns, of which it may lack some, and their values have types.
    is_typed: ClassVar[bool] = False

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self.encoding: str = description.get("encoding", "utf-8")
        try:
            keeps_line_ends = "a\n".encode(self.encoding) == b"a\n"
        except LookupError as error:
            raise SpecError(
                f"there is no encoding {self.encoding!r}; use one of Python's"
            ) from error
        if not keeps_line_ends:
            raise SpecError(
                f"files in {self.encoding} cannot be divided at their line ends; write them in "
                "UTF-8"
            )

    @abstractmethod
    def parse(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        """Parse whole lines of UTF-8 into a table. Raises ``pa.ArrowInvalid``."""

    @abstractmethod
    def why_other_format(self, beginning: bytes, first_lines: list[bytes]) -> str | None:
        """What the file is instead and what to do, by its first bytes; None if it may be read."""

    def why_rejected(self, header: list[str], error: pa.ArrowInvalid) -> str:
        """Why a line does not parse, in a sentence that names the column and the value."""
        return _ROW.sub("", str(error).splitlines()[0])

    def header(self, file: InputFile) -> list[str]:
        """The names of the columns in the file's first line, if the kind has them there."""
        return []

    def check_header(self, file: InputFile, header: list[str], names: list[str]) -> None:
        """Check that the file has these columns. Raises ``SourceError``."""

    def blocks(self, file: InputFile, start: int, end: int) -> Iterator[LineBlock]:
        """The lines of records that begin from ``start`` up to ``end``."""
        return lines.blocks(file, start, end)

    def lines_of_first(self, header: list[str], rest: Iterator[bytes]) -> int:
        """How many lines the record takes that begins on the first line of ``rest``."""
        return 1

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "encoding": self.encoding}

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            for start, end in lines.ranges(file, FRAGMENT_BYTES):
                size = self.content_bytes(file) if file.compression else end - start
                yield fragment_of(file, (start, end), size)

    def infer(self) -> Inferred:
        """What the lines of ``sampled`` show of the columns.

        Raises:
            SourceError: there is no record, or a file is of another kind.
        """
        inferred = Inferred()
        rejected: list[Rejected] = []
        counts: Counts = {}
        for place in self.sampled()[0]:
            self._look_at(*file_and_span(place), counts, inferred, rejected)
        for file in () if counts else self.files:  # these have no record; other files may
            self._look_at(file, (0, _SAMPLED_BYTES), counts, inferred, rejected)
            if counts:
                break
        if not counts:
            if not rejected:
                raise self.empty("record")
            raise SourceError(
                f"none of the first lines of {rejected[0].file} is a record, the first failure is "
                f"at byte {rejected[0].offset}: {rejected[0].reason}"
            )
        if self.is_typed:
            counts = _with_objects(counts)
            late = self.declared.types.keys() - counts.keys()
            counts |= {name: Counter([self.declared.unseen(name)]) for name in sorted(late)}
        columns = self.declared.selected(self.files[0].url, list(counts))
        inferred.problems = {n: each for n, each in inferred.problems.items() if n in columns}
        for name in columns:
            with inferred.column(name):
                inferred.features[name] = self._most_frequent(name, counts[name])
        return inferred

    def sampled(self) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """Fragments from all over the files, of 4 MiB together, and whether they are all.

        Data may be sorted. A compressed file can only be read from its start.
        """
        sizes = [file.size for file in self.files]
        total = sum(sizes)
        if total <= _PLACES * _SAMPLED_BYTES:
            files = spread(self.files, _PLACES)
            whole = [{"file": file, "span": (0, file.size)} for file in files]
            return whole, len(files) == len(sizes)
        ends = list(accumulate(sizes))
        spans: dict[tuple[InputFile, int], int] = {}
        for number in range(_PLACES):
            position = number * (total - _SAMPLED_BYTES) // (_PLACES - 1)
            file = self.files[place := bisect_right(ends, position)]
            if file.compression:
                spans[file, 0] = file.size
            else:
                start = position - ends[place] + file.size
                spans[file, start] = min(file.size, start + _SAMPLED_BYTES)
        return [{"file": file, "span": (start, end)} for (file, start), end in spans.items()], False

    def _look_at(
        self,
        file: InputFile,
        span: tuple[int, int],
        counts: Counts,
        inferred: Inferred,
        rejected: list[Rejected],
    ) -> None:
        """Add the types of the columns in a part of a file to ``counts``, and what is in doubt."""
        self._check_format(file)
        start, end = span
        header = self.header(file)
        end += len(",".join(header).encode())  # of which the first lines may be all
        block = next(self.blocks(file, start, min(file.size, end)), None)
        parsed = self._tables(file, block, header, {}, rejected) if block else ()
        tables = [table for table, _ in parsed]
        chunks: dict[tuple[str, pa.DataType], list[pa.Array]] = {}
        for table in tables:
            for name, values in zip(table.column_names, table.columns, strict=True):
                chunks.setdefault((name, values.type), []).extend(values.chunks)
        for (name, kind), arrays in chunks.items():
            types = counts.setdefault(name, Counter())
            with inferred.column(name):
                if self.declared.reads(name):
                    check_columns(
                        file.url, [name], [name] if self.is_typed else tables[0].column_names
                    )
                    for each in arrays:
                        inferred.gaps[name].add(each)
                    values = pa.chunked_array(arrays, kind)
                    types[self._inferred(name, values)] += len(values)
                    self._check_certain(file, name, values.drop_null())
        if tables:
            counts |= {name: Counter([Feature("string")]) for name in file.partitions}

    def _check_certain(self, file: InputFile, name: str, values: pa.ChunkedArray) -> None:
        """Check that the inferred type of a column is not in doubt. Raises ``SourceError``."""
        if name in self.declared.types:
            return
        if doubt := _why_large(values) or (None if self.is_typed else _why_no_text(values)):
            raise SourceError(
                f"{file.url}: the type of the column {name!r} is in doubt: {doubt}; set it in "
                "'types', or leave the column out with 'skip'"
            )

    def _check_format(self, file: InputFile) -> None:
        beginning = checked_beginning(file)
        first_lines = beginning.removeprefix(BYTE_ORDER_MARK).strip().splitlines() or [b""]
        if what := self.why_other_format(beginning, first_lines):
            raise SourceError(f"{file.url} {what}")

    def _inferred(self, name: str, values: pa.ChunkedArray) -> Feature | None:
        kind, values = values.type, values.drop_null()
        is_list = is_list_type(kind)
        if pa.types.is_null(kind.value_type if is_list else kind):
            return self.declared.unseen(name)
        if is_list or pa.types.is_struct(kind) or name in self.declared.padding:
            return self.declared.feature_of(name, values)
        if name in self.declared.types:
            return Feature("string")
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return column_of(name, values).feature
        return Feature("string")

    def _most_frequent(self, name: str, counts: Counter[Feature | None]) -> Feature:
        """The type that most lines have; integers count as floats if some lines have floats."""
        known = Counter({each: count for each, count in counts.items() if each is not None})
        if not known:
            raise SourceError(
                f"the column {name!r} has no value in the first lines of {self.files[0].url} and "
                "the other files, so its type is unknown; set it in 'types', or leave it out with "
                "'skip'"
            )
        for each in [each for each in known if each.dtype == "int64"]:
            wider = Feature("float64", each.shape)
            if wider in known:
                known[wider] += known.pop(each)
        return max(known, key=lambda each: (known[each], str(each)))

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, (start, end) = file_and_span(description)
        header = self.header(file)
        types = {
            name: self.declared.parsed_as(name, each)
            for name, each in schema.items()
            if name not in file.partitions or name in header
        }
        lines_at_once = max(1, _CELLS // max(1, len(types)))
        for block in self.blocks(file, start, end):  # without records, it may lack a header too
            self.check_header(file, header, list(types))
            self.declared.check_others(file.url, [*header, *file.partitions], schema)
            for part in block.parts(lines_at_once):
                yield self._batch(file, part, header, types, schema)

    def _batch(
        self, file: InputFile, block: LineBlock, header: list[str], types: Types, schema: Schema
    ) -> Batch:
        """The block as columns, with Hive partitions, without the lines that do not parse."""
        rejected: list[Rejected] = []
        parsed = list(self._tables(file, block, header, types, rejected))
        offsets = np.concatenate([*(rows for _, rows in parsed), np.zeros(0, np.int64)])
        tables = []
        for table, _ in parsed:
            names = [name for name in table.column_names if table[name].null_count < len(table)]
            self.declared.check_others(file.url, names, schema)
            tables.append(table.select([name for name in table.column_names if name in schema]))
        table = pa.concat_tables(tables, promote_options="default") if parsed else pa.table({})
        columns = {name: table[name] for name in table.column_names}
        return Batch(
            columns=self.with_partitions(file, columns, len(offsets)),
            file=file.url,
            offsets=offsets,
            unit="byte",
            rejected=rejected,
            line_at=block.number_at,
        )

    def _tables(
        self,
        file: InputFile,
        block: LineBlock,
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
                reason = self.why_rejected(header, error)[:300]
                line = block.number_at(offset)
                rejected.append(Rejected(file.url, offset, "byte", reason, line=line))
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
        table = self.parse(header, content, types)
        converted = map(self._as_declared, table.column_names, table.columns)
        return pa.table(list(converted), table.column_names)

    def _as_declared(self, name: str, values: Any) -> Any:
        try:
            return self.declared.converted(name, values)
        except pa.ArrowInvalid as error:
            found = _UNPARSED.search(str(error))
            why = f"{found[1]} is no {self.declared.types[name]}" if found else str(error)
            raise pa.ArrowInvalid(f"column {name!r}: {why}") from error


def _with_objects(counts: Counts) -> Counts:
    """The columns without what fewer lines have: a field, or the fields of an object of its name.

    Where the lines are as many, a name with a dot is that of a field.
    """
    inner: dict[str, list[str]] = {}
    for name in counts:
        levels = name.split(".")
        for outer in (".".join(levels[:depth]) for depth in range(1, len(levels))):
            if outer in counts:
                inner.setdefault(outer, []).append(name)

    def lines(name: str) -> int:
        return sum(count for feature, count in counts[name].items() if feature is not None)

    dropped: set[str] = set()
    for outer, names in inner.items():
        fewer = lines(outer) - max(map(lines, names))
        dropped.update([outer] if fewer < 0 else names if fewer > 0 else [])
    return {name: each for name, each in counts.items() if name not in dropped}


def _why_large(values: pa.ChunkedArray) -> str | None:
    """Why these may be integers that float64 rounds; None if they are not."""
    if not pa.types.is_floating(values.type):
        return None
    large = pc.filter(values, pc.greater_equal(pc.abs(values), 2.0**63))
    large = pc.filter(large, pc.is_finite(large))
    if not len(large) or not pc.all(pc.equal(values, pc.trunc(values))).as_py():
        return None
    return (
        f"integers such as {large[0].as_py():.0f} have more than 64 bits, which float64 rounds and "
        "string keeps"
    )


def _why_no_text(values: pa.ChunkedArray) -> str | None:
    """Why these texts may be numbers; None if they are texts."""
    if not pa.types.is_string(values.type) or not len(values):
        return None
    with_comma = pc.filter(values, pc.match_substring(values, ","))
    if len(with_comma) and pc.all(pc.match_substring_regex(values, _WITH_COMMAS)).as_py():
        text = with_comma[0].as_py()
        if not pc.all(pc.match_substring_regex(values, _THOUSANDS)).as_py():
            return f"{text!r} is a number if 'decimal' is ','"
        without, decimal = text.replace(",", ""), text.replace(",", ".")
        either = f", or {decimal} if 'decimal' is ','" if text.count(",") == 1 else ""
        return (
            f"{text!r} is {without} if commas separate thousands, and then has to be written "
            f"without them{either}"
        )
    are_numbers = pc.match_substring_regex(values, _NUMBER)
    count = pc.sum(are_numbers).as_py()
    if not _MANY * len(values) <= count < len(values):
        return None
    other = pc.filter(values, pc.invert(are_numbers))[0].as_py()
    return (
        f"{count} of {len(values)} values are numbers, but {other!r} is not; if that means a "
        "missing value, add it to 'nulls'"
    )
