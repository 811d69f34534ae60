"""CSV files: values separated by a delimiter, with a header or with ``names`` for the columns.

The types of columns are inferred, and bad lines isolated, in ``text.py``.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from aerotrain.contract.errors import SpecError
from aerotrain.data.sources.batch import SourceError
from aerotrain.data.sources.declared import check_columns, check_names
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.lines import LineBlock, blocks, first_line
from aerotrain.data.sources.text import TextSource, Types

#: How many lines are searched for the end of a quoted value.
_MOST_LINES = 1000

#: Bytes on both sides of a block's edge in which a value in quotes across it is recognized.
_NEAR = 2**16

#: Common delimiters other than the comma.
_DELIMITERS = "\t;|"

#: A number, perhaps in quotes.
_NUMBER = re.compile(rb'"?[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"?')

_BY_BLANKS = (
    "has no ',' in its first lines, but numbers between blanks; set 'delimiter' to ' ' if one "
    "blank separates two values, write commas if several do, or set 'delimiter' to ',' if a line "
    "is one value"
)

#: How many lines of a file are compared to see whether blanks separate their values.
_COMPARED_LINES = 20

#: What Arrow says of a value of another type.
_WRONG = re.compile(r"^In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to (\S+): (.*)$")

#: Arrow's types that have another name in ``types``.
_KINDS = {"double": "number"}

#: The most characters of a value that a message shows.
_SHOWN = 80

_LEADING_ZERO = r"^[+-]?0\d"

#: The words for a missing number, unless a source names others.
NULL_NUMBERS = ["", "NULL", "null", "NA", "N/A", "NaN", "nan"]


class CsvSource(TextSource):
    """CSV files below a URL.

    ``names`` are those of the columns if the files have no header, ``decimal`` is the mark in
    numbers if not a point.
    """

    options = TextSource.options | {"delimiter", "names", "decimal"}

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._decimal: str = description.get("decimal", ".")
        self._delimiter: str = description.get("delimiter", ",")
        if self._decimal not in (".", ",") or self._decimal == self._delimiter:
            raise SpecError(
                f"'decimal' must be '.' or ',', and another character than 'delimiter', "
                f"{self._delimiter!r}, got {self._decimal!r}; set both to those of the files"
            )
        check_names("names", description.get("names", ()))
        self._names = list(description.get("names", ()))

    def facts(self) -> dict[str, str]:
        header = "none; 'names' has the names" if self._names else "the first line of each file"
        format_of = f"{self._delimiter!r} between values, {self._decimal!r} in numbers"
        return {**super().facts(), "header": header, "format": format_of}

    def parse(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        self._check_last_line(content)
        read = self._read(header, content, types)
        if not types:
            read = self._with_leading_zeros(header, content, read)
        self._check_finite(header, content, read)
        # Only an empty text is missing: NA is a country, and Null a name.
        return pa.table([_nulls_for_empty(each) for each in read.columns], read.column_names)

    def _with_leading_zeros(self, header: list[str], content: bytes, read: pa.Table) -> pa.Table:
        """The table with texts for integers that begin with zeros, such as postal codes."""
        names = read.column_names
        integers = [each.name for each in read.schema if pa.types.is_integer(each.type)]
        integers = [name for name in integers if names.count(name) == 1]
        if integers:
            texts = self._read(header, content, dict.fromkeys(integers, pa.string()))
            for name in integers:
                if pc.any(pc.match_substring_regex(texts[name], _LEADING_ZERO)).as_py():
                    read = read.set_column(names.index(name), name, texts[name])
        return read

    def _check_finite(self, header: list[str], content: bytes, read: pa.Table) -> None:
        """Check that no number is infinite but as a text. Raises ``pa.ArrowInvalid``."""
        floats = [each.name for each in read.schema if pa.types.is_floating(each.type)]
        unique = [name for name in floats if read.column_names.count(name) == 1]
        for name in [name for name in unique if pc.any(pc.is_inf(read[name])).as_py()]:
            texts = self._read(header, content, {name: pa.string()})[name]
            digits = pc.and_(pc.is_inf(read[name]), pc.match_substring_regex(texts, r"\d"))
            if pc.any(digits).as_py():
                text = pc.filter(texts, digits)[0]
                raise pa.ArrowInvalid(f"{text} is beyond the range of float64, 1.8e308")

    def _read(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(content),
                pyarrow.csv.ReadOptions(
                    use_threads=False,
                    column_names=header or self._names,
                    block_size=max(len(content), 1),
                ),
                pyarrow.csv.ParseOptions(delimiter=self._delimiter),
                pyarrow.csv.ConvertOptions(
                    column_types=dict(types),
                    include_columns=list(types) or None,
                    timestamp_parsers=[],
                    null_values=[*NULL_NUMBERS, *self.declared.nulls],
                    decimal_point=self._decimal,
                ),
            )
        except KeyError as error:  # a column of a file without a header
            raise SpecError(f"{error}; see 'names' and 'columns' of the source") from error

    def _check_last_line(self, content: bytes) -> None:
        """Check that the last line closes its quotes; Arrow would end the text with the line."""
        content = content.rstrip(b"\r\n")  # blank lines may follow it
        last = content[content.rfind(b"\n") + 1 :]
        if last.count(b'"') % 2 == 0:
            return
        text = last.decode("utf-8", "replace")
        try:
            list(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise pa.ArrowInvalid(
                f"a value in quotes does not end in its line ({error}); files are cut at line "
                "ends, so write values without line breaks, or as JSON lines or Parquet"
            ) from error

    def lines_of_first(self, header: list[str], rest: Iterator[bytes]) -> int:
        texts = (line.decode("utf-8", "replace").rstrip("\r\n") + "\n" for line in rest)
        reader = csv.reader(islice(texts, _MOST_LINES), delimiter=self._delimiter, strict=True)
        try:
            is_record = len(next(reader)) == len(header or self._names)
        except (csv.Error, StopIteration):
            return 1  # an unterminated quote
        return reader.line_num if is_record else 1

    def why_rejected(self, header: list[str], error: pa.ArrowInvalid) -> str:
        found = _WRONG.search(why := super().why_rejected(header, error))
        if found is None:
            return why
        number, kind, what = found.groups()
        names = header or self._names
        name = repr(names[int(number)]) if int(number) < len(names) else number
        value = what.removeprefix("invalid value ")
        if value == what:
            return f"column {name}: {what}"
        return f"column {name}: {value[:_SHOWN]} is no {_KINDS.get(kind, kind)}"

    def header(self, file: InputFile) -> list[str]:
        if self._names:
            return []
        try:
            text = first_line(file).decode(self.encoding)
            names = next(csv.reader([text], delimiter=self._delimiter)) if text.strip() else []
            return [name.strip() for name in names]
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{file.url} is not {self.encoding.upper()} at byte {error.start} of its first "
                "line; set 'encoding', such as 'latin-1'"
            ) from error
        except csv.Error as error:
            raise SourceError(f"the first line of {file.url} is not a header: {error}") from error

    def check_header(self, file: InputFile, header: list[str], names: list[str]) -> None:
        if not self._names:
            check_columns(file.url, names, header)

    def blocks(self, file: InputFile, start: int, end: int) -> Iterator[LineBlock]:
        """The lines of records. All lines of a value in quotes are in the block of its first."""
        held = before = b""
        offset, number = start, None
        for block in blocks(file, start, end):
            if not held and not before and start:
                before = file.read(max(0, block.offset - _NEAR), block.offset)
            cut = self._bytes_of_last(file, before, block.content[:_NEAR])
            if held:
                yield LineBlock(offset, held + block.content[:cut], number)
            elif start == 0 and not before and not self._names:
                cut = block.content.find(b"\n") + 1 or len(block.content)
            before = (before + block.content[-_NEAR:])[-_NEAR:]
            held, offset = block.content[cut:], block.offset + cut
            number = block.number_at(offset)
        if held:
            after = (
                b""
                if file.compression
                else file.read(offset + len(held), offset + len(held) + _NEAR)
            )
            yield LineBlock(
                offset, held + after[: self._bytes_of_last(file, before, after)], number
            )

    def _bytes_of_last(self, file: InputFile, before: bytes, after: bytes) -> int:
        """How many bytes ``after`` an edge belong to the record on the last lines ``before`` it."""
        if b'"' not in before:
            return 0
        lines, following = (re.findall(rb"[^\n]*\n|[^\n]+$", each) for each in (before, after))
        place = int(len(before) == _NEAR)  # the first line may be incomplete
        while place < len(lines):
            if lines[place].count(b'"') % 2:
                rest = chain(islice(lines, place, None), following)
                place += self.lines_of_first(self.header(file), rest)
            else:
                place += 1
        return sum(map(len, following[: place - len(lines)]))

    def why_other_format(self, beginning: bytes, first_lines: list[bytes]) -> str | None:
        if b"\r" in beginning.strip() and b"\n" not in beginning:
            return "ends its lines with CR alone; end them with LF, or CR and LF"
        first, delimiter = first_lines[0], self._delimiter.encode()
        if not self._names and self.declared.columns is None and _are_numbers(first, delimiter):
            return (
                "begins with numbers where the names of its columns are expected; give the names "
                "in 'names', or, if these are names, in 'columns'"
            )
        if delimiter in first:
            return None
        if first.startswith(b"#") and delimiter in b"".join(first_lines[1:]):
            return "begins with a comment; remove its first line"
        counts = {each: first.count(each.encode()) for each in _DELIMITERS}
        most = max(counts, key=lambda each: counts[each])
        if "delimiter" in self.description:
            return None
        if not counts[most]:
            return _BY_BLANKS if _are_between_blanks(first_lines) else None
        return (
            f"has no ',' in its first line, but {counts[most]} {most!r}; set 'delimiter' to "
            "what separates its values"
        )


def _are_numbers(line: bytes, delimiter: bytes) -> bool:
    return all(_NUMBER.fullmatch(each.strip()) for each in line.split(delimiter))


def _are_between_blanks(lines: Sequence[bytes]) -> bool:
    """Whether lines are values between blanks: as many on each, with numbers on the later ones."""
    first, *later = [line.split() for line in lines[:_COMPARED_LINES]]
    if len(first) < 2 or any(len(line) != len(first) for line in later):
        return False
    return any(_NUMBER.fullmatch(each) for line in later or [first] for each in line)


def _nulls_for_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_string(column.type):
        return column
    empty = pc.equal(column, "")
    return (
        pc.if_else(empty, pa.scalar(None, pa.string()), column) if pc.any(empty).as_py() else column
    )
