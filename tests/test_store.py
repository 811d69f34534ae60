"""The store: the same behaviour on a folder and on S3, and no key leads out of it."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.store import (
    ChangedError,
    ExistsError,
    MissingError,
    StoreRefused,
    local,
    open_store,
    probe,
)


def test_get_returns_what_was_put(store_url: str) -> None:
    store = open_store(store_url)
    store.put("runs/1/result.json", b"first")
    store.put("runs/1/result.json", b"second")
    assert store.get("runs/1/result.json") == b"second"
    assert store.exists("runs/1/result.json")
    assert not store.exists("runs/1/other.json")


def test_a_missing_object_is_named_by_its_url(store_url: str) -> None:
    store = open_store(store_url)
    with pytest.raises(MissingError, match=r"there is no .*/runs/1/nothing"):
        store.get("runs/1/nothing")


def test_deleting_a_missing_object_is_no_error(store_url: str) -> None:
    store = open_store(store_url)
    store.put("x", b"x")
    store.delete("x")
    store.delete("x")
    assert not store.exists("x")


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


def test_a_child_is_the_store_of_its_folder(store_url: str) -> None:
    child = open_store(store_url).child("a/b")
    child.put("c", b"c")
    assert child.url == f"{store_url}/a/b"
    assert open_store(child.url).get("c") == open_store(store_url).get("a/b/c") == b"c"


def test_a_url_may_hold_spaces(store_url: str) -> None:
    store = open_store(store_url).child("two words")
    store.put("x y", b"x")
    assert open_store(store.url).get("x y") == b"x"


def test_a_prefix_is_a_whole_folder(store_url: str) -> None:
    store = open_store(store_url)
    for key in ("run/b", "run/a/c", "run-2/d", "running", "other/run/e"):
        store.put(key, b"12")
    assert [(each.key, each.size) for each in store.list("run")] == [("run/a/c", 2), ("run/b", 2)]
    assert [each.key for each in store.list("run/")] == ["run/a/c", "run/b"]
    assert len(list(store.list())) == 5
    assert [each.key for each in store.child("run").list()] == ["a/c", "b"]
    assert list(store.list("nothing")) == []


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


def test_a_listing_has_another_tag_for_another_content(store_url: str) -> None:
    store = open_store(store_url)
    store.put("x", b"12")
    before = next(store.list())
    store.put("x", b"34")
    assert next(store.list()).etag != before.etag


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


def test_only_one_of_many_simultaneous_creations_succeeds(store_url: str) -> None:
    store = open_store(store_url)

    def claim(number: int) -> int | None:
        try:
            store.put("claim", str(number).encode(), if_absent=True)
        except ExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(claim, range(16)) if number is not None]
    assert len(won) == 1
    assert store.get("claim") == str(won[0]).encode()


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


def test_only_one_of_many_replacements_of_the_same_version_succeeds(store_url: str) -> None:
    store = open_store(store_url)
    tag = store.put("x", b"before")

    def replace(number: int) -> int | None:
        try:
            store.put("x", str(number).encode(), if_match=tag)
        except ChangedError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(replace, range(16)) if number is not None]
    assert len(won) == 1
    assert store.get("x") == str(won[0]).encode()


_STOPS_BEFORE_IT_REPLACES = """
    import os, signal, sys
    from pathlib import Path
    from aerotrain.store import open_store

    def stop_and_replace(path, target, replace=Path.replace):
        os.kill(os.getpid(), signal.SIGSTOP)
        return replace(path, target)

    Path.replace = stop_and_replace
    open_store(sys.argv[1]).put("x", b"late", if_match=sys.argv[2])
"""


@pytest.mark.process
def test_a_replacement_by_a_suspended_process_fails_after_another_one_succeeded(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path.as_uri())
    tag = store.put("x", b"before")
    words = [sys.executable, "-c", textwrap.dedent(_STOPS_BEFORE_IT_REPLACES), store.url, tag]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as stopped:
        try:
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
            assert store.get("x") == b"before"
            tag = store.put("x", b"after", if_match=tag)
            store.put("x", b"and once more", if_match=tag)
            stopped.send_signal(signal.SIGCONT)
            assert "ChangedError" in stopped.communicate(timeout=60)[1]
        finally:
            stopped.kill()
    assert store.get("x") == b"and once more"
    assert [each.key for each in store.list()] == ["x"]


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
