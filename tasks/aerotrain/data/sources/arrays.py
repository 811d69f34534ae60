"""``.npy`` files: the first axis of each array is the record.

``numpy.lib.format`` describes them: a header holds dtype and shape, and the values follow in C
order.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.hashing import short_hash
from aerotrain.data.records import column_of
from aerotrain.data.sources.input_file import InputFile
from aerotrain.data.sources.listing import files_of
from aerotrain.data.sources.protocol import Batch, Fragment, SourceError, check_options

#: Bytes of arrays in one fragment, and in one batch.
FRAGMENT_BYTES = 64 * 2**20
_BATCH_BYTES = 4 * 2**20

_LONGEST_HEADER = 2**16


@dataclass(frozen=True)
class _Header:
    """The header of an array file: dtype, shape, and the offset of the values in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])


def _npy_header(stream: IO[bytes]) -> _Header:
    """The header of a ``.npy`` file. Raises ``ValueError`` if it is not one."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects; save an array of numbers")
    if fortran and len(shape) > 1:
        raise ValueError("it is in Fortran order; save it with numpy.ascontiguousarray")
    return _Header(dtype, shape, stream.tell())


@dataclass(frozen=True)
class ArraySource:
    """One file for each feature, such as ``{"image": "….npy", "label": "….npy"}``."""

    description: Mapping[str, Any]

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """A source of kind ``npy``."""
        check_options(description, {"features"}, {"types"})
        return cls(description)

    @cached_property
    def _files(self) -> dict[str, InputFile]:
        found = {}
        for name, url in self.description["features"].items():
            files = files_of(url)
            if len(files) != 1:
                raise SourceError(
                    f"{url} names {len(files)} files for the feature {name!r}; name exactly one"
                )
            found[name] = files[0]
        return found

    @cached_property
    def _headers(self) -> dict[str, _Header]:
        headers = {name: self._header(file) for name, file in self._files.items()}
        _common_count(headers)
        return headers

    def _header(self, file: InputFile) -> _Header:
        with file.stream() as stream:
            beginning = io.BytesIO(stream.read(_LONGEST_HEADER))
        header = _header_of(file.url, beginning)
        end = header.begin + header.shape[0] * header.row_bytes if header.shape else 0
        if file.compression is None and end > file.size:
            raise _cut_off(file.url, header)
        return header

    def described(self) -> Mapping[str, Any]:
        return self.description

    def facts(self) -> dict[str, str]:
        return {"files": ", ".join(file.url for file in self._files.values())}

    def schema(self) -> Schema:
        return {name: _feature_of(name, header) for name, header in self._headers.items()}

    def fragments(self) -> Iterator[Fragment]:
        rows = next(iter(self._headers.values())).shape[0]
        size = sum(header.row_bytes for header in self._headers.values())
        whole = any(file.compression for file in self._files.values())
        count = 1 if whole else max(1, min(rows, -(-rows * size // FRAGMENT_BYTES)))
        tags = [file.etag for file in self._files.values()]
        urls = [file.url for file in self._files.values()]
        for first, last in pairwise(rows * number // count for number in range(count + 1)):
            name = f"{urls[0]}:{first}-{last}"
            yield Fragment(
                name=name,
                fingerprint=short_hash(name, *urls, *tags),
                bytes=(last - first) * size,
                description={"files": self._files, "rows": [first, last]},
            )

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        files = {name: InputFile(*each) for name, each in description["files"].items()}
        first, last = description["rows"]
        with ExitStack() as stack:
            arrays = {}
            for name, file in files.items():
                header = self._header(file)
                stream = stack.enter_context(file.stream() if file.compression else file.open())
                _skip(stream, header.begin + first * header.row_bytes)
                arrays[name] = _Rows(stream, header, file.url)
            yield from _batches(arrays, first, last, next(iter(files.values())).url)


@dataclass(frozen=True)
class _Rows:
    """An array whose rows are read from a stream, one batch after another."""

    stream: IO[bytes]
    header: _Header
    url: str

    def take(self, count: int) -> NDArray[Any]:
        """The next rows, in this machine's byte order."""
        header = self.header
        data = _read(self.stream, count * header.row_bytes)
        if len(data) < count * header.row_bytes:
            raise _cut_off(self.url, header)
        rows = np.frombuffer(data, header.dtype).reshape(count, *header.shape[1:])
        return rows.astype(_native(header.dtype), copy=False)


def _batches(arrays: Mapping[str, _Rows], first: int, last: int, url: str) -> Iterator[Batch]:
    """The rows from ``first`` up to ``last``, of arrays positioned at row ``first``."""
    size = sum(rows.header.row_bytes for rows in arrays.values())
    at_once = max(1, _BATCH_BYTES // max(1, size))
    for row in range(first, last, at_once):
        end = min(last, row + at_once)
        yield Batch(
            columns={name: rows.take(end - row) for name, rows in arrays.items()},
            file=url,
            offsets=np.arange(row, end),
            unit="row",
        )


def _cut_off(url: str, header: _Header) -> SourceError:
    return SourceError(
        f"{url} ends before the last of the {header.shape[0]} records that its header counts; "
        "it was truncated: write it again"
    )


def _read(stream: IO[bytes], count: int) -> bytes:
    """``count`` bytes, or all that exist: a wrong header must not make this allocate memory."""
    parts = []
    while count and (read := stream.read(min(count, _BATCH_BYTES))):
        parts.append(read)
        count -= len(read)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _skip(stream: IO[bytes], count: int) -> None:
    """Skip ``count`` bytes, also in a stream that cannot seek."""
    if stream.seekable():
        stream.seek(count)
        return
    while count > 0 and (read := len(stream.read(min(count, _BATCH_BYTES)))):
        count -= read


def _header_of(url: str, stream: IO[bytes]) -> _Header:
    """The header of one array. Raises ``SourceError`` if it is not one."""
    try:
        return _npy_header(stream)
    except ValueError as error:
        raise SourceError(f"{url} is not a npy file that can be read: {error}") from error


def _feature_of(name: str, header: _Header) -> Feature:
    """The feature that a row of the array becomes."""
    dtype = column_of(name, np.zeros(0, _native(header.dtype))).feature.dtype
    return Feature(dtype, header.shape[1:])


def _common_count(headers: Mapping[str, _Header]) -> int:
    """The number of records, which must be that of each array.

    Raises:
        SourceError: it differs or is 0, or no record has a value.
    """
    counts = {name: header.shape[0] if header.shape else 0 for name, header in headers.items()}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise SourceError(
            f"the features have different numbers of records: {counted}; give files of equal length"
        )
    count = next(iter(counts.values()), 0)
    if not count:
        raise SourceError("the source is empty: its arrays have no record")
    if not any(header.row_bytes for header in headers.values()):
        raise SourceError(f"the source is empty: its records hold no value, all {count} of them")
    return count


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")
