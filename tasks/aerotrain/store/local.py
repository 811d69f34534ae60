"""A store that is a folder: every object is a file that appears at once."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from aerotrain.store.errors import (
    ExistsError,
    StoreUnavailable,
    changed,
    explained,
    replaced,
)
from aerotrain.store.keys import checked_key, checked_prefix
from aerotrain.store.protocol import StoredObject

#: What a file is called until it is whole. Listings leave such files out.
PARTIAL = ".aerotrain-partial-"

#: Seconds to wait for the lock of a folder, which is held for one rename, and between two tries.
LOCKED_SECONDS = 10.0
_LOCKED_PAUSE = 0.01


class LocalStore:
    """The store of the folder ``root``, which is made when something is first written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def get(self, key: str) -> bytes:
        with self._explaining(key) as path:
            return path.read_bytes()

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
        with self._explaining(key) as path, path.open("rb") as file:
            file.seek(start)
            data = file.read(max(0, end - start))
            if _tag(os.fstat(file.fileno())) != etag:  # asked last: it may change meanwhile
                raise changed(f"{self.url}/{key}")
            return data

    def stat(self, key: str) -> StoredObject:
        with self._explaining(key) as path:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return StoredObject(key, status.st_size, _tag(status))

    def copy(self, source: str, key: str) -> None:
        with self._explaining(source) as path:
            self.upload(path, key)

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        def name_it(partial: Path, path: Path) -> None:
            if if_match is not None:
                _replace_version(partial, path, if_match, f"{self.url}/{key}")
            elif if_absent:
                os.link(partial, path)  # unlike a rename, it fails where a file is
            else:
                partial.replace(path)

        with self._explaining(key) as path:
            try:
                return write_whole(path, lambda file: file.write(data), name_it)
            except FileExistsError as error:
                raise ExistsError(
                    f"{self.url}/{key} is there already; choose another key"
                ) from error

    def upload(self, path: Path, key: str) -> None:
        with self._explaining(key) as target, path.open("rb") as source:
            write_whole(target, lambda file: shutil.copyfileobj(source, file))

    def download(self, key: str, path: Path) -> None:
        with self._explaining(key) as stored, stored.open("rb") as source:
            write_whole(path, lambda file: shutil.copyfileobj(source, file))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        folder = checked_prefix(prefix)
        try:
            for key, status in _files_below(str(self.root / folder), folder):
                yield StoredObject(key, status.st_size, _tag(status))
        except OSError as error:
            raise explained(error, f"{self.url}/{folder}") from error

    def exists(self, key: str) -> bool:
        with self._explaining(key) as path:
            return path.is_file()

    def delete(self, key: str) -> None:
        with self._explaining(key) as path:
            path.unlink(missing_ok=True)

    def child(self, prefix: str) -> "LocalStore":
        return LocalStore(self.root / checked_prefix(prefix))

    @contextmanager
    def _explaining(self, key: str) -> Iterator[Path]:
        """The path of ``key``, with the system's errors turned into the store's."""
        path = self.root / checked_key(key)
        try:
            yield path
        except OSError as error:
            raise explained(error, f"{self.url}/{key}") from error


def _files_below(folder: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below ``folder``, its key beginning with ``prefix``; keys come sorted.

    Only the names of one folder, and of those that it lies in, are in memory.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=_name_in_keys)
    except (FileNotFoundError, NotADirectoryError):
        return  # somebody has just deleted it, or there was none
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{prefix}{entry.name}/")
        elif not entry.name.startswith(PARTIAL):
            with suppress(FileNotFoundError):  # somebody has just deleted it
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):
                    yield prefix + entry.name, status


def _name_in_keys(entry: os.DirEntry[str]) -> str:
    """The name as it stands in keys, where a slash follows that of a folder."""
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def write_whole(
    path: Path,
    write: Callable[[IO[bytes]], object],
    name_it: Callable[[Path, Path], object] = Path.replace,
) -> str:
    """Make the file ``path`` of what ``write`` writes, and return its tag.

    It is written next to it, brought to the disk, and then given its name by ``name_it``, so
    neither a kill nor a power cut leaves half a file under its name, and no reader meets one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp's 0600 would hide it from other users
            os.fsync(file.fileno())
            tag = _tag(os.fstat(file.fileno()))
        name_it(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return tag


def _replace_version(partial: Path, path: Path, tag: str, url: str) -> None:
    """Rename ``partial`` to ``path``, if that is still the version of ``tag``."""
    with locked(path.parent):
        try:
            found = _tag(path.stat())
        except FileNotFoundError:
            found = None
        if found != tag:
            raise replaced(url)
        partial.replace(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A scope in which no other process, nor thread, replaces versions of files in ``folder``.

    Raises:
        StoreUnavailable: another one has been in it for very long; it may be stopped.
    """
    path = folder / f"{PARTIAL}lock"
    # Opened for writing: where the folder is a share, the lock is its server's, and that asks so.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        until = time.monotonic() + LOCKED_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        f"another process has held the lock {path} for {LOCKED_SECONDS:g} s; see "
                        "which (lslocks), and end it if it is stopped"
                    ) from None
                time.sleep(_LOCKED_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk: it is an entry of the folder, not of the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tag(status: os.stat_result) -> str:
    """Another value whenever the file was replaced."""
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return hashlib.sha256(version.encode()).hexdigest()[:16]
