"""Publications: folders of files that are published and fetched as one unit.

The files are uploaded first and ``manifest.json`` last, so that a publication with a manifest is
complete. Readers check every byte against it.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from aerotrain.contract.errors import FinalError
from aerotrain.store.errors import CorruptError, MissingError, store_error
from aerotrain.store.local import write_whole
from aerotrain.store.protocol import Store, checked_key

MANIFEST = "manifest.json"
VERSION = 1

#: Bytes of one range.
RANGE = 4 * 2**20

#: Requests in flight: ranges of one object by a shared pool, and all others.
_AHEAD, _AT_ONCE = 4, 8

#: Downloads of an object that differs from its manifest each time, until it counts as corrupt.
_DOWNLOADS = 2


@dataclass(frozen=True)
class StoredFile:
    """The entry of one file in a manifest: its size in bytes, and its SHA-256 in hex."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """The entry of the file at ``path`` as it is now."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        return cls(path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a publication by their key under its prefix, and metadata ``about`` them."""

    files: Mapping[str, StoredFile]
    about: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def to_json(self) -> str:
        """The manifest as JSON; equal publications give equal text."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``to_json`` wrote.

        Raises:
            CorruptError: it is not a manifest.
            FinalError: it is of another version, or lists a key outside of its prefix.
        """
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise FinalError(
                    f"the manifest has version {data['version']}, this is version {VERSION}; "
                    "use the aerotrain that wrote it, or publish again"
                )
            files = {checked_key(key): StoredFile(**each) for key, each in data["files"].items()}
            if not files:
                raise CorruptError("this manifest lists no file; publish again")
            return cls(files=files, about=data["about"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptError(f"this is not a manifest: {error!r}; publish again") from error


def publish(
    store: Store,
    folder: Path,
    prefix: str,
    about: Mapping[str, Any],
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Upload every file below ``folder`` to ``prefix``, then the manifest.

    An equal publication with the same ``about`` is left as it is. Any other one at ``prefix``
    loses its manifest first, so that no reader sees a mixture. ``check`` is called before the
    manifest is written, and raises an error to prevent that.

    Raises:
        FinalError: the folder has no files, or one with the name of the manifest.
    """
    target = store.child(prefix) if prefix else store
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    if not paths or MANIFEST in paths:
        wrong = f"already holds a {MANIFEST}" if paths else "holds no file"
        raise FinalError(f"{folder} {wrong}; publish the folder of what was just written")
    files = {key: StoredFile.of(path) for key, path in paths.items()}
    manifest = Manifest(files=files, about=dict(about))
    content = manifest.to_json().encode()
    try:
        if target.get(MANIFEST) == content:
            return manifest
        target.delete(MANIFEST)
    except MissingError:
        pass  # the usual case: nothing is published there yet
    # Deeper files first: some readers, such as TensorFlow Serving, ignore the manifest and take
    # the file at the top as the sign that the model is complete.
    for key in sorted(paths, key=lambda key: (-key.count("/"), key)):
        target.upload(paths[key], key)
    check()
    target.put(MANIFEST, content)
    return manifest


def fetch(store: Store, prefix: str, folder: Path) -> Manifest:
    """Download the publication at ``prefix`` into ``folder``, checking every byte.

    Raises:
        MissingError: nothing is published there.
        CorruptError: an object differs from the manifest, or the manifest is invalid; the
            message names it.
        FinalError: the manifest is of another version, or lists a key outside of its prefix.
    """
    source = store.child(prefix) if prefix else store
    content = source.get(MANIFEST)
    try:
        manifest = Manifest.from_json(content)
    except FinalError as error:
        kind = CorruptError if isinstance(error, CorruptError) else FinalError
        raise kind(f"{source.url}/{MANIFEST}: {error}") from error
    for key, expected in manifest.files.items():
        fetch_file(source, key, expected, folder / key)
    return manifest


def fetch_file(
    source: Store, key: str, expected: StoredFile, path: Path, pool: Executor | None = None
) -> None:
    """Download one object that a manifest lists to the file ``path``, atomically.

    All ranges are of one version of the object. ``pool``, which may be shared, runs the requests,
    and the SHA-256 is computed as they complete. An object that differs is downloaded once more: it
    may be damaged on its way. The file is not synced to the disk: after a power failure it is
    downloaded again.

    Raises:
        ChangedError: it was replaced meanwhile.
        CorruptError: it is missing, or its size or SHA-256 differs; it is not kept.
        StoreFull: the disk is full.
    """
    url = f"{source.url}/{key}"
    ahead = _AHEAD if pool else _AT_ONCE
    with nullcontext(pool) if pool else ThreadPoolExecutor(ahead) as requests:
        for _ in range(_DOWNLOADS):
            try:
                found = _download(source, key, expected, path, requests, ahead)
            except MissingError as error:
                raise gone(url) from error
            except OSError as error:
                raise store_error(error, str(path)) from error
            if found == expected:
                return
    raise corrupt(url, expected, found)


def _download(
    source: Store, key: str, expected: StoredFile, path: Path, pool: Executor, ahead: int
) -> StoredFile:
    """Download the object, and keep it if it is as expected; returns what came."""
    etag = source.stat(key).etag
    end = expected.bytes + 1  # one byte more, to detect a longer object
    digest, size = hashlib.sha256(), 0

    def part(start: int) -> bytes:
        return source.get_range(key, start, min(start + RANGE, end), etag)

    def write(file: IO[bytes]) -> None:
        nonlocal size
        for data in in_order(pool, part, range(0, end, RANGE), ahead):
            digest.update(data)
            size += len(data)
            file.write(data)

    def keep(partial: Path, path: Path) -> None:
        if StoredFile(size, digest.hexdigest()) == expected:
            partial.replace(path)

    write_whole(path, write, keep, synced=False)
    return StoredFile(size, digest.hexdigest())


def gone(url: str) -> CorruptError:
    """The error of an object that a manifest lists and the store lacks."""
    return CorruptError(
        f"{url} is missing, though its manifest lists it; write the whole publication again"
    )


def corrupt(url: str, expected: StoredFile, found: StoredFile) -> CorruptError:
    """The error of an object that differs from its manifest."""
    return CorruptError(
        f"{url} is corrupt: its manifest says {expected.bytes} bytes with SHA-256 "
        f"{expected.sha256}, it has {found.bytes} with {found.sha256}; write it again"
    )


Item = TypeVar("Item")
Result = TypeVar("Result")


def each_of(request: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of ``request`` for each item, by the threads of a pool that ends with them."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from in_order(pool, request, items, _AT_ONCE)


def in_order(
    pool: Executor, request: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """The results of ``request`` for each item, ``ahead`` of them in ``pool`` at a time."""
    coming: deque[Future[Result]] = deque()
    try:
        for item in items:
            coming.append(pool.submit(request, item))
            if len(coming) == ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for each in coming:
            each.cancel()
