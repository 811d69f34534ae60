"""Which version of a pipeline is served: promoted, rolled back, and changed by several at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import ALIAS
from aerotrain.serving.alias import alias_of, promote, rollback, served_version
from aerotrain.store import open_store


@pytest.fixture
def pipeline(tmp_path):
    """The store of a pipeline with versions 1 to 5, of which the last is incomplete."""
    store = open_store((tmp_path / "flats").as_uri())
    for version in range(1, 5):
        store.put(f"serving/{version}/manifest.json", b"{}")
    store.put("serving/5/saved_model.pb", b"")
    return store


@pytest.fixture
def versions(pipeline):
    return pipeline.child("serving")


def test_the_newest_version_is_served_until_one_is_promoted(pipeline, versions):
    assert served_version(pipeline.url) == f"{versions.url}/4"
    promote(versions, 2, by="ann")
    assert served_version(pipeline.url) == f"{versions.url}/2"
    versions.put("6/manifest.json", b"{}")
    assert served_version(pipeline.url) == f"{versions.url}/2"


def test_a_rollback_returns_to_the_version_before_and_a_second_one_further(versions):
    for version in (1, 2, 4):
        promote(versions, version, by="run", metrics={"auc": 0.9})
    assert rollback(versions, by="ann", reason="too slow").version == 2
    assert rollback(versions, by="ann").version == 1
    with pytest.raises(FinalError, match=r"version 1 of .* is the first that was promoted"):
        rollback(versions, by="ann")
    assert promote(versions, 4, by="ann").version == 4
    assert rollback(versions, by="ann").version == 1
    history = alias_of(versions).history
    assert [(each.action, each.version, each.previous) for each in history] == [
        ("promote", 1, None),
        ("promote", 2, 1),
        ("promote", 4, 2),
        ("rollback", 2, 4),
        ("rollback", 1, 2),
        ("promote", 4, 1),
        ("rollback", 1, 4),
    ]
    assert (history[3].by, history[3].reason) == ("ann", "too slow")
    assert history[2].metrics == {"auc": 0.9}


def test_a_promotion_that_is_repeated_changes_nothing(versions):
    first = promote(versions, 3, by="run")
    assert promote(versions, 3, by="retry") == first


def test_an_older_version_is_promoted_only_where_that_is_allowed(versions):
    promote(versions, 3, by="new")
    with pytest.raises(FinalError, match="version 2 is older than version 3, which is served"):
        promote(versions, 2, by="late")
    assert promote(versions, 2, by="ann", older=True).version == 2


@pytest.mark.parametrize("version", [5, 9])
def test_a_version_that_is_not_complete_is_not_promoted(versions, version):
    with pytest.raises(FinalError, match=f"no complete version {version}; it has 1, 2, 3, 4"):
        promote(versions, version, by="ann")
    assert alias_of(versions) is None


def test_the_folder_of_a_pipeline_in_place_of_its_versions_gets_a_hint(pipeline):
    with pytest.raises(FinalError, match=r"no complete version 1; is there one below .*/serving\?"):
        promote(pipeline, 1, by="ann")


def test_a_rollback_without_a_promotion_or_to_a_deleted_version_is_refused(versions):
    with pytest.raises(FinalError, match="serves its newest version: none was promoted"):
        rollback(versions, by="ann")
    promote(versions, 1, by="ann")
    promote(versions, 2, by="ann")
    versions.delete("1/manifest.json")
    with pytest.raises(FinalError, match="no complete version 1"):
        rollback(versions, by="ann")


def test_changes_at_once_are_all_in_the_history(versions):
    with ThreadPoolExecutor(8) as pool:
        changes = [
            pool.submit(promote, versions, 1 + number % 4, by=str(number), older=True)
            for number in range(24)
        ]
        for each in changes:
            each.result()
    history = alias_of(versions).history
    assert [each.previous for each in history[1:]] == [each.version for each in history[:-1]]


def test_an_object_that_is_no_alias_is_named(pipeline, versions):
    versions.put(ALIAS, b"3")
    with pytest.raises(FinalError, match=r"aliases/serving.json is no alias of a version"):
        served_version(pipeline.url)
