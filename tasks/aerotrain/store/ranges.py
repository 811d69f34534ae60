"""Download an object of a publication by concurrent range requests, verifying its hash."""

import hashlib
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

from aerotrain.store.errors import MissingError, errors_translated
from aerotrain.store.local import PARTIAL
from aerotrain.store.manifest import StoredFile, corrupt, gone
from aerotrain.store.protocol import Store

#: Bytes of one range.
RANGE = 4 * 2**20

#: Range requests of one object in flight.
_AHEAD = 4


def fetch_in_ranges(
    store: Store, key: str, expected: StoredFile, path: Path, pool: Executor
) -> None:
    """Download one object that a manifest lists to the file ``path``, atomically.

    All ranges are of one version of the object. ``pool``, which may be shared, runs the requests,
    and the SHA-256 is computed as they complete. The file is not synced to the disk: after a power
    failure it is downloaded again.

    Raises:
        ChangedError: it was replaced meanwhile.
        CorruptError: it is missing, or its size or SHA-256 differs.
        StoreFull: the disk is full.
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
        raise errors_translated(error, str(path)) from error


def _in_order(store: Store, key: str, etag: str, size: int, pool: Executor) -> Iterator[bytes]:
    """The object's ranges in order, up to one byte past ``size`` to detect a longer object."""
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
