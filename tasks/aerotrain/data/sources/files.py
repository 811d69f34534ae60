"""The files that a URL names, and file objects that read one by range requests.

A URL names one file, those of a folder, or those that match a glob.
"""

import errno
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa

from aerotrain.contract.errors import SpecError
from aerotrain.contract.preparing import HIDDEN
from aerotrain.data.sources.batch import SourceError
from aerotrain.store import MissingError, Store, StoredObject, StoreRefused, open_store
from aerotrain.store.local import LocalStore

#: Bytes of one range request, unless more are read at once.
BLOCK = 4 * 2**20

#: Decompressed bytes that are held.
_BUFFER = 2**16

#: Bytes at a file's start by which its format is checked.
_CHECKED_BYTES = 2**16

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

_LET_NAME = "but its name does not say so; let it end in"

#: The magic numbers of other formats, what they are, and what to do.
_MAGIC_NUMBERS = {
    rb"\x1f\x8b": f"is compressed by gzip, {_LET_NAME} .gz",
    rb"\x28\xb5\x2f\xfd": f"is compressed by zstd, {_LET_NAME} .zst",
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": f"is compressed by bzip2, {_LET_NAME} .bz2",
    rb"\xfd7zXZ\0": "is compressed by xz, which is not supported; compress it with zstd or gzip",
    rb"PK\x03\x04": "is a zip archive; unpack it",
    rb"PAR1\x15": "is a Parquet file; read it as kind 'parquet'",
    rb"\xff\xfe": "is in UTF-16; write it in UTF-8",
    rb"\xfe\xff": "is in UTF-16; write it in UTF-8",
    rb"<!DOCTYPE": "is a page of HTML; check the address that it was downloaded from",
    rb"<html": "is a page of HTML; check the address that it was downloaded from",
    rb"<\?xml": "is XML, which is not supported; write JSON lines or Parquet",
}


#: A Hive partition: the folder ``name=value``, whose value is a column of the files in it. Hive
#: percent-encodes special characters in both, and has a name for null:
#: https://cwiki.apache.org/confluence/display/Hive/LanguageManual+DDL.
_PARTITION = re.compile(r"([A-Za-z_][\w%.-]*)=((?s:.*))")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_WILDCARD = re.compile(r"[*?\[]")

#: Names that are hidden also where a pattern matches them.
# Not "..", which no key may hold: reading it raises an error.
DOT_FILE = re.compile(r"(^|/)\.(?!\.)")


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
        """The Hive partitions of the file by name, decoded; None for Hive's null."""
        matches = (_PARTITION.fullmatch(folder) for folder in self._decoded.split("/")[:-1])
        found = {unquote(match[1]): unquote(match[2]) for match in matches if match}
        return {name: None if each == _NULL_PARTITION else each for name, each in found.items()}

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``. Raises ``ChangedError``."""
        return store_at(self.store).get_range(self.key, start, min(end, self.size), self.etag)

    def open(self) -> io.BufferedReader:
        """A seekable file object of the stored bytes."""
        return _Reader(_RangeReader(self), max(1, min(BLOCK, self.size)))

    @contextmanager
    def stream(self) -> Iterator[io.BufferedReader]:
        """The content from the start, decompressed if the name has a codec's suffix.

        Raises:
            SourceError: it cannot be decompressed.
        """
        with self.open() as stored:
            if self.compression is None:
                yield stored
                return
            raw = pa.CompressedInputStream(pa.PythonFile(stored, "r"), self.compression)
            try:
                yield io.BufferedReader(raw, _BUFFER)
            except OSError as error:
                raise SourceError(
                    f"{self.url} cannot be decompressed: {error}; write it again"
                ) from error


class _RangeReader(io.RawIOBase):
    """The bytes of a file over range requests."""

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.file.size}
        if base[whence] + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as any other file does
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        start, end = self._position, min(self._position + len(buffer), self.file.size)
        data = self.file.read(start, end) if start < end else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Reader(io.BufferedReader):
    """A buffered reader that reads what exceeds its buffer without a second copy."""

    raw: _RangeReader

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size <= BLOCK or size > self.raw.file.size - (start := self.tell()):
            return super().read(size)
        data = self.raw.file.read(start, start + size)
        self.seek(start + size)
        return data


def checked_beginning(file: InputFile) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        SourceError: they are the magic number of another format.
    """
    with file.stream() as stream:
        beginning = bytes(stream.read(_CHECKED_BYTES))
    for magic, what in _MAGIC_NUMBERS.items():
        if re.match(magic, beginning):
            raise SourceError(f"{file.url} {what}")
    return beginning


@lru_cache(maxsize=64)
def store_at(url: str) -> Store:
    """The store of a URL, which is opened once."""
    return open_store(url)


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
                    found = store_at(folder).stat(key)
                    return [InputFile(store=folder, key=key, size=found.size, etag=found.etag)]
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
        if file.key.encode(errors="replace").decode() != file.key:  # JSON could not hold it
            raise SourceError(
                f"{file.store} holds a file whose name is not UTF-8: {os.fsencode(file.key)!r}; "
                "rename it"
            )
    files.sort(key=lambda file: file.key)  # some servers list a folder before "folder.csv"
    return files


def _listed(url: str, is_wanted: Callable[[str], bool]) -> Iterator[StoredObject]:
    store = store_at(url)
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
    followed, listed, ahead = {os.path.realpath(store.root)}, set[str](), [""]
    for prefix in ahead:  # which grows
        for each in store.list(prefix):
            if not prefix or (each.etag not in listed and is_wanted(each.key)):
                listed.add(each.etag)
                yield each
        for link in store.links(prefix):
            target = Path(os.path.realpath(store.root / link))
            if not target.exists() and is_wanted(link):
                raise SourceError(
                    f"{store.url}/{link} is a link to {target}, which does not exist; correct or "
                    "remove it"
                )
            if target.is_dir() and str(target) not in followed:
                followed.add(str(target))
                ahead.append(f"{link}/")


def split_at_wildcard(url: str) -> tuple[str, str]:
    """The URL up to its first segment with a wildcard, and the rest of it, if any."""
    scheme, separator, rest = url.partition("://")
    segments = rest.split("/")
    wild = [number for number, segment in enumerate(segments) if _WILDCARD.search(segment)]
    if not separator or not wild:
        return url, ""
    head, tail = segments[: wild[0]], segments[wild[0] :]
    return f"{scheme}://{'/'.join(head)}", "/".join(tail)


def expression(pattern: str) -> str:
    """A glob as a regular expression; a single star stays within its path segment."""
    known = {"**/": "(?s:.*/)?", "**": "(?s:.*)", "*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"(?s)\*\*/?|\*|\?|\[[^]]+\]|.", pattern)
    sets = {each: each.replace("[!", "[^") for each in tokens if len(each) > 2 and each[0] == "["}
    return "".join({**known, **sets}.get(each) or re.escape(each) for each in tokens)
