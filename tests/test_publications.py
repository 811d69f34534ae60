"""Publications of many files: complete or absent, and fetched as they were published."""

import hashlib
import json
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.store import (
    MANIFEST,
    ChangedError,
    CorruptError,
    MissingError,
    Store,
    StoredFile,
    StoreFull,
    fetch,
    fetch_file,
    open_store,
    publish,
)
from aerotrain.store.manifest import RANGE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, one of them in a subfolder."""
    (tmp_path / "model/variables").mkdir(parents=True)
    (tmp_path / "model/saved_model.pb").write_bytes(b"graph")
    (tmp_path / "model/variables/data").write_bytes(b"weights")
    return tmp_path / "model"


def test_a_publication_is_fetched_as_it_was_published(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    store = open_store(store_url)
    published = publish(store, folder, "serving/1", {"step": 7})
    before = list(store.list())
    publish(store, folder, "serving/1", {"step": 7})
    assert list(store.list()) == before
    fetched = fetch(store, "serving/1", tmp_path / "copy")
    assert fetched == published
    assert fetched.about == {"step": 7}
    assert (tmp_path / "copy/variables/data").read_bytes() == b"weights"


def test_publishing_something_else_replaces_it(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    store = open_store(store_url)
    publish(store, folder, "serving/1", {})
    (folder / "saved_model.pb").write_bytes(b"another")
    publish(store, folder, "serving/1", {})
    fetch(store, "serving/1", tmp_path / "copy")
    assert (tmp_path / "copy/saved_model.pb").read_bytes() == b"another"


def test_files_without_a_manifest_are_not_published(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    store = open_store(store_url)
    publish(store, folder, "serving/1", {})
    store.delete(f"serving/1/{MANIFEST}")
    with pytest.raises(MissingError):
        fetch(store, "serving/1", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


CONTENT = bytes(range(256)) * (5 * RANGE // 512)  # two and a half ranges


def stored(content: bytes) -> StoredFile:
    return StoredFile(len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("size", [0, 1, RANGE - 1, RANGE, RANGE + 1, len(CONTENT)])
def test_every_byte_is_fetched(store_url: str, tmp_path: Path, size: int) -> None:
    store = open_store(store_url)
    store.put("shard", CONTENT[:size])
    fetch_file(store, "shard", stored(CONTENT[:size]), tmp_path / "down/shard")
    assert (tmp_path / "down/shard").read_bytes() == CONTENT[:size]


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1], CONTENT + b"more", CONTENT[:-1] + b"x", b"", None],
    ids=["shorter", "longer", "another byte", "empty", "missing"],
)
def test_an_object_that_differs_from_the_manifest_is_named_and_not_kept(
    store_url: str, tmp_path: Path, content: bytes | None
) -> None:
    store = open_store(store_url)
    if content is not None:
        store.put("shard", content)
    with pytest.raises(CorruptError, match=r"shard is (corrupt|missing).* its manifest"):
        fetch_file(store, "shard", stored(CONTENT), tmp_path / "down/shard")
    assert not list(tmp_path.glob("down/*"))


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


def test_an_object_that_is_replaced_while_it_is_read_is_detected(
    store_url: str, tmp_path: Path
) -> None:
    store = open_store(store_url)
    store.put("shard", CONTENT)
    pool = AfterFirst(lambda: store.put("shard", CONTENT[::-1]))
    with pytest.raises(ChangedError, match="shard changed since it was listed"):
        fetch_file(store, "shard", stored(CONTENT), tmp_path / "down/shard", pool)
    assert list((tmp_path / "down").iterdir()) == []


def test_a_full_disk_is_reported(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = open_store((tmp_path / "store").as_uri())
    store.put("shard", CONTENT)
    request.getfixturevalue("small_files")
    with pytest.raises(StoreFull, match=r"no room is left for .*down/shard .*free some space"):
        fetch_file(store, "shard", stored(CONTENT), tmp_path / "down/shard")
    assert list((tmp_path / "down").iterdir()) == []


def test_a_manifest_that_points_outside_is_refused(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    store = open_store(store_url)
    publish(store, folder, "serving/1", {})
    manifest = store.get(f"serving/1/{MANIFEST}").replace(b"variables/data", b"../../outside")
    store.put(f"serving/1/{MANIFEST}", manifest)
    with pytest.raises(FinalError, match="is not a valid key"):
        fetch(store, "serving/1", tmp_path / "copy")


@pytest.mark.parametrize("text", [b"", b"[]", b'{"version": 2}'])
def test_an_invalid_manifest_is_refused(store_url: str, tmp_path: Path, text: bytes) -> None:
    store = open_store(store_url)
    store.put(f"x/{MANIFEST}", text)
    with pytest.raises(FinalError, match="manifest"):
        fetch(store, "x", tmp_path)


def edited(store_url: str, folder: Path, **changes: object) -> Store:
    """A store with a publication ``x`` whose manifest has these changes."""
    store = open_store(store_url)
    publish(store, folder, "x", {})
    manifest = json.loads(store.get(f"x/{MANIFEST}"))
    store.put(f"x/{MANIFEST}", json.dumps({**manifest, **changes}).encode())
    return store


def test_a_manifest_of_another_version_is_refused_although_nothing_else_differs(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    store = edited(store_url, folder, version=2)
    with pytest.raises(FinalError, match="has version 2, this is version 1") as refused:
        fetch(store, "x", tmp_path / "copy")
    assert not isinstance(refused.value, CorruptError)  # an older checkpoint would not help
    assert not (tmp_path / "copy").exists()


def test_a_manifest_without_files_is_damaged(store_url: str, folder: Path, tmp_path: Path) -> None:
    store = edited(store_url, folder, files={})
    with pytest.raises(CorruptError, match=r"x/manifest.json: this manifest lists no file"):
        fetch(store, "x", tmp_path / "copy")


def test_an_empty_folder_is_not_published(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FinalError, match="holds no file"):
        publish(open_store(store_url), tmp_path / "empty", "x", {})
