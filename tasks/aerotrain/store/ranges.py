"""Bring one object of a publication by ranges, several at a time, and prove it on its way."""

import hashlib
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

from aerotrain.store.errors import MissingError, explained
from aerotrain.store.local import PARTIAL
from aerotrain.store.manifest import StoredFile, corrupt, gone
from aerotrain.store.protocol import Store

#: Bytes of one range.
RANGE = 4 * 2**20

#: Ranges of one object that are asked for before the first of them has come.
_AHEAD = 4


def fetch_in_ranges(
    store: Store, key: str, expected: StoredFile, path: Path, pool: Executor
) -> None:
    """Make the file ``path`` of one object that a manifest lists; whole or not at all.

    All ranges are of one version of the object. They are asked for in ``pool``, which may be
    shared, and their SHA-256 is taken as they come. The file is not brought to the disk as
    what a store keeps is: what a power cut leaves of it is brought again.

    Raises:
        ChangedError: it was replaced meanwhile.
        CorruptError: it is gone, or its size or SHA-256 is another.
        StoreFull: the disk takes no more.
    """
    url = f"{store.url}/{key}"
    try:
        etag = store.stat(key).etag
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with tempfile.NamedTemporaryFile(prefix=PARTIAL, dir=path.parent, delete=False) as file:
            partial = Path(file.name)
            try:
                for data in _in_order(store, key, etag, expected.bytes, pool):
                    digest.update(data)
                    size += len(data)
                    file.write(data)
                file.flush()
                found = StoredFile(size, digest.hexdigest())
                if found != expected:
                    raise corrupt(url, expected, found)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
    except MissingError as error:
        raise gone(url) from error
    except OSError as error:
        raise explained(error, str(path)) from error


def _in_order(store: Store, key: str, etag: str, size: int, pool: Executor) -> Iterator[bytes]:
    """The object's ranges, and one byte past ``size``, so that a longer one is found out."""
    coming: deque[Future[bytes]] = deque()
    try:
        for start in range(0, size + 1, RANGE):
            end = min(start + RANGE, size + 1)
            coming.append(pool.submit(store.get_range, key, start, end, etag))
            if len(coming) == _AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for each in coming:
            each.cancel()
