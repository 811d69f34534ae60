"""What every source can do: list its pieces, and read one of them as batches of columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Schema


class SourceError(FinalError):
    """An input cannot be read: it is damaged, or not what its source was said to be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """What is read at once and in order: a file, a range of one, or a bundle of small ones.

    ``description`` is JSON by which the source finds it again; ``bytes`` is about what its
    records will take, or None where nobody can know.
    """

    name: str
    fingerprint: str
    bytes: int | None
    description: Mapping[str, Any]


@dataclass(frozen=True)
class Rejected:
    """A record that does not parse: where it lies, in ``unit`` from the file's start, and why.

    ``records`` is about how many there were, where damage hides where one ends.
    """

    file: str
    offset: int
    unit: str
    reason: str
    records: int = 1


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some records of one file as columns, NumPy's or Arrow's, in which values may be null.

    ``offsets`` says where each lies in the file, in ``unit``. ``keys`` are the records' own,
    where the source gives them. ``rejected`` are those between that do not parse.
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
    """Where raw records come from."""

    def described(self) -> Mapping[str, Any]:
        """What opens this source again, with all that its listing has settled."""
        ...

    def fragments(self) -> Iterator[Fragment]:
        """Every piece of it as it is now, always in the same order."""
        ...

    def schema(self) -> Schema | None:
        """The features of its records, by a look at the first; None where a look costs much."""
        ...

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        """The records of one piece, always in the same order, their texts parsed as ``schema``."""
        ...
