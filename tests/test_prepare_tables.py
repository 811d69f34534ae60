"""Preparing files: any source, any split, a quarantine, and only changed partitions again."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.data import hashing
from aerotrain.data.dataset import Feature, load_dataset
from aerotrain.data.hashing import Hashes
from aerotrain.data.prepare import duplicates, partition
from aerotrain.data.sources import text
from aerotrain.data.sources.batch import SourceError
from aerotrain.standalone import prepare
from aerotrain.store import MANIFEST, open_store
from support.prepared import records


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four Parquet files of 250 records each: typed columns, with missing values in two of them."""
    folder = tmp_path / "table"
    folder.mkdir()
    for number in range(4):
        rows = np.arange(250 * number, 250 * (number + 1))
        columns = {
            "id": pa.array(rows),
            "price": pa.array(rows * 0.5, mask=rows % 100 == 7),
            "town": pa.array([None if row % 100 == 9 else f"town-{row % 7}" for row in rows]),
            "day": pa.array([f"2026-01-{1 + row % 28:02d}" for row in rows]),
            "fold": pa.array([("train", "test")[int(row % 5 == 0)] for row in rows]),
            "label": pa.array(rows % 10, pa.int16()),
            "pair": pa.array([[row, row] for row in rows.tolist()]),
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def source(folder: Path, kind: str = "parquet") -> dict[str, Any]:
    return {"kind": kind, "url": folder.as_uri()}


def prepared(
    tmp_path: Path, described: Mapping[str, Any], store: str = "store", **rules: Any
) -> str:
    """The URL of the data set of a source."""
    return prepare((tmp_path / store).as_uri(), tmp_path, described, **rules)


def files(tmp_path: Path, *tables: Mapping[str, Any]) -> dict[str, Any]:
    """The source of Parquet files with these columns."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return source(folder)


def by_split(url: str) -> dict[str, list[int]]:
    return {name: [each["id"] for each in records(url, name)] for name in load_dataset(url).splits}


# --- what is written


def test_a_table_keeps_its_types_and_its_missing_values(table: Path, tmp_path: Path) -> None:
    url = prepared(tmp_path, source(table))
    assert load_dataset(url).schema["label"] == Feature("int16")
    everything = [each for split in load_dataset(url).splits for each in records(url, split)]
    assert sorted(each["id"] for each in everything) == list(range(1000))
    assert {each["id"] for each in everything if np.isnan(each["price"])} == set(
        range(7, 1000, 100)
    )
    assert {each["id"] for each in everything if each["town"] == b""} == set(range(9, 1000, 100))


def test_records_of_all_files_are_shuffled_by_the_seed_into_shards_of_the_target_size(
    table: Path, tmp_path: Path
) -> None:
    urls = [
        prepared(tmp_path, source(table), f"store-{seed}", seed=seed, shards=1, shard_bytes=10_000)
        for seed in (0, 1)
    ]
    orders = [by_split(url)["train"] for url in urls]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    first_tenth = np.array(orders[0][: len(orders[0]) // 10]) // 250
    assert set(first_tenth) == {0, 1, 2, 3}
    sizes = [shard.bytes for shard in load_dataset(urls[0]).splits["train"].shards]
    assert len(sizes) > 5
    assert 9000 < min(sizes) <= max(sizes) < 11_000


def test_a_changed_file_rewrites_only_the_shards_of_its_partition(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 2 * (table / "0.parquet").stat().st_size  # each file is a partition of its own
    prepared(tmp_path, source(table), part_bytes=size)
    changed = pq.read_table(table / "2.parquet").slice(0, 249)
    pq.write_table(changed, table / "2.parquet")
    capsys.readouterr()
    url = prepared(tmp_path, source(table), part_bytes=size)
    said = capsys.readouterr().out
    assert said.count("is copied from an earlier output: 250 records") == 3
    assert said.count("is written: 249 records") == 1
    fresh = prepared(tmp_path, source(table), "fresh", part_bytes=size)
    assert open_store(url).get(MANIFEST) == open_store(fresh).get(MANIFEST)
    for split in load_dataset(url).splits.values():
        for shard in split.shards:
            assert open_store(url).get(shard.file) == open_store(fresh).get(shard.file)


# --- splits


def test_equal_records_are_never_in_two_splits(tmp_path: Path) -> None:
    splits = by_split(prepared(tmp_path, files(tmp_path, *[{"id": np.arange(200)}] * 3)))
    assert sum(map(len, splits.values())) == 600
    assert not set(splits["train"]) & (set(splits["test"]) | set(splits["validation"]))


TWO = {"train": 0.8, "test": 0.2}


@pytest.mark.parametrize(
    ("way", "test"),
    [
        ({"way": "column", "column": "fold"}, set(range(0, 1000, 5))),
        (
            {"way": "time", "column": "day", "until": {"train": "2026-01-20", "test": None}},
            {row for row in range(1000) if 1 + row % 28 >= 20},
        ),
    ],
)
def test_a_column_or_the_time_gives_the_split(
    table: Path, tmp_path: Path, way: dict[str, Any], test: set[int]
) -> None:
    url = prepared(tmp_path, source(table), splits=TWO, split_by=way)
    assert set(by_split(url)["test"]) == test


def test_folders_give_the_split(tmp_path: Path) -> None:
    for split, rows in (("train", range(100)), ("test", range(100, 130))):
        (tmp_path / "in" / split).mkdir(parents=True)
        pq.write_table(pa.table({"id": list(rows)}), tmp_path / "in" / split / "x.parquet")
    options: dict[str, Any] = {"splits": TWO, "split_by": {"way": "folder"}}
    url = prepared(tmp_path, source(tmp_path / "in"), **options)
    assert set(by_split(url)["test"]) == set(range(100, 130))
    with pytest.raises(SourceError, match=r"0\.parquet is in the folder of no split"):
        prepared(tmp_path, files(tmp_path, {"id": [1]}), **options)


@pytest.mark.parametrize("options", [{}, {"part_bytes": 1}, {"part_bytes": 1, "key": ["id"]}])
def test_equal_records_and_rare_classes_are_stratified_too(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Ten files, each with a record of a rare class and records that other files have too."""
    step = 100 if "key" in options else 50
    tables = [
        {"id": [*range(step * n, step * n + 100), 100_000 + n], "label": [0] * 100 + [1]}
        for n in range(10)
    ]
    url = prepared(
        tmp_path,
        files(tmp_path, *tables),
        splits={"train": 0.5, "test": 0.5},
        split_by={"way": "stratified", "column": "label"},
        **options,
    )
    splits = by_split(url)
    assert sum(map(len, splits.values())) == 1010
    assert not set(splits["train"]) & set(splits["test"])
    classes = load_dataset(url).splits["test"].classes
    assert classes[0] == pytest.approx(500, abs=10 if "key" in options else 80)
    assert 0 < classes[1] < 10


def test_stratified_splits_are_exact_and_move_few_records_if_a_file_is_added(
    tmp_path: Path,
) -> None:
    """300 rare classes of two records each, and a frequent one, of which a file adds a tenth."""

    def split(*tables: Mapping[str, Any]) -> tuple[set[int], set[int]]:
        way = {"way": "stratified", "column": "label"}
        options = {"splits": {"train": 0.5, "test": 0.5}, "key": ["id"], "allow_drift": True}
        url = prepared(tmp_path, files(tmp_path, *tables), split_by=way, **options)
        splits = by_split(url)
        assert load_dataset(url).splits["train"].classes[1000] == 1200 + 120 * (len(tables) - 1)
        return set(splits["train"]), set(splits["test"])

    ids = np.arange(3000)
    first = {"id": ids, "label": np.where(ids < 600, ids // 2, 1000)}
    train, test = split(first)
    assert len(train) == pytest.approx(1500, abs=60)
    later, others = split(first, {"id": 5000 + ids[:240], "label": [1000] * 240})
    moved = train & others | test & later
    assert not {each for each in moved if each < 600}
    assert len(moved) < 30


# --- integers that are missing

GAPS = {
    "key": [None, 1, 2],
    "small": [None, 2**24, 2],
    "large": [2**24 + 1, None, 2],
    "huge": [2**53 + 1, None, 2],
    "filled": [None, 5, 6],
    "whole": [7, 8, 9],
    "label": [0, None, 1],
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_integers_with_gaps_are_floats_that_hold_them_and_the_plan_lists_them_all(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column that a rule needs as it is stays one of integers."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [dict(zip(GAPS, each, strict=True)) for each in zip(*GAPS.values(), strict=True)] * 20
    if kind == "parquet":
        pq.write_table(pa.table({n: v * 20 for n, v in GAPS.items()}), folder / "x.parquet")
    elif kind == "csv":
        lines = [",".join("" if v is None else str(v) for v in each.values()) for each in rows]
        (folder / "x.csv").write_text("\n".join([",".join(GAPS), *lines]) + "\n")
    else:
        (folder / "x.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with pytest.raises(FinalError, match="column 'huge' is missing"):
        prepared(tmp_path, source(folder, kind), key=["key"], fill={"filled": 0})
    said = capsys.readouterr().out
    types = dict(re.findall(r"column (\w+) +(.*)", said))
    assert types == {
        **dict.fromkeys(["key", "huge", "filled", "whole", "label"], "int64"),
        "small": "float32; 20 of 60 values are missing: NaN",
        "large": "float64; 20 of 60 values are missing: NaN",
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_gaps_in_a_later_file_are_seen_or_rejected_with_advice_for_all_columns(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_SAMPLED_BYTES", 64)
    monkeypatch.setattr(text, "_PLACES", 2)  # the begin and the end, and the gaps are amid them
    first, then = list(range(100)), [*[None] * 10, *range(90)]
    if kind == "parquet":
        url = prepared(tmp_path, files(tmp_path, *({"n": v, "m": v} for v in (first, then))))
        assert load_dataset(url).schema == {"n": Feature("float32"), "m": Feature("float32")}
        return
    folder = tmp_path / "in"
    folder.mkdir()
    texts = ["" if each is None else str(each) for each in (*first, *then)]
    (folder / "x.csv").write_text("n,m\n" + "".join(f"{each},{each}\n" for each in texts))
    with pytest.raises(FinalError, match=r"'m' is missing, .*declare it float32 or float64"):
        prepared(tmp_path, source(folder, kind))


def test_a_label_that_is_missing_or_nan_is_kept_if_fill_declares_it(tmp_path: Path) -> None:
    labels = files(tmp_path, {"label": pa.array([1.5, float("nan"), None])})
    with pytest.raises(FinalError, match=r"(?s)row 1: the label 'label' is NaN.*is missing"):
        prepared(tmp_path, labels)
    url = prepared(tmp_path, labels, fill={"label": -1.0}, splits={"all": 1.0})
    assert sorted(str(each["label"]) for each in records(url, "all")) == ["-1.0", "1.5", "nan"]


# --- what is rejected


def write_csv(folder: Path, text: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "x.csv").write_text(text)
    return {**source(folder, "csv"), "types": {"n": "int64", "label": "int64"}}


LINES = "n,label\n" + "".join(f"{n},{n % 2}\n" for n in range(100))


@pytest.mark.parametrize(
    ("bad", "options", "reason"),
    [
        ("x,1", {}, "column 'n': 'x' is no int64"),
        ("1", {}, "Expected 2 columns, got 1"),
        ("5,", {}, "the label 'label' is missing"),
        (
            ",1",
            {},
            "column 'n' is missing, and int64 has no value for missing; give one in 'fill', or",
        ),
        ("7,5", {"ranges": {"label": [0, 1]}}, "column 'label' is 5, not from 0 to 1"),
    ],
)
def test_a_bad_record_is_named_or_goes_to_quarantine(
    tmp_path: Path, bad: str, options: Mapping[str, Any], reason: str
) -> None:
    described = write_csv(tmp_path / "in", LINES + bad + "\n")
    named = rf"(?s)at least 1 record was rejected.*x\.csv at line 102: .*{re.escape(reason)}"
    with pytest.raises(FinalError, match=named) as error:
        prepared(tmp_path, described, **options)
    listed = re.search(r"max_rejected; file://(\S+) lists them", str(error.value))
    assert listed
    assert reason in json.loads(Path(listed[1]).read_text())["reason"]
    url = prepared(tmp_path, described, "other", max_rejected=1, **options)
    assert sum(split.records for split in load_dataset(url).splits.values()) == 100
    entry = json.loads(open_store(url).get("quarantine/00000.jsonl"))
    assert (entry["file"], entry["offset"]) == (f"{described['url']}/x.csv", len(LINES))
    assert reason in entry["reason"]


def test_the_line_of_a_rejected_record_counts_empty_lines_and_is_not_known_amid_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerotrain.data.sources.text.BLOCK", 64)
    text = LINES.replace("\n7,1\n", "\n\n\n7,1\nx,1\n").replace("\n90,0\n", "\ny,0\n")
    described = write_csv(tmp_path / "in", text)
    with pytest.raises(FinalError, match=r"line 12: column 'n': 'x' .*\n.*line 95: .*'y' is no"):
        prepared(tmp_path, described)
    monkeypatch.setattr("aerotrain.data.sources.text.FRAGMENT_BYTES", 200)
    with pytest.raises(FinalError, match=rf"byte {text.index('y,0')}: column 'n': 'y' is no int64"):
        prepared(tmp_path, described, "other")


def test_too_many_rejected_records_in_all_partitions_together_fail_finalize(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.csv").write_text(f"{LINES}x,1\n")
    described = {**source(tmp_path / "in", "csv"), "types": {"n": "int64"}}
    with pytest.raises(
        FinalError,
        match=r"(?s)at least 2 records were .*\.csv at.*\.csv at.*/datasets/\w+/quarantine/ lists",
    ):
        prepared(tmp_path, described, max_rejected=1, part_bytes=1)


def test_missing_values_are_filled_with_a_value_of_the_column(tmp_path: Path) -> None:
    described = write_csv(tmp_path / "in", LINES + ",1\n")
    url = prepared(tmp_path, described, fill={"n": -1})
    numbers = [each["n"] for split in load_dataset(url).splits for each in records(url, split)]
    assert sorted(numbers) == [-1, *range(100)]
    with pytest.raises(SpecError, match="fill has 'none' for the column 'n', whose values are int"):
        prepared(tmp_path, described, fill={"n": "none"})


def test_two_records_of_different_partitions_with_one_key_are_named_by_finalize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "RANGE_HASHES", 100)  # several ranges of hashes
    tables = [{"id": [*range(100 * n, 100 * n + 100)], "n": [0] * 100} for n in range(4)]
    options: dict[str, Any] = {"key": ["id"], "part_bytes": 1}
    prepared(tmp_path, files(tmp_path, *tables), **options)
    words = r"1 record repeats a key, .* at .*[04]\.parquet, row \d+ and .*[04]\.parquet, row \d+;"
    for others in ([400, 25], [400, 400]):  # in two partitions, and in one
        described = files(tmp_path, *tables, {"id": others, "n": [1, 2]})
        with pytest.raises(FinalError, match=words):
            prepared(tmp_path, described, **options)
    prepared(tmp_path, files(tmp_path, *tables, {"id": [400, 401], "n": [0, 0]}), **options)


def test_different_keys_with_equal_hashes_are_not_duplicates(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def four(keys: Sequence[str | bytes]) -> Hashes:
        return hashing.hashes_of(keys) >> np.uint64(62) << np.uint64(62)

    monkeypatch.setattr(partition, "hashes_of", four)
    monkeypatch.setattr(duplicates, "hashes_of", four)
    url = prepared(tmp_path, source(table), "s", key=["id"], splits=TWO)
    assert sum(split.records for split in load_dataset(url).splits.values()) == 1000


@pytest.mark.parametrize(
    ("first", "second", "options", "words"),
    [
        (["x", "y" * 5000], ["z"], {"shard_bytes": 1000}, "row 1: its 50.. bytes are more than a"),
        (
            [5] * 9,
            ["five"] * 9,
            {},
            r"1\.parquet: column 'n' cannot be cast to int64 .*: it is string",
        ),
        ([[1, 2]], [[3]], {}, "the column 'n' holds lists of 2 and of 1 values; pad them"),
    ],
)
def test_a_column_that_no_data_set_can_hold_is_refused(
    tmp_path: Path, first: list[Any], second: list[Any], options: dict[str, Any], words: str
) -> None:
    described = files(tmp_path, {"n": first}, {"n": second})
    with pytest.raises(FinalError, match=words):
        prepared(tmp_path, described, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"key": ["idd"]}, "key names a column 'idd', which does not exist, did you mean 'id'"),
        ({"split_by": {"way": "stratifed", "column": "x"}}, "did you mean 'stratified'"),
        ({"ranges": {"id": [3, 1]}}, "its least and its greatest value"),
        ({"split_by": {"way": "column"}}, "split_by 'column' takes column, got nothing"),
        ({"ranges": {"town": [0, 1]}}, "ranges names the column 'town', which is string"),
        (
            {"split_by": {"way": "stratified", "column": "pair"}},
            r"split_by names the column 'pair', .* takes one value of each record",
        ),
    ],
)
def test_rules_that_do_not_fit_the_columns_are_refused(
    table: Path, tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        prepared(tmp_path, source(table), **arguments)
    assert not (tmp_path / "store").exists()
