"""What every store can do."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing: its key in that store, its size in bytes, its version tag."""

    key: str
    size: int
    etag: str


class Store(Protocol):
    """Objects by key under one URL. Each method may raise, beside what it names:

    ``SpecError`` for a key that is none, ``StoreUnavailable`` when the store does not answer,
    ``StoreRefused`` when it does not let us, ``StoreFull`` when no room is left, and
    ``FinalError`` when the bucket does not exist.
    """

    @property
    def url(self) -> str:
        """The URL that ``open_store`` opens as this store, without a slash at its end."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of one object. Raises ``MissingError``."""
        ...

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
        """The bytes from ``start`` up to ``end``, or the object's end, of that version of it.

        Raises ``MissingError``, and ``ChangedError`` where its tag is no longer ``etag``.
        """
        ...

    def stat(self, key: str) -> StoredObject:
        """What a listing would say of one object. Raises ``MissingError``."""
        ...

    def copy(self, source: str, key: str) -> None:
        """Write an object of this store once more, as ``key``; its bytes do not pass here.

        Raises ``MissingError``.
        """
        ...

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write one object, whole or not at all, and return its version tag.

        With ``if_absent`` only the first of many writers succeeds, the others get
        ``ExistsError``. With ``if_match`` the object of that tag is replaced, by one of many
        writers; where it is another version by then, or gone, they get ``ChangedError``.
        """
        ...

    def upload(self, path: Path, key: str) -> None:
        """Write a file as one object, whole or not at all, without holding it in memory."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Write one object to a file, whole or not at all. Raises ``MissingError``."""
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """The objects in the folder ``prefix`` and its folders, sorted by key.

        A prefix is a whole folder: ``"run"`` does not list ``run-2/x``.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether there is an object of that key."""
        ...

    def delete(self, key: str) -> None:
        """Remove one object; to remove what is not there is no error."""
        ...

    def child(self, prefix: str) -> "Store":
        """The store of the folder ``prefix`` of this one."""
        ...
