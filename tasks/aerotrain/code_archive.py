"""A folder of the user's modules, packed into the store, so that every replica runs the same.

The archive is called by the hash of its bytes: the same folder makes the same archive, a
changed one another, and whoever unpacks it knows whether it is whole.
"""

import gzip
import hashlib
import io
import tarfile
from fnmatch import fnmatch
from pathlib import Path

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.store import Store, checked_key, open_store

#: What has no business in an archive of code.
_LEFT_OUT = ("__pycache__", ".*", "*.pyc")

#: Bytes of all files together: code is small, and data belongs into a data set.
LARGEST = 64 << 20


def pack(folder: Path) -> bytes:
    """The folder as a tar archive, the same bytes for the same files.

    Raises:
        FinalError: it holds more than ``LARGEST`` bytes.
    """
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(
            fnmatch(part, each) for part in path.relative_to(folder).parts for each in _LEFT_OUT
        )
    )
    size = sum(path.stat().st_size for path in files)
    if size > LARGEST:
        largest = max(files, key=lambda path: path.stat().st_size)
        raise FinalError(
            f"{folder} holds {size >> 20} MiB and code may hold {LARGEST >> 20}; the largest "
            f"file is {largest.relative_to(folder)}: move data out of the folder"
        )
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in files:
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            content = path.read_bytes()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def publish_code(store: Store, folder: Path) -> str:
    """Put the folder's archive into the store, once, and return its URL."""
    packed = pack(folder)
    key = f"code/{hashlib.sha256(packed).hexdigest()}.tar.gz"
    if not store.exists(key):
        store.put(key, packed)
    return f"{store.url}/{key}"


def fetch_code(url: str, folder: Path) -> Path:
    """Unpack the archive at ``url`` into ``folder``, and return it.

    Raises:
        TemporaryError: its bytes are not those that its name promises.
        FinalError: it holds what no packed folder does, such as a link or ``../``.
    """
    prefix, _, name = url.rpartition("/")
    packed = open_store(prefix).get(name)
    if f"{hashlib.sha256(packed).hexdigest()}.tar.gz" != name:
        raise TemporaryError(f"{url} is not what was packed; it was damaged or overwritten")
    # One by one: Debian 12's Python has no filter for extractall.
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            path = folder / checked_key(entry.name)
            if content is None:
                raise FinalError(f"{url} holds {entry.name}, which is no file; pack it anew")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    return folder
