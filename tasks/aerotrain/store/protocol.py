"""The protocol of a store, its keys, and changes of one small object by several writers at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aerotrain.contract.errors import SpecError
from aerotrain.store.errors import ChangedError, ExistsError, MissingError


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing: its key in that store, its size in bytes, its version tag.

    ``modified`` is the time of its last write, in seconds since 1970 by the clock of the store.
    """

    key: str
    size: int
    etag: str
    modified: float


class Store(Protocol):
    """Objects by key under one URL. Besides the errors it names, each method may raise:

    ``SpecError`` for an invalid key, ``StoreUnavailable`` if the store does not answer,
    ``StoreRefused`` if it denies access, ``StoreFull`` if no space is left, and ``FinalError`` if
    the bucket does not exist.
    """

    @property
    def url(self) -> str:
        """The URL with which ``open_store`` opens this store, without a slash at its end."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of one object. Raises ``MissingError``."""
        ...

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
        """The bytes from ``start`` up to ``end``, or the object's end, of the version ``etag``.

        Raises ``MissingError``, and ``ChangedError`` if the version is no longer ``etag``.
        """
        ...

    def stat(self, key: str) -> StoredObject:
        """The listing's entry of one object. Raises ``MissingError``."""
        ...

    def copy(self, source: str, key: str) -> None:
        """Copy an object of this store to ``key``, within the server if there is one.

        Raises ``MissingError``.
        """
        ...

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write one object atomically, and return its version tag.

        With ``if_absent`` only the first of many writers succeeds, the others get
        ``ExistsError``. With ``if_match`` the version of that tag is replaced; if the object is
        missing or of another version, as for all but one of many writers, ``ChangedError``.
        """
        ...

    def upload(self, path: Path, key: str) -> None:
        """Write a file as one object, atomically, without holding it in memory."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Write one object to a file, atomically. Raises ``MissingError``."""
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """The objects in the folder ``prefix`` and its folders, sorted by key.

        A prefix is a whole folder: ``"run"`` does not list ``run-2/x``.
        """
        ...

    def folders(self, prefix: str = "") -> Sequence[str]:
        """The names of the folders that are directly in the folder ``prefix``, sorted."""
        ...

    def exists(self, key: str) -> bool:
        """Whether an object with that key exists."""
        ...

    def delete(self, key: str) -> None:
        """Delete one object; a missing one is not an error."""
        ...

    def child(self, prefix: str) -> "Store":
        """The store of the folder ``prefix`` of this one."""
        ...


def checked_key(key: str) -> str:
    """Return ``key`` if it consists of segments separated by single slashes.

    Raises:
        SpecError: the key is empty or absolute, or has a segment that is empty, ``.`` or ``..``.
    """
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise SpecError(
            f"{key!r} is not a valid key: it must be relative, with no empty segment, "
            "'.' or '..'; name it like 'runs/1/result.json'"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """Return ``prefix`` as ``""`` or with one slash at its end: prefixes are whole folders."""
    return f"{checked_key(prefix.rstrip('/'))}/" if prefix else ""


def swap(store: Store, key: str, changed: Callable[[bytes | None], bytes | None]) -> None:
    """Replace an object by what ``changed`` makes of its content, which is None if it is missing.

    ``changed`` is called again with the new content if another writer was faster. If it returns
    None, nothing is written.
    """
    while True:
        content, tag = read_version(store, key)
        new = changed(content)
        if new is None:
            return
        try:
            store.put(key, new, if_absent=tag is None, if_match=tag)
        except (ChangedError, ExistsError):
            continue
        return


def read_version(store: Store, key: str) -> tuple[bytes | None, str | None]:
    """The content of an object and the tag of that version; None and None if it is missing."""
    while True:
        try:
            found = store.stat(key)
            return store.get_range(key, 0, found.size, found.etag), found.etag
        except MissingError:
            return None, None
        except ChangedError:
            continue
