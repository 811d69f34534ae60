"""A file of a source: what names it, and file objects that read it by range requests."""

import errno
import io
import os
from functools import lru_cache
from typing import IO, Any, NamedTuple, cast
from urllib.parse import quote, unquote

import pyarrow as pa

from aerotrain.data.sources.hive import partitions_of
from aerotrain.data.sources.protocol import SourceError
from aerotrain.store import Store, open_store

#: Bytes of one range request.
BLOCK = 8 * 2**20

#: Size of the buffer in which the end of a line, or of a record, is searched.
_BUFFER = 2**16

#: Bytes at a file's start by which its format is checked.
_CHECKED_BYTES = 2**16

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

_LET_NAME = "but its name does not say so; let it end in"

#: The magic numbers of other formats, what they are, and what to do.
_MAGIC_NUMBERS = {
    b"\x1f\x8b": f"is compressed by gzip, {_LET_NAME} .gz",
    b"\x28\xb5\x2f\xfd": f"is compressed by zstd, {_LET_NAME} .zst",
    b"BZh": f"is compressed by bzip2, {_LET_NAME} .bz2",
    b"\xfd7zXZ\0": "is compressed by xz, which is not supported; compress it with zstd or gzip",
    b"PK\3\4": "is a zip archive; unpack it",
    b"PAR1": "is a Parquet file; read it as kind 'parquet'",
    b"\xff\xfe": "is in UTF-16; write it in UTF-8",
    b"\xfe\xff": "is in UTF-16; write it in UTF-8",
    b"<!DOCTYPE": "is a page of HTML; check the address that it was downloaded from",
    b"<html": "is a page of HTML; check the address that it was downloaded from",
    b"<?xml": "is XML, which is not supported; write JSON lines or Parquet",
}


class InputFile(NamedTuple):
    """One version of one object: the URL of its store, its key, its size in bytes, its ETag.

    Its JSON form is a list, and ``InputFile(*list)`` restores it, so that a plan of a million
    files needs no second representation.
    """

    store: str
    key: str
    size: int
    etag: str

    @property
    def url(self) -> str:
        scheme, _, rest = self._decoded.partition(":")
        return f"{scheme}:{quote(rest)}" if scheme == "file" else self._decoded

    @property
    def folder(self) -> str:
        """The name of the file's folder, without percent-encoding."""
        return self._decoded.split("/")[-2]

    @property
    def _decoded(self) -> str:
        """Its URL with folders and file as they are called."""
        store = unquote(self.store) if self.store.startswith("file:") else self.store
        return f"{store}/{self.key}"

    @property
    def compression(self) -> str | None:
        """The codec by the file name's suffix, if any."""
        name = self.key.lower()
        return next((_CODECS[end] for end in _CODECS if name.endswith(end)), None)

    @property
    def partitions(self) -> dict[str, str | None]:
        """The Hive partitions of the file, by name: the ``name=value`` folders in its path."""
        return partitions_of(self._decoded)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``. Raises ``ChangedError``."""
        return store_at(self.store).get_range(self.key, start, min(end, self.size), self.etag)

    def open(self) -> IO[bytes]:
        """A seekable file object of the stored bytes; a read is short only at the file's end."""
        return cast(IO[bytes], _RangeReader(self))

    def stream(self) -> IO[bytes]:
        """The content from the start, decompressed if the name has a codec's suffix."""
        if self.compression is None:
            return io.BufferedReader(_RangeReader(self), _BUFFER)
        raw = pa.CompressedInputStream(pa.PythonFile(self.open(), "r"), self.compression)
        return io.BufferedReader(_Decompressed(raw, self.url))


class _RangeReader(io.RawIOBase):
    """A file object over range requests: large reads are passed on, small ones read a block."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._position = 0
        self._block = b""
        self._block_start = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}
        if base[whence] + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as any other file does
        self._position = base[whence] + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start = self._position
        end = self._file.size if size is None or size < 0 else min(start + size, self._file.size)
        data = self._range(start, end) if start < end else b""
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _range(self, start: int, end: int) -> bytes:
        if not self._block_start <= start <= end <= self._block_start + len(self._block):
            if end - start >= BLOCK // 2:
                return self._file.read(start, end)  # a copy would take as long as reading it
            self._block_start, self._block = start, self._file.read(start, start + BLOCK)
        return self._block[start - self._block_start : end - self._block_start]


class _Decompressed(io.RawIOBase):
    """A decompressing stream whose errors name the file."""

    def __init__(self, stream: pa.NativeFile, url: str) -> None:
        self._stream = stream
        self._url = url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except OSError as error:
            raise SourceError(
                f"{self._url} cannot be decompressed: {error}; write it again"
            ) from error
        buffer[: len(data)] = data
        return len(data)


def checked_beginning(file: InputFile) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        SourceError: they are the magic number of another format.
    """
    with file.stream() as stream:
        beginning = bytes(stream.read(_CHECKED_BYTES))
    for magic, what in _MAGIC_NUMBERS.items():
        if beginning.startswith(magic):
            raise SourceError(f"{file.url} {what}")
    return beginning


@lru_cache(maxsize=64)
def store_at(url: str) -> Store:
    """The store of a URL, which is opened once."""
    return open_store(url)
