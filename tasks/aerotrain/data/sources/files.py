"""The files that a URL names, file objects that read them by range requests, and their source."""

import errno
import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, Self, cast
from urllib.parse import quote, unquote

import pyarrow as pa

from aerotrain.contract.errors import SpecError
from aerotrain.contract.preparing import HIDDEN
from aerotrain.data.hashing import short_hash
from aerotrain.data.sources.declared import Declared
from aerotrain.data.sources.globs import DOT_FILE, expression, split_at_wildcard
from aerotrain.data.sources.hive import partitions_of
from aerotrain.data.sources.protocol import Fragment, SourceError, check_options
from aerotrain.store import MissingError, Store, StoredObject, StoreRefused, open_store
from aerotrain.store.local import LocalStore

#: Bytes of one range request.
BLOCK = 8 * 2**20

#: Size of the buffer in which the end of a line, or of a record, is searched.
_BUFFER = 2**16

#: Bytes at a file's start by which its format is checked.
_CHECKED_BYTES = 2**16

#: Decompressed bytes at a file's start by which its ratio is estimated.
_RATIO_BYTES = 4 * 2**20

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
        return _store(self.store).get_range(self.key, start, min(end, self.size), self.etag)

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


@dataclass(frozen=True)
class FileSource:
    """The base of sources that read the files at a URL, each a fragment unless the kind divides it.

    ``options`` are the further options that the kind takes.
    """

    description: Mapping[str, Any]

    options: ClassVar[Set[str]] = frozenset()

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """The source that a plan's arguments describe.

        Raises:
            SpecError: an option is missing or unknown.
        """
        check_options(description, {"url"}, cls.options)
        return cls(description)

    @cached_property
    def declared(self) -> Declared:
        """What the description declares of the columns."""
        return Declared.of(self.description)

    @cached_property
    def files(self) -> list[InputFile]:
        """All files, in a stable order."""
        return self.listed[0]

    @cached_property
    def listed(self) -> tuple[list[InputFile], list[str]]:
        """The files at the URL, and the names of those that are hidden."""
        hidden: list[str] = []
        return files_of(self.description["url"], hidden), hidden

    def facts(self) -> dict[str, str]:
        size = sum(file.size for file in self.files)
        found = {"files": f"{some([each.url for each in self.files])}; {size:,} bytes"}
        if hidden := self.listed[1]:
            found["hidden files"] = f"{some(hidden)}; not read"
        return found

    def described(self) -> Mapping[str, Any]:
        return self.description

    @cached_property
    def compression_ratio(self) -> int:
        """How many times larger compressed files are when read, by the first one: a power of 2.

        Rounded, it and the partitions seldom change when files are added.
        """
        file = next((file for file in self.files if file.compression and file.size), None)
        return 1 if file is None else power_of_2(_ratio_of(file))

    def content_bytes(self, file: InputFile) -> int:
        """About how many bytes the file has when it is read."""
        return file.size * (1 if file.compression is None else self.compression_ratio)

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            yield fragment_of(file, (0, -1), self.content_bytes(file))


def _ratio_of(file: InputFile) -> int:
    """The ratio of sizes of the beginning of a compressed file, 0 if it is below 1."""
    stored = file.open()
    with pa.CompressedInputStream(pa.PythonFile(stored, "r"), file.compression) as stream:
        try:
            content = len(stream.read(_RATIO_BYTES))
        except OSError:  # reported when it is read
            return 0
        return content // max(1, stored.tell())


def power_of_2(number: int) -> int:
    """The greatest power of 2 up to ``number``, or 1."""
    return 1 << max(1, number).bit_length() - 1


def some(names: Sequence[str]) -> str:
    """A count of files, and the name of the first."""
    return f"{len(names):,}, {names[0]} the first" if len(names) > 1 else names[0]


def fragment_of(file: InputFile, span: tuple[int, int], content: int) -> Fragment:
    """The fragment ``span`` of ``file``, in the unit of its kind, of about ``content`` bytes."""
    name = f"{file.url}:{span[0]}-{span[1]}"
    return Fragment(
        name=name,
        fingerprint=short_hash(name, file.etag),
        bytes=content,
        description={"file": file, "span": span},
    )


def file_and_span(description: Mapping[str, Any]) -> tuple[InputFile, tuple[int, int]]:
    """The file and the span of a fragment, from the description by ``fragment_of``."""
    start, end = description["span"]
    return InputFile(*description["file"]), (start, end)


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


def files_of(url: str | Sequence[str], hidden: list[str] | None = None) -> list[InputFile]:
    """The sorted files of one or several URLs, each of a file, a folder or a glob.

    In a folder, names that begin with ``_`` or ``.`` are skipped, and added to ``hidden``. ``*``
    matches within a path segment, ``**`` any number of segments. Links are followed; a file that
    is found twice is read once.

    Raises:
        SourceError: there is no file, or a link is broken.
    """
    skipped: list[str] = []
    if isinstance(url, str):
        files = _files_of(url, skipped)
    else:
        found = {file.url: file for each in url for file in _files_of(each, skipped)}
        files = [found[name] for name in sorted(found)]
    if hidden is not None:
        hidden += skipped
    return files


def _files_of(url: str, skipped: list[str]) -> list[InputFile]:
    base, pattern = split_at_wildcard(url)
    if not pattern:
        folder, _, name = base.rpartition("/")
        # A key in S3 is written as it is, and the path in a file URL may be percent-encoded.
        for key in dict.fromkeys((name, unquote(name) if url.startswith("file:") else name)):
            with suppress(MissingError, SpecError):  # it is a folder, or does not exist
                if key:
                    return [_input(folder, key)]
        pattern = "**"
    matches = re.compile(expression(pattern)).fullmatch
    hidden = HIDDEN if pattern == "**" else DOT_FILE
    base = base.rstrip("/")
    files = []
    for each in _listed(base, lambda key: bool(matches(key)) and not hidden.search(key)):
        if hidden.search(each.key):
            skipped.append(each.key)
        elif matches(each.key):
            files.append(InputFile(store=base, key=each.key, size=each.size, etag=each.etag))
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


def _listed(url: str, is_wanted: Callable[[str], bool]) -> Iterator[StoredObject]:
    store = _store(url)
    try:
        if isinstance(store, LocalStore):
            yield from _listed_with_links(store, is_wanted)
        else:
            yield from store.list()
    except StoreRefused as error:
        raise StoreRefused(
            f"{error}; if the bucket may be read but not listed, name its files one by one: "
            "'url' may be a list"
        ) from error


def _listed_with_links(
    store: LocalStore, is_wanted: Callable[[str], bool]
) -> Iterator[StoredObject]:
    """The files of a folder, and those that only links lead to, each once."""
    ahead, followed = deque(store.links()), {os.path.realpath(store.root)}
    listed: set[str] = set()
    if ahead:
        listed.update(each.etag for each in store.list())
    yield from store.list()
    while ahead:
        link = ahead.popleft()
        target = Path(os.path.realpath(store.root / link))
        if not target.exists() and is_wanted(link):
            raise SourceError(
                f"{store.url}/{link} is a link to {target}, which does not exist; correct or "
                "remove it"
            )
        if str(target) in followed or not target.is_dir():
            continue
        followed.add(str(target))
        ahead.extend(store.links(f"{link}/"))
        for each in store.list(f"{link}/"):
            if each.etag not in listed and is_wanted(each.key):
                listed.add(each.etag)
                yield each


@lru_cache(maxsize=64)
def _store(url: str) -> Store:
    return open_store(url)
