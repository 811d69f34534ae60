"""A store in a local folder: every object is a file that is replaced atomically."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from aerotrain.store.errors import ExistsError, StoreUnavailable, changed, replaced, store_error
from aerotrain.store.protocol import StoredObject, checked_key, checked_prefix

#: The name prefix of a file until it is complete. Listings skip such files.
PARTIAL = ".aerotrain-partial-"

#: The name prefix of the file by which processes replace an object one after another.
_LOCK = f"{PARTIAL}lock-"

#: Tries to create a file in a folder that other processes remove each time when it is empty.
_CREATIONS = 20

#: Seconds to wait for a lock that is held for one rename, and between two tries.
_LOCKED_SECONDS = 10.0
_LOCKED_PAUSE = 0.01


class LocalStore:
    """The store in the folder ``root``, which is created by the first write."""

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
            # Checked after the read: it may change meanwhile.
            if _tag(os.fstat(file.fileno())) != etag:
                raise changed(f"{self.url}/{key}")
            return data

    def stat(self, key: str) -> StoredObject:
        with self._explaining(key) as path:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return _stored(key, status)

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
                os.link(partial, path)  # unlike a rename, it fails if the file exists
            else:
                partial.replace(path)

        with self._explaining(key) as path:
            try:
                return write_whole(path, lambda file: file.write(data), name_it)
            except FileExistsError as error:
                raise ExistsError(f"{self.url}/{key} exists already; choose another key") from error

    def upload(self, path: Path, key: str) -> None:
        with self._explaining(key) as target, path.open("rb") as source:
            write_whole(target, lambda file: shutil.copyfileobj(source, file))

    def download(self, key: str, path: Path) -> None:
        with self._explaining(key) as stored, stored.open("rb") as source:
            write_whole(path, lambda file: shutil.copyfileobj(source, file))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        folder = checked_prefix(prefix)
        try:
            for key, entry in _entries_below(str(self.root / folder), folder):
                if not entry.name.startswith(PARTIAL):
                    with suppress(FileNotFoundError):  # it was just deleted
                        status = entry.stat()
                        if stat.S_ISREG(status.st_mode):
                            yield _stored(key, status)
        except OSError as error:
            raise store_error(error, f"{self.url}/{folder}") from error

    def folders(self, prefix: str = "") -> Sequence[str]:
        folder = checked_prefix(prefix)
        try:
            with os.scandir(self.root / folder) as found:
                return sorted(each.name for each in found if each.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise store_error(error, f"{self.url}/{folder}") from error

    def links(self, prefix: str = "") -> Iterator[str]:
        """The keys of symbolic links that ``list`` does not follow: to folders, and broken ones."""
        folder = checked_prefix(prefix)
        try:
            for key, entry in _entries_below(str(self.root / folder), folder):
                if entry.is_symlink() and not entry.is_file():
                    yield key
        except OSError as error:
            raise store_error(error, f"{self.url}/{folder}") from error

    def exists(self, key: str) -> bool:
        with self._explaining(key) as path:
            return path.is_file()

    def delete(self, key: str) -> None:
        with self._explaining(key) as path:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # of a name that is too long there is none
                _lock_of(path).unlink(missing_ok=True)
            _remove_empty(path.parent, self.root)

    def child(self, prefix: str) -> "LocalStore":
        return LocalStore(self.root / checked_prefix(prefix))

    @contextmanager
    def _explaining(self, key: str) -> Iterator[Path]:
        """The path of ``key``; errors of the operating system become errors of the store."""
        path = self.root / checked_key(key)
        try:
            yield path
        except OSError as error:
            raise store_error(error, f"{self.url}/{key}") from error


def _stored(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key, status.st_size, _tag(status), status.st_mtime)


def _entries_below(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All that is below ``folder`` and is no folder, with its key, sorted by key.

    Only the names in one folder and in its parents are in memory.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=_name_in_keys)
    except (FileNotFoundError, NotADirectoryError):
        return  # it was just deleted, or never existed
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _entries_below(entry.path, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def _name_in_keys(entry: os.DirEntry[str]) -> str:
    """The name as a part of keys, in which a slash follows a folder."""
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def write_whole(
    path: Path,
    write: Callable[[IO[bytes]], object],
    name_it: Callable[[Path, Path], object] = Path.replace,
    *,
    synced: bool = True,
) -> str:
    """Write the file ``path`` atomically with ``write``, and return its version tag.

    The data go to a temporary file in the same folder, which is synced and then renamed by
    ``name_it``: neither a kill nor a power failure leaves a partial file under the name, and no
    reader sees one. A power failure may, unless it is ``synced``.
    """
    partial = path.parent / f"{PARTIAL}{uuid.uuid4().hex}"
    try:
        with _created(partial) as file:
            write(file)
            file.flush()
            if synced:
                os.fsync(file.fileno())
            tag = _tag(os.fstat(file.fileno()))
        name_it(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if synced:
        _sync_folder(path.parent)
    return tag


def _created(path: Path) -> IO[bytes]:
    """The new file ``path``, open for writing; its folder is created, too."""
    tries = _CREATIONS
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb")
        except (FileExistsError, FileNotFoundError):
            # Another process has just deleted the last file of the folder, and so the folder.
            if not (tries := tries - 1):
                raise


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove ``folder``, and those above it that are then empty, but not ``root``."""
    while folder != root:
        try:
            folder.rmdir()
        except OSError:  # it holds files, or another process has removed it
            return
        folder = folder.parent


def _replace_version(partial: Path, path: Path, tag: str, url: str) -> None:
    """Rename ``partial`` to ``path``, if that is still the version of ``tag``; one of many does."""
    with _locked(_lock_of(path), url), suppress(FileNotFoundError):
        if _tag(path.stat()) == tag:
            partial.replace(path)
            return
    raise replaced(url)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{_LOCK}{path.name}")


@contextmanager
def _locked(lock: Path, url: str) -> Iterator[None]:
    """A scope that one process or thread is in at a time.

    Raises:
        StoreUnavailable: another one is in it for long, such as a process that was suspended.
    """
    # Opened for writing: where the folder is a share, the lock is its server's, and that asks so.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        until = time.monotonic() + _LOCKED_SECONDS
        while not _locks(descriptor):
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"{url} is being replaced by another process for {_LOCKED_SECONDS:g} s; end "
                    "that process if it is suspended"
                )
            time.sleep(_LOCKED_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Sync a rename to the disk: it changes the folder, not the file."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # the file is deleted already, and its folder with it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tag(status: os.stat_result) -> str:
    """A version tag, which changes whenever the file is replaced."""
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return hashlib.sha256(version.encode()).hexdigest()[:16]
