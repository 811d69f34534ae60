"""CSV files: values separated by a delimiter, with a header or with ``names`` for the columns.

The types of columns are inferred, and bad lines isolated, in ``text.py``.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from aerotrain.contract.errors import SpecError
from aerotrain.contract.validation import Columns, check, value_type
from aerotrain.data.sources.batch import SourceError
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.lines import first_line
from aerotrain.data.sources.numbers import FORMS
from aerotrain.data.sources.text import DividedRecord, TextSource, Types

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
        names = description.get("names", [])
        check("names", value_type(Columns), names, " of a source of kind 'csv'")
        if len(set(names)) < len(names):
            raise SpecError(f"'names' has a name twice: {', '.join(names)}; name each column once")
        self._names = list(names)
        self.has_header = not self._names

    def facts(self) -> dict[str, str]:
        format_of = f"{self._delimiter!r} between values, {self._decimal!r} in numbers"
        if any(str(each).partition(" ")[2] in FORMS for each in self.declared.types.values()):
            format_of += " without a form in 'types'"
        return {**super().facts(), "format": format_of}

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
        integers = _of_type(read, pa.types.is_integer)
        if integers:
            texts = self._read(header, content, dict.fromkeys(integers, pa.string()))
            for name in integers:
                if pc.any(pc.match_substring_regex(texts[name], _LEADING_ZERO)).as_py():
                    read = read.set_column(read.column_names.index(name), name, texts[name])
        return read

    def _check_finite(self, header: list[str], content: bytes, read: pa.Table) -> None:
        """Check that no number is infinite but as a text. Raises ``pa.ArrowInvalid``."""
        for name in _of_type(read, pa.types.is_floating):
            infinite = pc.is_inf(read[name])
            if not pc.any(infinite).as_py():
                continue
            texts = pc.filter(self._read(header, content, {name: pa.string()})[name], infinite)
            for text in pc.filter(texts, pc.match_substring_regex(texts, r"\d")):
                raise pa.ArrowInvalid(f"{text} is beyond the range of float64, 1.8e308")

    def _read(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(
                use_threads=False, column_names=header, block_size=max(len(content), 1)
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
            raise DividedRecord(
                f"a value in quotes does not end in its line ({error}); files are cut at line "
                "ends, so write values without line breaks, or as JSON lines or Parquet"
            ) from error

    def why_rejected(self, header: list[str], error: pa.ArrowInvalid) -> str:
        found = _WRONG.search(why := super().why_rejected(header, error))
        if found is None:
            return why
        number, kind, what = found.groups()
        name = repr(header[int(number)]) if int(number) < len(header) else number
        value = what.removeprefix("invalid value ")
        if value == what:
            return f"column {name}: {what}"
        return f"column {name}: {value} is no {_KINDS.get(kind, kind)}"

    def header(self, file: InputFile) -> list[str]:
        if self._names:
            return self._names
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

    def why_other_format(self, beginning: bytes) -> str | None:
        if b"\r" in beginning and b"\n" not in beginning:
            return "ends its lines with CR alone; end them with LF, or CR and LF"
        delimiter = self._delimiter.encode()
        lines = beginning.splitlines()[:_COMPARED_LINES] or [b""]
        first = lines[0]
        are_numbers = all(_NUMBER.fullmatch(each.strip()) for each in first.split(delimiter))
        if are_numbers and not self._names and self.declared.columns is None:
            return (
                "begins with numbers where the names of its columns are expected; give the names "
                "in 'names', or, if these are names, in 'columns'"
            )
        if delimiter in first or "delimiter" in self.description:
            return None
        counts = {each: first.count(each.encode()) for each in _DELIMITERS}
        most = max(counts, key=lambda each: counts[each])
        if not counts[most]:
            return _BY_BLANKS if _are_between_blanks(lines) else None
        return (
            f"has no ',' in its first line, but {counts[most]} {most!r}; set 'delimiter' to "
            "what separates its values"
        )


def _of_type(table: pa.Table, is_type: Callable[[pa.DataType], bool]) -> list[str]:
    """The columns of a type, except those whose names occur twice."""
    counts = Counter(table.column_names)
    return [each.name for each in table.schema if is_type(each.type) and counts[each.name] == 1]


def _are_between_blanks(lines: Sequence[bytes]) -> bool:
    """Whether lines are values between blanks: as many on each, with numbers on the later ones."""
    first, *later = [line.split() for line in lines]
    if len(first) < 2 or any(len(line) != len(first) for line in later):
        return False
    return any(_NUMBER.fullmatch(each) for line in later or [first] for each in line)


def _nulls_for_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_string(column.type):
        return column
    empty = pc.equal(column, "")
    is_any = pc.any(empty).as_py()
    return pc.if_else(empty, pa.scalar(None, pa.string()), column) if is_any else column
