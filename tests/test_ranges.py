"""Download of an object by ranges: the bytes match the manifest, or no file is written."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerotrain.store import ChangedError, CorruptError, StoredFile, StoreFull, open_store
from aerotrain.store.manifest import RANGE, fetch_in_ranges

CONTENT = bytes(range(256)) * (5 * RANGE // 512)  # two and a half ranges


class AfterFirst(Executor):
    """Runs each task at once, and a callback before the second task."""

    def __init__(self, happens: Any) -> None:
        self._happens = happens
        self._given = 0

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._given += 1
        if self._given == 2:
            self._happens()
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except ChangedError as error:
            future.set_exception(error)
        return future


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def stored(content: bytes) -> StoredFile:
    return StoredFile(len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("size", [0, 1, RANGE - 1, RANGE, RANGE + 1, len(CONTENT)])
def test_every_byte_is_downloaded(
    store_url: str, tmp_path: Path, pool: Executor, size: int
) -> None:
    store = open_store(store_url)
    store.put("shard", CONTENT[:size])
    fetch_in_ranges(store, "shard", stored(CONTENT[:size]), tmp_path / "down/shard", pool)
    assert (tmp_path / "down/shard").read_bytes() == CONTENT[:size]


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1], CONTENT + b"more", CONTENT[:-1] + b"x", b""],
    ids=["shorter", "longer", "another byte", "empty"],
)
def test_an_object_that_differs_from_the_manifest_is_named_and_not_kept(
    store_url: str, tmp_path: Path, pool: Executor, content: bytes
) -> None:
    store = open_store(store_url)
    store.put("shard", content)
    with pytest.raises(CorruptError, match="shard is corrupt: its manifest says"):
        fetch_in_ranges(store, "shard", stored(CONTENT), tmp_path / "down/shard", pool)
    assert list((tmp_path / "down").iterdir()) == []


def test_a_missing_object_is_named(store_url: str, tmp_path: Path, pool: Executor) -> None:
    with pytest.raises(CorruptError, match="shard is missing, though its manifest lists it"):
        fetch_in_ranges(open_store(store_url), "shard", stored(b""), tmp_path / "shard", pool)


def test_an_object_that_is_replaced_while_it_is_read_is_detected(
    store_url: str, tmp_path: Path
) -> None:
    store = open_store(store_url)
    store.put("shard", CONTENT)
    other = AfterFirst(lambda: store.put("shard", CONTENT[::-1]))
    with pytest.raises(ChangedError, match="shard changed since it was listed"):
        fetch_in_ranges(store, "shard", stored(CONTENT), tmp_path / "down/shard", other)
    assert list((tmp_path / "down").iterdir()) == []


def test_a_full_disk_is_reported(
    tmp_path: Path, pool: Executor, request: pytest.FixtureRequest
) -> None:
    store = open_store((tmp_path / "store").as_uri())
    store.put("shard", CONTENT)
    request.getfixturevalue("small_files")
    with pytest.raises(StoreFull, match=r"no room is left for .*down/shard .*free some space"):
        fetch_in_ranges(store, "shard", stored(CONTENT), tmp_path / "down/shard", pool)
    assert list((tmp_path / "down").iterdir()) == []
