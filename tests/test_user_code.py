"""The archive of the user's modules: packed once, equal for every replica, and verified."""

import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path

import pytest

from aerotrain import user_code
from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.store import Store, open_store
from aerotrain.user_code import (
    changed_code,
    changed_files,
    code_of,
    fetch_code,
    pack,
    publish_code,
    user_module,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "layers").mkdir(parents=True)
    (folder / "digits.py").write_text("from layers import dense\n")
    (folder / "layers" / "__init__.py").write_text("dense = 1\n")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store((tmp_path / "store").as_uri())


def test_a_replica_imports_what_was_packed(folder: Path, store: Store, tmp_path: Path):
    unpacked = fetch_code(publish_code(store, folder), tmp_path / "code")
    assert (unpacked / "digits.py").read_text() == "from layers import dense\n"
    assert (unpacked / "layers" / "__init__.py").read_text() == "dense = 1\n"


def test_code_is_known_by_the_files_that_were_imported_as_they_were_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(folder)
    for module in ("digits", "layers", "later"):
        monkeypatch.setitem(sys.modules, module, sys)  # so that it is removed in the end
        monkeypatch.delitem(sys.modules, module)
    (folder / "later.py").write_text("late = 1\n")
    user_module("digits", "to test")
    code = code_of("digits")
    assert [*code] == ["digits.py", "layers/__init__.py"]
    (folder / "digits.py").write_text("edited while it runs\n")
    assert code_of("digits") == code
    assert changed_code(code, "digits") == []
    assert changed_files(code, folder) == ["digits.py"]
    # A process that has not imported all of it yet compares the file.
    user_module("later", "to test")
    more = code_of("digits")
    monkeypatch.delitem(sys.modules, "later")
    assert changed_code(more, "digits") == []
    (folder / "later.py").unlink()
    assert changed_code(more, "digits") == ["later.py"]


def test_the_same_folder_is_stored_once_and_a_changed_one_separately(folder: Path, store: Store):
    first = publish_code(store, folder)
    (folder / "digits.py").touch()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "digits.cpython-311.pyc").write_bytes(b"compiled")
    (folder / ".secret").write_text("not code")
    assert publish_code(store, folder) == first
    (folder / "digits.py").write_text("import layers\n")
    second = publish_code(store, folder)
    assert second != first
    assert {f"{store.url}/{each.key}" for each in store.list("code/")} == {first, second}


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("import layers", {"layers/__init__.py"}),
        ("from layers import dense", {"layers/__init__.py", "layers/dense.py"}),
        ("import layers.dense as d", {"layers/__init__.py", "layers/dense.py"}),
        ("def build_model(hparams):\n    from layers.dense import X", {"layers/dense.py"}),
        ("from layers import *", {"layers/dense.py", "layers/sparse.py"}),
        ("from layers import sparse", {"layers/sparse.py", "layers/dense.py"}),  # which imports it
        ("names = {'loss': 'losses'}", {"losses.py"}),
        ("import losses, tensorflow", {"losses.py"}),
        ("import importlib", {"layers/__init__.py", "losses.py", "other.py"}),
        ("m = importlib.import_module(name)", {"losses.py", "other.py", "layers/sparse.py"}),
        ("def broken(", {"losses.py", "other.py"}),
    ],
)
def test_an_archive_has_what_the_named_modules_import_and_all_data(
    folder: Path, tmp_path: Path, store: Store, source: str, used: set[str]
):
    (folder / "digits.py").write_text(source)
    (folder / "layers" / "dense.py").write_text("X = 1\n")
    (folder / "layers" / "sparse.py").write_text("from . import dense\n")
    (folder / "losses.py").touch()
    (folder / "other.py").touch()
    (folder / "words.txt").write_text("a b")
    unpacked = fetch_code(publish_code(store, folder, {"digits", "mean"}), tmp_path / "code")
    found = {each.relative_to(unpacked).as_posix() for each in unpacked.rglob("*.*")}
    assert found >= used | {"digits.py", "words.txt"}
    assert ("other.py" in found) == ("other.py" in used)


def test_a_change_of_a_module_that_is_not_imported_changes_no_archive(folder: Path, store: Store):
    first = publish_code(store, folder, {"digits"})
    (folder / "other.py").write_text("import layers\n")
    assert publish_code(store, folder, {"digits"}) == first
    (folder / "layers" / "__init__.py").write_text("dense = 2\n")
    assert publish_code(store, folder, {"digits"}) != first
    assert publish_code(store, folder, {"no module"}) == publish_code(store, folder)


def test_an_archive_that_was_changed_is_not_run(folder: Path, store: Store, tmp_path: Path):
    url = publish_code(store, folder)
    store.put(url.removeprefix(f"{store.url}/"), pack(tmp_path))
    with pytest.raises(TemporaryError, match="does not match the hash in its name"):
        fetch_code(url, tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_large_data_in_the_code_folder_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(user_code, "LARGEST", 1 << 20)
    (folder / "images.npy").write_bytes(bytes(2 << 20))
    with pytest.raises(FinalError, match=r"hold 2 MiB, .* images\.npy: move data out"):
        pack(folder)


def stored(store: Store, packed: bytes) -> str:
    key = f"{hashlib.sha256(packed).hexdigest()}.tar.gz"
    store.put(key, packed)
    return f"{store.url}/{key}"


@pytest.mark.parametrize(("name", "kind"), [("../outside.py", tarfile.REGTYPE), ("a", b"2")])
def test_an_archive_with_a_link_or_a_path_outside_its_folder_is_refused(
    store: Store, tmp_path: Path, name: str, kind: bytes
):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("there"))
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "there"
        archive.addfile(entry)
    with pytest.raises(FinalError, match=re.escape(name)):
        fetch_code(stored(store, packed.getvalue()), tmp_path / "code")
    assert not (tmp_path / "outside.py").exists()


def test_an_archive_that_unpacks_to_more_than_code_may_hold_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number in range(3):
            entry = tarfile.TarInfo(f"{number}.py")
            entry.size = 1 << 20
            archive.addfile(entry, io.BytesIO(bytes(1 << 20)))
    monkeypatch.setattr(user_code, "LARGEST", 2 << 20)
    with pytest.raises(FinalError, match="more than the 2 MiB"):
        fetch_code(stored(store, packed.getvalue()), tmp_path / "code")
    monkeypatch.setattr(user_code, "LARGEST", 1 << 10)
    with pytest.raises(FinalError, match="more than the 0 MiB"):
        fetch_code(stored(store, packed.getvalue()), tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_a_link_out_of_the_code_folder_is_refused_and_one_within_it_is_packed(
    folder: Path, store: Store, tmp_path: Path
):
    (folder / "scans.py").symlink_to("digits.py")
    (tmp_path / "linked").symlink_to(folder)
    unpacked = fetch_code(publish_code(store, tmp_path / "linked"), tmp_path / "code")
    assert (unpacked / "scans.py").read_text() == "from layers import dense\n"

    (tmp_path / "secret").write_text("root:x")
    for name, target in (("a.py", tmp_path / "secret"), ("b", tmp_path)):
        (folder / name).symlink_to(target)
        with pytest.raises(FinalError, match=f"{name} links to {target}, which is outside"):
            pack(folder)
        (folder / name).unlink()
