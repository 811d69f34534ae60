"""The base of sources of text with a record on each line: types of columns, and bad lines.

``csv.py`` and ``jsonl.py`` say how lines are parsed.
"""

import re
from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import SpecError
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.sources.batch import Batch, Fragment, Rejected, SourceError
from aerotrain.data.sources.declared import check_columns
from aerotrain.data.sources.files import InputFile, checked_beginning
from aerotrain.data.sources.lines import BYTE_ORDER_MARK, LineBlock, blocks
from aerotrain.data.sources.source import file_and_span, fragment_of, spread
from aerotrain.data.sources.table import Counts, TableSource

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
_WITH_COMMAS = r"^[+-]?\d+(,\d+)*(\.\d+)?$"

#: Bytes of a block that is parsed at once.
BLOCK = 2**20

#: Columns up to which a block has that size. Of more, it is smaller, down to ``_SMALL_BLOCK``: a
#: line may be as short as ``{}``.
_FEW_COLUMNS, _SMALL_BLOCK = 16, 2**16

Types = Mapping[str, pa.DataType]


class DividedRecord(pa.ArrowInvalid):  # type: ignore[misc]
    """The end of a line is within a record."""


class TextSource(TableSource):
    """Text files below a URL. ``encoding`` is that of the files if not UTF-8."""

    options: ClassVar[Set[str]] = TableSource.options | {"encoding"}

    #: Whether each line names its columns, of which it may lack some, and their values have types.
    is_typed: ClassVar[bool] = False

    #: Whether the first line of a file is no record.
    has_header = False

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self.encoding: str = description.get("encoding", "utf-8")
        with suppress(LookupError):
            if "a\n".encode(self.encoding) == b"a\n":
                return
        raise SpecError(
            f"there is no encoding {self.encoding!r} of Python in which a line ends as in ASCII; "
            "use another one, or write the files in UTF-8"
        )

    @abstractmethod
    def parse(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        """Parse whole lines of UTF-8 into a table. Raises ``pa.ArrowInvalid``."""

    @abstractmethod
    def why_other_format(self, beginning: bytes) -> str | None:
        """What the file is instead and what to do, by its first bytes; None if it may be read."""

    def why_rejected(self, header: list[str], error: pa.ArrowInvalid) -> str:
        """Why a line does not parse, in a sentence that names the column and the value."""
        return _ROW.sub("", str(error).splitlines()[0])

    def header(self, file: InputFile) -> list[str]:
        """The names of the file's columns, if the kind has the same ones in all lines."""
        return []

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "encoding": self.encoding}

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            # Cut at fixed offsets: appending to a file leaves its first fragments unchanged.
            step = max(1, file.size if file.compression else FRAGMENT_BYTES)
            for start in range(0, max(1, file.size), step):
                end = min(start + step, file.size)
                size = self.content_bytes(file) if file.compression else end - start
                yield fragment_of(file, (start, end), size)

    def sample(
        self, file: InputFile, span: tuple[int, int], rejected: list[Rejected]
    ) -> Iterator[tuple[Sequence[str], pa.Table]]:
        self._check_format(file)
        header = self.header(file)
        end = min(file.size, span[1] + len(",".join(header)))  # of which a sample may be all
        for block in islice(self._blocks(file, span[0], end, BLOCK), 1):
            for table, _ in self._tables(file, block, header, {}, rejected):
                yield table.column_names, table

    def feature(self, file: InputFile, name: str, values: pa.Array) -> Feature | None:
        if name not in self.declared.types:
            known = values.drop_null()
            if doubt := _why_large(known) or (None if self.is_typed else _why_no_text(known)):
                raise SourceError(
                    f"{file.url}: the type of the column {name!r} is in doubt: {doubt}; set it in "
                    "'types', or leave the column out with 'skip'"
                )
        if pa.types.is_temporal(values.type):  # a text, unless 'types' declares it
            return Feature("string")
        return super().feature(file, name, values)

    def chosen(self, counts: Mapping[Feature, int]) -> Feature:
        """The type of most lines; integers count as floats if some lines have floats."""
        lines = dict(counts)
        for each in [each for each in lines if each.dtype == "int64"]:
            wider = Feature("float64", each.shape)
            if wider in lines:
                lines[wider] += lines.pop(each)
        return max(lines, key=lambda each: (lines[each], str(each)))

    def columns_of(self, counts: Counts) -> Counts:
        """Those of JSON without what fewer lines have, and with those that 'types' declares."""
        if not self.is_typed:
            return counts
        counts = _without_rarer(counts)
        late = self.declared.types.keys() - counts.keys()
        return counts | {name: Counter([self.declared.unseen(name)]) for name in sorted(late)}

    def _blocks(self, file: InputFile, start: int, end: int, size: int) -> Iterator[LineBlock]:
        return blocks(file, start, end, size, has_header=self.has_header)

    def sampled(self) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """Fragments of 4 MiB together; a compressed file can only be read from its start."""
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

    def _check_format(self, file: InputFile) -> None:
        beginning = checked_beginning(file).removeprefix(BYTE_ORDER_MARK).strip()
        if what := self.why_other_format(beginning):
            raise SourceError(f"{file.url} {what}")

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, (start, end) = file_and_span(description)
        header = self.header(file)
        types = {
            name: self.declared.parsed_as(name, each)
            for name, each in schema.items()
            if name not in file.partitions or name in header
        }
        size = (
            BLOCK
            if len(types) <= _FEW_COLUMNS
            else max(_SMALL_BLOCK, BLOCK * _FEW_COLUMNS // len(types))
        )
        for block in self._blocks(file, start, end, size):  # without records, it may lack a header
            if header or self.has_header:
                check_columns(file.url, types, header)
            self.declared.check_others(file.url, [*header, *file.partitions], schema)
            yield self._batch(file, block, header, types, schema)

    def _batch(
        self, file: InputFile, block: LineBlock, header: list[str], types: Types, schema: Schema
    ) -> Batch:
        """The block as columns, with Hive partitions, without the lines that do not parse."""
        rejected: list[Rejected] = []
        parsed = list(self._tables(file, block, header, types, rejected))
        tables = []
        for table, _ in parsed:
            names = [name for name in table.column_names if table[name].null_count < len(table)]
            self.declared.check_others(file.url, names, schema)
            tables.append(table.select([name for name in table.column_names if name in schema]))
        table = pa.concat_tables(tables, promote_options="default") if parsed else pa.table({})
        columns = {name: table[name] for name in table.column_names}
        begins, lines = block.lines()
        rows = np.concatenate([*(rows for _, rows in parsed), np.zeros(0, np.int64)])
        return Batch(
            columns=self.with_partitions(file, columns, len(rows)),
            file=file.url,
            offsets=block.offset + begins[rows],
            unit="byte",
            lines=None if block.number is None else block.number + lines[rows],
            rejected=rejected,
        )

    def _tables(
        self,
        file: InputFile,
        block: LineBlock,
        header: list[str],
        types: Types,
        rejected: list[Rejected],
    ) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        """The lines of a block as tables, each with the numbers of its lines in ``block.lines``.

        A block that parses is one table. Otherwise the lines that do not parse are found by
        bisection and added to ``rejected``.

        Raises:
            SourceError: the end of a line is within a record.
        """
        begins, lines = block.lines()
        pending = [(0, len(lines))] if len(lines) else []
        while pending:
            first, last = pending.pop()
            try:
                table = self._table(header, block.content[begins[first] : begins[last]], types)
                if len(table) != last - first:
                    raise pa.ArrowInvalid("the line holds no record, or several")
            except pa.ArrowInvalid as error:
                if last - first > 1:
                    middle = (first + last) // 2
                    pending += [(middle, last), (first, middle)]
                    continue
                line = None if block.number is None else block.number + int(lines[first])
                offset = block.offset + int(begins[first])
                reason = self.why_rejected(header, error)[:300]
                record = Rejected(file.url, offset, "byte", reason, line=line)
                if isinstance(error, DividedRecord):
                    raise SourceError(f"{file.url} at {record.place}: {reason}") from error
                rejected.append(record)
            else:
                yield table, np.arange(first, last)

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


def _without_rarer(counts: Counts) -> Counts:
    """The columns without what fewer lines have: a field, or the fields of an object of its name.

    Where the lines are as many, a name with a dot is that of a field.
    """
    lines = {
        name: sum(n for feature, n in each.items() if feature) for name, each in counts.items()
    }
    dropped: set[str] = set()
    for outer in counts:
        inner = [name for name in counts if name.startswith(f"{outer}.")]
        most = max((lines[name] for name in inner), default=lines[outer])
        dropped.update([outer] if lines[outer] < most else inner if lines[outer] > most else [])
    return {name: each for name, each in counts.items() if name not in dropped}


def _why_large(values: pa.Array) -> str | None:
    """Why these may be integers that float64 rounds; None if they are not."""
    if not pa.types.is_floating(values.type):
        return None
    finite = values.filter(pc.is_finite(values))
    large = finite.filter(pc.greater_equal(pc.abs(finite), 2.0**63))
    if not len(large) or not pc.all(pc.equal(values, pc.trunc(values))).as_py():
        return None
    return (
        f"integers such as {large[0].as_py():.0f} have more than 64 bits, which float64 rounds and "
        "string keeps"
    )


def _why_no_text(values: pa.Array) -> str | None:
    """Why these texts may be numbers; None if they are texts."""
    if not pa.types.is_string(values.type) or not len(values):
        return None
    with_comma = values.filter(pc.match_substring(values, ","))
    if len(with_comma) and pc.all(pc.match_substring_regex(values, _WITH_COMMAS)).as_py():
        return (
            f"{with_comma[0].as_py()!r} is a number if 'decimal' is ','; write numbers without "
            "commas if these separate thousands"
        )
    are_numbers = pc.match_substring_regex(values, _NUMBER)
    count = pc.sum(are_numbers).as_py()
    if not _MANY * len(values) <= count < len(values):
        return None
    other = values.filter(pc.invert(are_numbers))[0].as_py()
    return (
        f"{count} of {len(values)} values are numbers, but {other!r} is not; if that means a "
        "missing value, add it to 'nulls'"
    )
