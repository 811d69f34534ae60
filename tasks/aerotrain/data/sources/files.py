"""The files that a URL names, and file objects that read them by range requests."""

import errno
import io
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from aerotrain.contract.errors import SpecError
from aerotrain.data.sources.protocol import SourceError
from aerotrain.store import MissingError, Store, StoreRefused, open_store

#: Bytes of one range request.
BLOCK = 8 * 2**20

#: Size of the buffer in which the end of a line, or of a record, is searched.
_LINE = 2**16

_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_WILD = re.compile(r"[*?\[]")
# Not "..", which no key may hold: reading it raises an error.
_DOTTED = re.compile(r"(^|/)\.(?!\.)")
_HIDDEN = re.compile(r"(^|/)(_|\.(?!\.))")
_PARTITION = re.compile(r"([A-Za-z_]\w*)=([^/]+)")


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
        return f"{self.store}/{self.key}"

    @property
    def compression(self) -> str | None:
        """The codec by the file name's suffix, if any."""
        name = self.key.lower()
        return next((_COMPRESSED[end] for end in _COMPRESSED if name.endswith(end)), None)

    @property
    def partitions(self) -> dict[str, str]:
        """The Hive partitions of the file: the ``name=value`` folders in its path."""
        return dict(_PARTITION.findall(self.url.rpartition("/")[0]))

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``. Raises ``ChangedError``."""
        return _store(self.store).get_range(self.key, start, min(end, self.size), self.etag)

    def open(self) -> IO[bytes]:
        """A seekable file object of the stored bytes; a read is short only at the file's end."""
        return cast(IO[bytes], _Ranges(self))

    def stream(self) -> IO[bytes]:
        """The content from the start, decompressed if the name has a codec's suffix."""
        if self.compression is None:
            return io.BufferedReader(_Ranges(self), _LINE)
        raw = pa.PythonFile(self.open(), "r")
        return io.BufferedReader(
            _Inflating(pa.CompressedInputStream(raw, self.compression), self.url)
        )


class _Ranges(io.RawIOBase):
    """A file object over range requests: large reads are passed on, small ones read a block."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._position = 0
        self._block = b""
        self._begin = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

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
        if not self._begin <= start <= end <= self._begin + len(self._block):
            if end - start >= BLOCK // 2:
                return self._file.read(start, end)  # a copy would take as long as reading it
            self._begin, self._block = start, self._file.read(start, start + BLOCK)
        return self._block[start - self._begin : end - self._begin]


class _Inflating(io.RawIOBase):
    """A decompressing stream whose errors name the file."""

    def __init__(self, stream: pa.NativeFile, url: str) -> None:
        self._stream = stream
        self._url = url

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size if size >= 0 else None)
        except OSError as error:
            raise SourceError(
                f"{self._url} cannot be decompressed: {error}; write it again"
            ) from error

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def files_of(url: str | Sequence[str]) -> list[InputFile]:
    """The sorted files of one or several URLs, each of a file, a folder or a glob.

    In a folder, names that begin with ``_`` or ``.`` are skipped. ``*`` matches within a path
    segment, ``**`` any number of segments.

    Raises:
        SourceError: there is no file.
    """
    if isinstance(url, str):
        return _files_of(url)
    found = {file.url: file for each in url for file in _files_of(each)}
    return [found[name] for name in sorted(found)]


def constants(file: InputFile, count: int) -> dict[str, pa.Array]:
    """The Hive partitions of a file as columns of its ``count`` records."""
    return {name: pa.repeat(pa.scalar(each), count) for name, each in file.partitions.items()}


def _files_of(url: str) -> list[InputFile]:
    base, pattern = _split_at_wildcard(url)
    if not pattern:
        folder, _, name = base.rpartition("/")
        try:
            if name:
                return [_input(folder, name)]
        except (MissingError, SpecError):
            pass  # it is a folder, or does not exist
        pattern = "**"
    matches = re.compile(_expression(pattern)).fullmatch
    hidden = _HIDDEN if pattern == "**" else _DOTTED
    base = base.rstrip("/")
    files = [
        InputFile(store=base, key=each.key, size=each.size, etag=each.etag)
        for each in _listed(base)
        if matches(each.key) and not hidden.search(each.key)
    ]
    if not files:
        raise SourceError(
            f"the source is empty: there is no file at {url}; check that the input is where "
            "the source looks for it"
        )
    for file in files:
        _check_name(file)
    files.sort(key=lambda file: file.key)  # some servers list a folder before "folder.csv"
    return files


def _check_name(file: InputFile) -> None:
    """Check that the name is valid UTF-8: JSON and error messages could not hold another."""
    try:
        file.key.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{file.store} holds a file whose name is not UTF-8: {os.fsencode(file.key)!r}; "
            "rename it"
        ) from error


def _input(folder: str, name: str) -> InputFile:
    found = _store(folder).stat(name)
    return InputFile(store=folder, key=name, size=found.size, etag=found.etag)


def _listed(url: str) -> Iterator[Any]:
    try:
        yield from _store(url).list()
    except StoreRefused as error:
        raise StoreRefused(
            f"{error}; if the bucket may be read but not listed, name its files one by one: "
            "'url' may be a list"
        ) from error


def _split_at_wildcard(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    segments = rest.split("/")
    wild = [number for number, segment in enumerate(segments) if _WILD.search(segment)]
    if not separator or not wild:
        return url, ""
    head, tail = segments[: wild[0]], segments[wild[0] :]
    return f"{scheme}://{'/'.join(head)}", "/".join(tail)


def _expression(pattern: str) -> str:
    """A glob as a regular expression; a single star stays within its path segment."""
    translated = ""
    for token in re.findall(r"\*\*/?|\*|\?|\[[^]]+\]|.", pattern):
        match token:
            case "**/":
                translated += "(?:.*/)?"
            case "**":
                translated += ".*"
            case "*":
                translated += "[^/]*"
            case "?":
                translated += "[^/]"
            case _ if token.startswith("[") and len(token) > 1:
                translated += token.replace("[!", "[^")
            case _:
                translated += re.escape(token)
    return translated


@lru_cache(maxsize=64)
def _store(url: str) -> Store:
    return open_store(url)
