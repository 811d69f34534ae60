"""The archive of the user's modules: packed once, equal for every replica, and verified."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from aerotrain import user_code
from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.store import Store, open_store
from aerotrain.user_code import code_identity, fetch_code, pack, publish_code


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


def test_the_identity_of_code_is_that_of_its_python_files(folder: Path):
    url = "s3://bucket/code/0f.tar.gz"
    assert code_identity(url) == url
    assert code_identity(None) is None
    first = code_identity(str(folder))
    (folder / "output.bin").write_bytes(b"0")
    assert code_identity(str(folder)) == first
    (folder / "layers" / "__init__.py").write_text("dense = 2\n")
    assert code_identity(str(folder)) != first


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
    with pytest.raises(FinalError, match=r"holds 2 MiB .* images\.npy: move data out"):
        pack(folder)


def test_an_archive_with_a_path_outside_its_folder_is_refused(store: Store, tmp_path: Path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside.py"))
    key = f"{hashlib.sha256(packed.getvalue()).hexdigest()}.tar.gz"
    store.put(key, packed.getvalue())
    with pytest.raises(FinalError, match=r"\.\./outside\.py"):
        fetch_code(f"{store.url}/{key}", tmp_path / "code")
    assert not (tmp_path / "outside.py").exists()
