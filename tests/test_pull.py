"""The folder that TensorFlow Serving watches: whole or absent, and as the alias says."""

import os

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.serving.alias import promote, rollback
from aerotrain.serving.pull import Puller, follow
from aerotrain.store import open_store, publish


@pytest.fixture
def pipeline(tmp_path):
    store = open_store((tmp_path / "flats").as_uri())
    for version in ("1", "2"):
        saved = tmp_path / "saved" / version
        (saved / "variables").mkdir(parents=True)
        (saved / "saved_model.pb").write_text(version)
        (saved / "variables" / "variables.index").write_text(version)
        publish(store.child("serving"), saved, version, {})
    return store


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def of(version):
    return {f"{version}/saved_model.pb": version, f"{version}/variables/variables.index": version}


def test_the_folder_has_the_version_that_is_served_and_no_other(pipeline, folder):
    versions = pipeline.child("serving")
    puller = Puller(pipeline.url, folder)
    assert puller.sync()
    assert content(folder) == of("2")
    promote(versions, 1, by="ann")
    assert puller.sync()
    assert content(folder) == of("1")
    promote(versions, 2, by="ann")
    puller.sync()
    rollback(versions, by="ann")
    puller.sync()
    assert content(folder) == of("1")
    assert not puller.sync()


def test_a_pinned_version_is_pulled_whichever_one_is_served(pipeline, folder):
    promote(pipeline.child("serving"), 2, by="ann")
    Puller(pipeline.url, folder, 1).sync()
    assert content(folder) == of("1")
    with pytest.raises(FinalError, match="version 7 cannot be pulled"):
        Puller(pipeline.url, folder, 7).sync()


def test_a_puller_that_was_killed_in_a_download_begins_it_again(pipeline, folder):
    (folder / ".partial-2" / "variables").mkdir(parents=True)
    (folder / ".partial-2" / "saved_model.pb").write_text("half")
    assert Puller(f"{pipeline.url}/serving/", folder).sync()
    assert content(folder) == of("2")


def test_what_a_puller_that_was_killed_in_a_removal_leaves_is_no_version(
    pipeline, folder, monkeypatch
):
    versions = pipeline.child("serving")
    Puller(pipeline.url, folder).sync()
    promote(versions, 1, by="ann")
    unlink, removed = os.unlink, []

    def killed(*where, **options):
        removed.extend(options)  # rmtree names the folder; a download does not
        if len(removed) > 1:
            raise KeyboardInterrupt
        unlink(*where, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            Puller(pipeline.url, folder).sync()
    promote(versions, 2, by="ann")
    Puller(pipeline.url, folder).sync()
    assert content(folder) == of("2")


def test_a_version_that_is_damaged_or_deleted_leaves_the_folder_as_it_is(pipeline, folder):
    versions = pipeline.child("serving")
    promote(versions, 1, by="ann")
    puller = Puller(pipeline.url, folder)
    puller.sync()
    promote(versions, 2, by="ann")
    versions.put("2/variables/variables.index", b"other")
    with pytest.raises(FinalError, match=r"version 2 cannot be pulled: .* is corrupt"):
        puller.sync()
    assert content(folder) == of("1")
    versions.put("2/variables/variables.index", b"2")
    assert puller.sync()
    assert content(folder) == of("2")


def test_a_puller_goes_on_whatever_happens_to_the_store(pipeline, folder, capsys):
    versions = pipeline.child("serving")
    happens = [
        lambda: versions.put("aliases/serving.json", b"{"),
        lambda: versions.delete("aliases/serving.json"),
        lambda: promote(versions, 1, by="ann"),
    ]

    class Ended(Exception):  # noqa: N818 -- it is no error
        pass

    def pause(_seconds):
        if not happens:
            raise Ended
        happens.pop(0)()

    with pytest.raises(Ended):
        follow(Puller(pipeline.url, folder), pause=pause)
    assert content(folder) == of("1")
    assert "the folder stays as it is" in capsys.readouterr().out
