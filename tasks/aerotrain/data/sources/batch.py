"""What a source yields: fragments, and the batches of columns that are read of one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature


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
