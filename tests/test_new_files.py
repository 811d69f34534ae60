"""The watcher of a prefix: which files it reports, and what it does while a store is away."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from aerotrain.contract.errors import SpecError
from aerotrain.store import Store, open_store
from aerotrain_airflow.steps.new_files import PATIENCE, NewFiles, WatchedPrefix


class Watcher:
    """A watcher of the table in a store, which looks when a test says so."""

    def __init__(self, url: str, marker: str | None = None) -> None:
        self.store = open_store(url)
        self.table = self.store.child("table")
        self.prefix = WatchedPrefix(self.table.url, marker=marker)

    def looks(self, now: float = 0, confirms: bool = True) -> list[str] | None:
        """The files that a look reports."""
        files = self.prefix.new_files(self.table, self.store, now)
        if files and confirms:
            self.prefix.confirm(self.store, files)
        return sorted(files) or None


@pytest.fixture
def table(store_url: str) -> Store:
    return open_store(store_url).child("table")


def test_each_file_is_reported_once_also_after_a_restart(table: Store, store_url: str) -> None:
    watcher = Watcher(store_url)
    assert watcher.looks() is None  # the prefix does not exist
    for name in ("dt=1/a", "dt=1/_SUCCESS", "dt=2/b", "_tmp/c", "dt=2/.d"):
        table.put(name, b"1")
    assert [watcher.looks() for _ in range(3)] == [None, ["dt=1/a", "dt=2/b"], None]
    table.put("dt=1/a", b"other content")
    table.put("dt=3/e", b"1")
    table.delete("dt=2/b")
    again = Watcher(store_url)
    assert [again.looks() for _ in range(3)] == [None, ["dt=1/a", "dt=3/e"], None]
    table.put("dt=2/b", b"1")
    assert [again.looks() for _ in range(3)] == [None, ["dt=2/b"], None]


def test_a_file_that_is_written_waits_and_so_does_a_folder_without_its_marker(
    tmp_path: Path,
) -> None:
    watcher, marked = Watcher(tmp_path.as_uri()), Watcher(tmp_path.as_uri(), marker="_SUCCESS")
    growing = tmp_path / "table" / "dt=1" / "a"
    growing.parent.mkdir(parents=True)
    for size in range(1, 4):
        growing.write_bytes(b"x" * size)
        assert (watcher.looks(), marked.looks()) == (None, None)
    assert (watcher.looks(), marked.looks()) == (["dt=1/a"], None)
    (growing.parent / "_SUCCESS").touch()
    assert marked.looks() == ["dt=1/a"]


def test_files_that_land_one_after_another_are_one_event_unless_they_never_end(
    tmp_path: Path,
) -> None:
    watcher = Watcher(tmp_path.as_uri())
    seen = []
    for second in range(0, int(PATIENCE) + 100, 100):
        open_store(tmp_path.as_uri()).put(f"table/{second}", b"1")
        seen.append(watcher.looks(second))
    assert seen == [None, None, None, ["0", "100", "200"]]
    assert watcher.looks(second) == ["300"]


def test_what_was_not_confirmed_is_reported_again_and_what_another_one_confirmed_is_not(
    table: Store, store_url: str
) -> None:
    table.put("dt=1/a", b"1")
    one, other = Watcher(store_url), Watcher(store_url)
    assert (one.looks(), other.looks()) == (None, None)
    assert one.looks(confirms=False) == ["dt=1/a"]
    assert other.looks() == ["dt=1/a"]
    assert one.looks() is None


def test_a_trigger_waits_for_its_store_and_reports_again_what_airflow_did_not_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", tmp_path.as_uri())
    open_store(tmp_path.as_uri()).put("table/dt=1/a", b"1")
    in_the_way = tmp_path / "watched"  # a file in the place of a folder
    in_the_way.touch()
    trigger = NewFiles(f"{tmp_path.as_uri()}/table/", poll=0.02)
    said = ""

    async def warned() -> None:
        nonlocal said
        while "new files cannot be seen now" not in said:
            await asyncio.sleep(0.02)
            said += capfd.readouterr().out
        in_the_way.unlink()

    async def events(*outcomes: AdvanceOutcome) -> list[Any]:
        producer = NewFiles.create_shared_stream_producer(trigger.serialize()[1])
        stream = producer.open_stream()
        found = []
        async with asyncio.timeout(20):
            warning = asyncio.create_task(warned())
            for outcome in outcomes:
                payload, batch = await anext(stream)
                assert payload["url"] == f"{tmp_path.as_uri()}/table"
                found.append((payload["count"], payload["folders"]))
                await producer.advance([AdvanceItem(batch, outcome)])
            await warning
        return found

    lost, stored = AdvanceOutcome(acked=0, failed=1), AdvanceOutcome(acked=1, failed=0)
    assert asyncio.run(events(lost, stored)) == [(1, ["dt=1"])] * 2
    again = Watcher(tmp_path.as_uri())
    assert [again.looks(), again.looks()] == [None, None]
    said += capfd.readouterr().out
    assert said.count("new files cannot be seen now") == 1
    assert said.count("are seen again") == 1


def test_a_triggerer_before_airflow_3_3_gets_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", tmp_path.as_uri())
    store = open_store(tmp_path.as_uri())

    async def folders(*new: str) -> list[Any]:
        found = []
        async with asyncio.timeout(20):
            events = NewFiles(f"{tmp_path.as_uri()}/table/", poll=0.02).run()
            for folder in new:
                store.put(f"table/{folder}/a", b"1")
                event = await anext(events)
                found.append(event.payload["folders"])
        return found

    assert asyncio.run(folders("dt=1", "dt=2")) == [["dt=1"], ["dt=2"]]
    # The last event was not confirmed, because the next one was not asked for.
    assert asyncio.run(folders("dt=3")) == [["dt=2", "dt=3"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "incoming/flats"}, "names no prefix; write s3://bucket/prefix"),
        ({"url": "s3://bucket/a", "poll": 0}, "poll is 0; write a number of seconds above 0"),
    ],
)
def test_a_watcher_that_cannot_work_is_refused_by_its_dag_file(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        NewFiles(**arguments)
