"""The version numbers of exported models: each is written by one try alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerotrain.serving.versions import claim_version, published_version
from aerotrain.store import Store, open_store, publish

MONDAY = {"run": "monday", "task": "export", "model": "m1"}
TUESDAY = {"run": "tuesday", "task": "export", "model": "m2"}


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(store_url)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_text("graph")
    (folder / "variables" / "variables.index").write_text("index")
    return folder


def test_simultaneous_exports_never_share_a_number(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda _: claim_version(store, MONDAY), range(16)))
    assert sorted(versions) == list(range(1, 17))


def test_no_two_claims_have_the_same_content(store: Store) -> None:
    """A claim whose response was lost is recognized by its bytes, which no other try may write."""
    first, second = (store.get(f"claims/{claim_version(store, MONDAY)}.json") for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    "stray",
    [
        "README.md",
        "1.json.bak",
        "old/7.json",
        "0.json",
        "².json",
        "9223372036854775808.json",
    ],
)
def test_a_stray_file_among_the_claims_disturbs_no_export(tmp_path: Path, stray: str) -> None:
    store = open_store(tmp_path.as_uri())
    store.put(f"claims/{stray}", b"not ours")
    assert [claim_version(store, MONDAY), claim_version(store, TUESDAY)] == [1, 2]


@pytest.mark.parametrize("content", [b"", b'{"run": "mon', b"[]", b"\xff"])
def test_a_claim_that_is_half_written_only_costs_its_number(store: Store, content: bytes) -> None:
    store.put("claims/1.json", content)
    assert claim_version(store, MONDAY) == 2
    assert published_version(store, MONDAY) is None


def test_a_version_without_a_claim_is_not_overwritten(store: Store, saved: Path) -> None:
    publish(store, saved, "7", {})
    store.put("9/variables/variables.index", b"of an upload that died")
    assert claim_version(store, MONDAY) == 10


def test_a_published_version_is_found_only_by_its_own_export(store: Store, saved: Path) -> None:
    version = claim_version(store, MONDAY)
    assert published_version(store, MONDAY) is None, "it is not published as yet"
    store.put(f"{version}/saved_model.pb", b"half of it")
    assert published_version(store, MONDAY) is None, "it is not whole"
    publish(store, saved, str(version), {})
    assert published_version(store, MONDAY) == version
    assert published_version(store, TUESDAY) is None
    assert published_version(store, {**MONDAY, "model": "trained again"}) is None


def test_a_try_publishes_by_itself_although_an_earlier_one_is_late(
    store: Store, saved: Path
) -> None:
    late, second = claim_version(store, MONDAY), claim_version(store, MONDAY)
    publish(store, saved, str(second), {})
    assert published_version(store, MONDAY) == second
    publish(store, saved, str(late), {})
    assert {published_version(store, MONDAY) for _ in range(2)} == {late}
