"""The store: the same behaviour on a folder and on S3, and no key leads out of it."""

import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.store import (
    ChangedError,
    ExistsError,
    MissingError,
    StoreRefused,
    StoreUnavailable,
    local,
    open_store,
    probe,
)


def test_an_object_is_what_was_put_last_and_a_missing_one_is_named(store_url: str) -> None:
    store = open_store(store_url)
    store.put("runs/1/result.json", b"first")
    before = next(store.list())
    store.put("runs/1/result.json", b"other")
    assert store.get("runs/1/result.json") == b"other"
    assert next(store.list()).etag != before.etag
    for _ in range(2):
        store.delete("runs/1/result.json")
    assert not store.exists("runs/1/result.json")
    with pytest.raises(MissingError, match=r"there is no .*/runs/1/result.json"):
        store.get("runs/1/result.json")


def test_a_folder_is_removed_with_its_last_object(tmp_path: Path) -> None:
    store = open_store((tmp_path / "store").as_uri())
    for key in ("steps/10/weights", "steps/10/index", "steps/20/weights"):
        store.put(key, b"")
    for key in ("steps/10/weights", "steps/10/index"):
        store.delete(key)
    assert [each.name for each in (tmp_path / "store/steps").iterdir()] == ["20"]
    store.delete("steps/20/weights")
    assert list((tmp_path / "store").iterdir()) == []


def test_an_object_is_written_although_its_folder_is_removed_meanwhile(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())

    def write_and_delete(number: int) -> None:
        for _ in range(100):
            store.put(f"a/b/{number}", b"")
            store.delete(f"a/b/{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_and_delete, range(4)))
    assert list(store.list()) == []


def test_a_child_is_the_store_of_its_folder_which_may_hold_spaces(store_url: str) -> None:
    child = open_store(store_url).child("two words/b")
    child.put("c d", b"c")
    assert open_store(child.url).get("c d") == b"c"
    assert open_store(store_url).get("two words/b/c d") == b"c"


def test_a_prefix_is_a_whole_folder(store_url: str) -> None:
    store = open_store(store_url)
    for key in ("run/b", "run/a/c", "run-2/d", "running", "other/run/e"):
        store.put(key, b"12")
    assert [(each.key, each.size) for each in store.list("run")] == [("run/a/c", 2), ("run/b", 2)]
    assert [each.key for each in store.list("run/")] == ["run/a/c", "run/b"]
    assert len(list(store.list())) == 5
    assert [each.key for each in store.child("run").list()] == ["a/c", "b"]
    assert list(store.list("nothing")) == []
    assert store.folders() == ["other", "run", "run-2"]
    assert store.child("run").folders() == ["a"]
    assert store.folders("nothing") == store.folders("running") == []


def test_a_listing_of_a_folder_is_sorted_by_whole_keys(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    keys = ["a!/x", "a-b", "a-b.c/x", "a.b", "a/a/a", "a/b", "a/z.a", "a0", "b/a"]
    for key in reversed(keys):
        store.put(key, b"x")
    assert [each.key for each in store.list()] == keys
    assert [each.key for each in store.list("a")] == [key for key in keys if key[:2] == "a/"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everywhere")
def test_a_folder_that_may_not_be_listed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o300)
    with pytest.raises(StoreRefused, match="change its permissions"):
        list(open_store(tmp_path.as_uri()).list())


def test_the_files_of_a_folder_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        open_store(tmp_path.as_uri()).put("run/model", b"12")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("run", "run/model")]
    assert modes == [0o750, 0o640]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\0"]
)
def test_a_key_outside_the_store_is_refused(store_url: str, key: str) -> None:
    store = open_store(store_url)
    for use in (store.get, store.exists, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(SpecError, match="is not a valid key"):
            use(key)


@pytest.mark.parametrize("prefix", ["../x", "/x", "a//b"])
def test_a_prefix_outside_the_store_is_refused(store_url: str, prefix: str) -> None:
    store = open_store(store_url)
    with pytest.raises(SpecError):
        store.child(prefix)
    with pytest.raises(SpecError):
        list(store.list(prefix))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("digits", "names no store"),
        ("files:///folder", "did you mean 'file'"),
        ("file://relative/folder", "three slashes"),
        ("s3:///prefix", "names no bucket"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        open_store(url)


def test_an_object_is_replaced_only_if_its_version_is_unchanged(store_url: str) -> None:
    store = open_store(store_url)
    first = store.put("x", b"first", if_absent=True)
    assert store.stat("x").etag == first
    second = store.put("x", b"second", if_match=first)
    assert store.stat("x").etag == second
    for missing_or_changed in ("x", "y"):
        with pytest.raises(ChangedError, match=f"{missing_or_changed} changed since it was read"):
            store.put(missing_or_changed, b"late", if_match=first)
    assert store.get("x") == b"second"
    assert [each.key for each in store.list()] == ["x"]


@pytest.mark.parametrize("exists", [False, True])
def test_only_one_of_many_writers_creates_an_object_or_replaces_a_version(
    store_url: str, exists: bool
) -> None:
    store = open_store(store_url)
    condition: dict[str, Any] = {"if_absent": True}
    if exists:
        condition = {"if_match": store.put("x", b"before")}

    def write(number: int) -> int | None:
        try:
            store.put("x", str(number).encode(), **condition)
        except (ChangedError, ExistsError):
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(write, range(16)) if number is not None]
    assert len(won) == 1
    assert store.get("x") == str(won[0]).encode()


def test_a_replacement_beside_a_suspended_one_fails_temporarily(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOCKED_SECONDS", 0.0)
    store = open_store(tmp_path.as_uri())
    tag = store.put("x", b"before")
    with (tmp_path / f"{local._LOCK}x").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="x is being replaced by another process"):
            store.put("x", b"after", if_match=tag)
    store.put("x", b"after", if_match=tag)
    assert [(each.key, store.get(each.key)) for each in store.list()] == [("x", b"after")]


def test_files_are_uploaded_and_downloaded(store_url: str, tmp_path: Path) -> None:
    store = open_store(store_url)
    content = os.urandom(20 << 20)  # more than one part of a multipart upload
    (tmp_path / "big").write_bytes(content)
    store.upload(tmp_path / "big", "a/big")
    store.download("a/big", tmp_path / "b/big")
    assert (tmp_path / "b/big").read_bytes() == content


def test_a_failed_download_leaves_no_file(store_url: str, tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        open_store(store_url).download("nothing", tmp_path / "down/nothing")
    assert list((tmp_path / "down").glob("*")) == []


def test_a_key_below_an_object_is_refused_by_a_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("a", b"")
    with pytest.raises(FinalError, match="is a file and cannot be a folder"):
        store.get("a/b")


def test_probe_leaves_nothing_behind(store_url: str) -> None:
    store = open_store(store_url)
    probe(store)
    assert list(store.list()) == []


def test_a_store_without_conditional_writes_is_refused(tmp_path: Path) -> None:
    class Heedless(local.LocalStore):
        def put(self, key: str, data: bytes, **_: object) -> str:
            return super().put(key, data)

    with pytest.raises(FinalError, match="ignores the conditions of a write"):
        probe(Heedless(tmp_path))
    assert list(tmp_path.iterdir()) == []
