"""The user's code: archives of its folder in the store, and the import of its modules.

All replicas run the code of one archive, which is named by the hash of its bytes: an unchanged
folder gives the same archive, and readers verify the bytes.
"""

import gzip
import hashlib
import importlib
import io
import tarfile
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.store import Store, checked_key, open_store

#: Patterns of files that are not packed.
_LEFT_OUT = ("__pycache__", ".*", "*.pyc")

#: The size limit of all files in bytes: data belong in a data set.
LARGEST = 64 << 20


def pack(folder: Path) -> bytes:
    """The folder as a reproducible tar archive: equal files give equal bytes.

    Raises:
        FinalError: it holds more than ``LARGEST`` bytes.
    """
    files = _files(folder, "*")
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


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob(pattern)
        if path.is_file()
        and not any(
            fnmatch(part, each) for part in path.relative_to(folder).parts for each in _LEFT_OUT
        )
    )


def code_identity(code: str | None) -> str | None:
    """What changes with a job's code: the URL of an archive, or a hash of a folder's Python files.

    Its other files do not count, because the folder may hold the output of steps.
    """
    if code is None or "://" in code:
        return code
    folder, digest = Path(code), hashlib.sha256()
    for path in _files(folder, "*.py"):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def publish_code(store: Store, folder: Path) -> str:
    """Upload the folder's archive, unless the store has it, and return its URL."""
    packed = pack(folder)
    key = f"code/{hashlib.sha256(packed).hexdigest()}.tar.gz"
    if not store.exists(key):
        store.put(key, packed)
    return f"{store.url}/{key}"


def fetch_code(url: str, folder: Path) -> Path:
    """Unpack the archive at ``url`` into ``folder``, and return ``folder``.

    Raises:
        TemporaryError: its bytes do not match the hash in its name.
        FinalError: it holds an entry that ``pack`` never writes, such as a link or ``../``.
    """
    prefix, _, name = url.rpartition("/")
    packed = open_store(prefix).get(name)
    if f"{hashlib.sha256(packed).hexdigest()}.tar.gz" != name:
        raise TemporaryError(
            f"{url} does not match the hash in its name; it was damaged or overwritten"
        )
    # Entry by entry: the Python of Debian 12 has no filter for extractall.
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            path = folder / checked_key(entry.name)
            if content is None:
                raise FinalError(f"{url} holds {entry.name}, which is not a file; pack it again")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    return folder


def user_module(name: str, purpose: str) -> ModuleType:
    """Import the module ``name``, which is needed ``purpose``, such as ``"to read the data"``.

    Raises:
        FinalError: there is no such module.
        ModuleNotFoundError: the module imports another one that does not exist.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise FinalError(
            f"there is no module {name!r} {purpose}; check that the folder that holds it is "
            "the job's code folder (--code, by hand)"
        ) from error
