"""Publications of many files: complete or absent, and fetched as they were published."""

import json
from pathlib import Path

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.store import MANIFEST, CorruptError, MissingError, Store, fetch, open_store, publish


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
    fetched = fetch(store, "serving/1", tmp_path / "copy")
    assert fetched == published
    assert fetched.about == {"step": 7}
    assert (tmp_path / "copy/variables/data").read_bytes() == b"weights"


def test_publishing_the_same_again_writes_nothing(store_url: str, folder: Path) -> None:
    store = open_store(store_url)
    publish(store, folder, "serving/1", {})
    before = list(store.list())
    publish(store, folder, "serving/1", {})
    assert list(store.list()) == before


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


@pytest.mark.parametrize("content", [b"weighty", b"weight", None])
def test_an_object_that_changed_is_named_and_not_kept(
    store_url: str, folder: Path, tmp_path: Path, content: bytes | None
) -> None:
    store = open_store(store_url)
    publish(store, folder, "serving/1", {})
    if content is None:
        store.delete("serving/1/variables/data")
    else:
        store.put("serving/1/variables/data", content)
    with pytest.raises(CorruptError, match=r"/serving/1/variables/data is (corrupt|missing)"):
        fetch(store, "serving/1", tmp_path / "copy")
    assert not (tmp_path / "copy/variables/data").exists()


def test_a_manifest_that_points_outside_is_refused(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    store = open_store(store_url)
    publish(store, folder, "serving/1", {})
    manifest = store.get(f"serving/1/{MANIFEST}").replace(b"variables/data", b"../../outside")
    store.put(f"serving/1/{MANIFEST}", manifest)
    with pytest.raises(FinalError, match="is not a valid key"):
        fetch(store, "serving/1", tmp_path / "copy")


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version": 2}'])
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
