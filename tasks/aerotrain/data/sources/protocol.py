"""The protocol of a source: list its fragments, and read a fragment as batches of columns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, SpecError, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import is_list_type, largest_of, nulls_within


class SourceError(FinalError):
    """An input cannot be read: it is damaged, or not of the kind that its source declares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """A part of a source that can be read alone: a file, a range of one, a bundle of small ones.

    ``description`` is JSON by which the source finds it again; ``bytes`` is the approximate size
    of its records, None if unknown.
    """

    name: str
    fingerprint: str
    bytes: int | None
    description: Mapping[str, Any]


@dataclass(frozen=True)
class Rejected:
    """A record that does not parse: its offset, in ``unit`` from the file's start, and why.

    ``line`` is the number of its line, from 1, in a file of lines, if that is known.
    """

    file: str
    offset: int
    unit: str
    reason: str
    line: int | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        """Where it is in its file, in words."""
        return f"{self.unit} {self.offset}" if self.line is None else f"line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How lists of different lengths become arrays of ``length`` values.

    ``value`` follows the values of shorter lists, by default 0, or an empty string. Records with
    longer lists are rejected, or lose the values at the end if ``longer`` is ``"truncate"``.
    """

    length: int
    value: Any = None
    longer: str = "reject"

    def feature(self, value: Feature) -> Feature:
        """The feature of the arrays of such values."""
        return Feature(value.dtype, (self.length, *value.shape))


@dataclass
class Gap:
    """How many of some records lack an integer of a column, and the greatest absolute value.

    A list lacks one if it holds a null. The value is -1 if there is none.
    """

    missing: int = 0
    records: int = 0
    largest: int = -1

    def add(self, values: pa.Array) -> None:
        """Count Arrow values, unless they are neither integers nor lists of integers."""
        missing, records, kind = values.null_count, len(values), values.type
        if is_list_type(kind):
            missing = int(nulls_within(values).sum())
        while is_list_type(values.type):
            values = values.flatten()
        if pa.types.is_integer(values.type):
            self.largest = max(self.largest, largest_of(values))
        if pa.types.is_integer(values.type) or pa.types.is_null(kind):
            self.missing, self.records = self.missing + missing, self.records + records


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some records of one file as columns, NumPy's or Arrow's, in which values may be null.

    ``offsets`` are the records' positions in the file, in ``unit``. ``keys`` are their keys, if
    the source has them. ``rejected`` are the records of the same range that do not parse.
    ``padding`` is that of columns of lists, which the cast to the schema applies. ``line_at`` gives
    the number of the line at an offset, if the file has lines.
    """

    columns: Mapping[str, Any]
    file: str
    offsets: NDArray[np.int64]
    unit: str
    keys: Sequence[str] | None = None
    rejected: Sequence[Rejected] = field(default=())
    padding: Mapping[str, Padding] = field(default_factory=dict)
    line_at: Callable[[int], int | None] = lambda _: None

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice) -> Self:
        """The batch of some adjacent rows; the rejected records are in that of row 0."""
        return replace(
            self,
            columns={name: values[rows] for name, values in self.columns.items()},
            offsets=self.offsets[rows],
            keys=None if self.keys is None else self.keys[rows],
            rejected=() if rows.start else self.rejected,
        )

    def reject(self, row: int, reason: str) -> Rejected:
        """The record in that row as a rejected one."""
        offset = int(self.offsets[row])
        if self.keys is not None:
            reason = f"record {self.keys[row]!r}: {reason}"
        return Rejected(self.file, offset, self.unit, reason, line=self.line_at(offset))


#: The most records, and about the most bytes of them, in the batch of a ``BatchBuilder``.
_MOST_RECORDS = 1024
_MOST_BYTES = 4 * 2**20


@dataclass
class BatchBuilder:
    """Collects the records of a batch, for sources that read them one by one."""

    file: str
    unit: str
    bytes: int = 0
    records: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, offset: int, record: Any, size: int) -> None:
        """Add a record of ``size`` bytes."""
        self.offsets.append(offset)
        self.records.append(record)
        self.bytes += size

    @property
    def is_full(self) -> bool:
        records = len(self.records) + len(self.rejected)
        return records >= _MOST_RECORDS or self.bytes >= _MOST_BYTES

    def reject(self, offset: int, reason: str) -> None:
        self.rejected.append(Rejected(self.file, offset, self.unit, reason))

    def batch(self, columns: Mapping[str, Any]) -> Batch:
        return Batch(
            columns=columns,
            file=self.file,
            offsets=np.array(self.offsets, np.int64),
            unit=self.unit,
            keys=self.keys or None,
            rejected=self.rejected,
        )


class Source(Protocol):
    """A source of raw records."""

    def described(self) -> Mapping[str, Any]:
        """The description that opens this source again, with all that listing it determined."""
        ...

    def facts(self) -> Mapping[str, str]:
        """What was found out about the source besides its schema, by title, to be shown."""
        ...

    def fragments(self) -> Iterator[Fragment]:
        """All fragments as they are now, always in the same order."""
        ...

    def schema(self) -> Schema | None:
        """The features of the records, inferred from the first; None if that costs too much.

        They hold each value as it was read: ``DeclaredSource`` says which of them are stored.
        """
        ...

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        """The records of one fragment, always in the same order, text parsed by ``schema``."""
        ...


def check_options(description: Mapping[str, Any], required: Set[str], optional: Set[str]) -> None:
    """Check that a description has the options that its kind requires, and no unknown ones.

    Raises:
        SpecError: an option is missing or unknown.
    """
    kind, given = description["kind"], set(description) - {"kind"}
    known = sorted(required | optional)
    for key in sorted(given - required - optional):
        raise SpecError(
            f"a source of kind {kind!r} has no {key!r}{nearest(key, known)}; "
            f"it has {', '.join(known)}"
        )
    for key in sorted(required - given):
        raise SpecError(
            f"a source of kind {kind!r} needs {key!r}; it has "
            f"{', '.join(sorted(given)) or 'nothing'}"
        )


def check_names(key: str, names: Any) -> None:
    """Check that the option ``key`` is a list of different names. Raises ``SpecError``."""
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise SpecError(f"{key!r} must be a list of names, got {names!r}")
    for name, count in Counter(names).items():
        if count > 1:
            raise SpecError(f"{key!r} has {name!r} more than once; name each column once")


def check_selected(url: str, selected: Sequence[str], found: Sequence[str]) -> None:
    """Check that the selected columns are among those found. Raises ``SpecError``."""
    for name in selected:
        if name not in found:
            raise SpecError(
                f"{url} has no column {name!r}{nearest(name, found)}; it has {', '.join(found)}"
            )


def check_columns(url: str, names: Iterable[str], found: Sequence[str]) -> None:
    """Check that a file has each of these columns once, with a name. Raises ``SourceError``."""
    counts = Counter(found)
    for name in names:
        if not name:
            raise SourceError(
                f"{url} has a column without a name, number {list(found).index(name) + 1}, like "
                "the index that pandas writes; give it a name, or leave it out with 'skip': ['']"
            )
        if name not in counts:
            raise SourceError(
                f"{url} has no column {name!r}{nearest(name, found)}; it has "
                f"{', '.join(found) or 'none'}; give all files the same columns, or leave it "
                "out with 'skip'"
            )
        if (count := counts[name]) > 1:
            raise SourceError(
                f"{url} has {count} columns called {name!r}; give them different names, or "
                "leave them out with 'skip'"
            )
