"""The protocol of a source: list its fragments, and read a fragment as batches of columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Schema


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

    ``records`` is an estimate of their number, where damage hides the ends of records.
    """

    file: str
    offset: int
    unit: str
    reason: str
    records: int = 1


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some records of one file as columns, NumPy's or Arrow's, in which values may be null.

    ``offsets`` are the records' positions in the file, in ``unit``. ``keys`` are their keys, if
    the source has them. ``rejected`` are the records of the same range that do not parse.
    """

    columns: Mapping[str, Any]
    file: str
    offsets: NDArray[np.int64]
    unit: str
    keys: Sequence[str] | None = None
    rejected: Sequence[Rejected] = field(default=())

    def __len__(self) -> int:
        return len(self.offsets)


class Source(Protocol):
    """A source of raw records."""

    def described(self) -> Mapping[str, Any]:
        """The description that opens this source again, with all that listing it determined."""
        ...

    def fragments(self) -> Iterator[Fragment]:
        """All fragments as they are now, always in the same order."""
        ...

    def schema(self) -> Schema | None:
        """The features of the records, inferred from the first; None if that costs too much."""
        ...

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        """The records of one fragment, always in the same order, text parsed by ``schema``."""
        ...
