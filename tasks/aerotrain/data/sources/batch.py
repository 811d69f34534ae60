"""What a source yields: fragments, and the batches of columns that are read of one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.contract.validation import Count, Limits, Validated
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
class Padding(Validated):
    """How lists of different lengths become arrays of ``length`` values.

    ``value`` follows the values of shorter lists, by default 0, or an empty string. Records with
    longer lists are rejected, or lose the values at the end if ``longer`` is ``"truncate"``.
    """

    TITLE: ClassVar = "pad"

    length: Count
    value: Any = None
    longer: Annotated[str, Limits(choices=("reject", "truncate"))] = "reject"

    def feature(self, value: Feature) -> Feature:
        """The feature of the arrays of such values."""
        return Feature(value.dtype, (self.length, *value.shape))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some records of one file as columns, NumPy's or Arrow's, in which values may be null.

    ``offsets`` are the records' positions in the file, in ``unit``. ``keys`` are their keys, if
    the source has them. ``rejected`` are the records of the same range that do not parse.
    ``padding`` is that of columns of lists, which the cast to the schema applies. ``lines`` are the
    numbers of the records' lines, where they are known.
    """

    columns: Mapping[str, Any]
    file: str
    offsets: NDArray[np.int64]
    unit: str
    keys: Sequence[str] | None = None
    rejected: Sequence[Rejected] = field(default=())
    padding: Mapping[str, Padding] = field(default_factory=dict)
    lines: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice) -> Self:
        """The batch of some adjacent rows; the rejected records are in that of row 0."""
        return replace(
            self,
            columns={name: values[rows] for name, values in self.columns.items()},
            offsets=self.offsets[rows],
            keys=None if self.keys is None else self.keys[rows],
            lines=None if self.lines is None else self.lines[rows],
            rejected=() if rows.start else self.rejected,
        )

    def reject(self, row: int, reason: str) -> Rejected:
        """The record in that row as a rejected one."""
        if self.keys is not None:
            reason = f"record {self.keys[row]!r}: {reason}"
        line = None if self.lines is None else int(self.lines[row])
        return Rejected(self.file, int(self.offsets[row]), self.unit, reason, line=line)


#: The most records that are read one by one for a batch, and about the most bytes of them.
_MOST_RECORDS, _MOST_BYTES = 1024, 4 * 2**20

_Item = TypeVar("_Item")


def in_lists(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """The items of each batch, by their bytes, for sources that read one by one."""
    found: list[_Item] = []
    size = 0
    for item in items:
        found.append(item)
        size += size_of(item)
        if len(found) >= _MOST_RECORDS or size >= _MOST_BYTES:
            yield found
            found, size = [], 0
    yield found
