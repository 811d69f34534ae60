"""Sources: each kind yields its records as columns; docs/inputs.md says what bad input becomes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.data.dataset import Feature
from aerotrain.data.records.columns import column_of
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import framed
from aerotrain.data.sources import files, open_source, parquet, text
from aerotrain.data.sources.batch import Rejected, SourceError
from aerotrain.store import ChangedError, StoreRefused, open_store
from devtools.s3_server import S3Server
from support import nasty_inputs
from support.nasty_inputs import JPEG, PNG
from support.store_fixtures import READER


def read(description: Mapping[str, Any]) -> tuple[dict[str, list[Any]], list[Rejected]]:
    """All records of a source, by column, and those that could not be parsed.

    The source and its fragments pass through JSON first, as between processes.
    """
    source = open_source(description)
    schema = source.schema()
    again = open_source(json.loads(json.dumps(source.described())))
    columns: dict[str, list[Any]] = {name: [] for name in schema or {}}
    rejected: list[Rejected] = []
    for fragment in source.fragments():
        for batch in again.read(json.loads(json.dumps(fragment.description)), schema):
            rejected += batch.rejected
            for name, values in columns.items():
                if len(batch):
                    read = batch.columns[name]
                    values += read.tolist() if isinstance(read, np.ndarray) else read.to_pylist()
    return columns, rejected


def schema(description: Mapping[str, Any]) -> dict[str, Feature]:
    return dict(open_source(description).schema() or {})


# --- each kind


def test_parquet_has_its_columns_and_those_of_its_hive_partitions(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        folder = tmp_path / f"dt={day}"
        folder.mkdir()
        table = pa.table({"x": [1.5, None], "n": [1, 2], "words": [["a", "b"], ["c", "d"]]})
        pq.write_table(table, folder / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    source = {"kind": "parquet", "url": tmp_path.as_uri()}
    assert schema(source) == {
        "x": Feature("float32"),
        "n": Feature("int64"),
        "words": Feature("string", (2,)),
        "dt": Feature("string"),
    }
    columns, _ = read(source)
    assert columns["x"] == [1.5, None, 1.5, None]
    assert columns["dt"] == ["2026-01-01"] * 2 + ["2026-01-02"] * 2
    only = {**source, "url": f"{tmp_path.as_uri()}/dt=2026-01-02/*.parquet", "columns": ["n"]}
    assert read({**only, "columns": ["n", "dt"]})[0] == {"n": [1, 2], "dt": ["2026-01-02"] * 2}
    assert read(only)[0] == {"n": [1, 2]}


def test_a_big_parquet_file_is_many_fragments_of_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "FRAGMENT_BYTES", 1000)
    table = pa.table({"x": np.random.default_rng(0).random(1000)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    source = {"kind": "parquet", "url": tmp_path.as_uri()}
    assert len(list(open_source(source).fragments())) > 3
    assert read(source)[0]["x"] == table["x"].to_pylist()


def test_csv_and_json_lines_are_cut_at_line_ends_into_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "FRAGMENT_BYTES", 1000)
    monkeypatch.setattr(text, "BLOCK", 300)
    numbers = list(range(0, 100_000, 97))
    (tmp_path / "x.csv").write_text("n,t\n" + "".join(f'{n},"t {n}"\r\n' for n in numbers))
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"n": n}) for n in numbers))
    for kind in ("csv", "jsonl"):
        source = {"kind": kind, "url": f"{tmp_path.as_uri()}/x.{kind}"}
        assert len(list(open_source(source).fragments())) > 10
        columns, rejected = read(source)
        assert columns["n"] == numbers
        assert not rejected


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files_are_read_completely(tmp_path: Path, suffix: str) -> None:
    codec = {"gz": "gzip", "zst": "zstd"}[suffix]
    content = b"n,t\n" + b"".join(b"%d,a\n" % n for n in range(50_000))
    path = tmp_path / f"x.csv.{suffix}"
    with pa.CompressedOutputStream(str(path), codec) as stream:
        stream.write(content)
    source = {"kind": "csv", "url": path.as_uri()}
    assert read(source)[0]["n"] == list(range(50_000))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceError, match=f"x.csv.{suffix} cannot be decompressed"):
        read(source)


def test_the_class_of_an_image_is_its_folder_and_its_bytes_are_unchanged(tmp_path: Path) -> None:
    for name, data in (("cat/1.png", PNG), ("dog/2.jpg", JPEG), ("dog/readme.txt", b"no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "süß 1").mkdir()
    (tmp_path / "süß 1" / "3.png").write_bytes(PNG)
    only = {"kind": "images", "url": f"{(tmp_path / 'süß 1').as_uri()}/*.png"}
    assert open_source(only).described()["classes"] == ["süß 1"]
    source = {"kind": "images", "url": [(tmp_path / each).as_uri() for each in ("cat", "dog")]}
    columns, rejected = read(source)
    assert sorted(zip(columns["image"], columns["label"], strict=True)) == [(PNG, 0), (JPEG, 1)]
    assert open_source(source).described()["classes"] == ["cat", "dog"]
    assert not rejected


def test_arrays_are_features_of_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "label.npy", np.arange(6, dtype=">i4"))
    monkeypatch.setattr("aerotrain.data.sources.arrays.FRAGMENT_BYTES", 20)
    url = tmp_path.as_uri()
    arrays = {"image": f"{url}/image.npy", "label": f"{url}/label.npy"}
    source = {"kind": "npy", "features": arrays}
    assert schema(source) == {"image": Feature("uint8", (2, 2)), "label": Feature("int32")}
    assert read(source)[0] == {"image": image.tolist(), "label": list(range(6))}


def test_examples_are_read_back_as_they_were_encoded(tmp_path: Path) -> None:
    columns = {
        "x": column_of("x", np.arange(6, dtype=np.float32).reshape(3, 2)),
        "n": column_of("n", np.array([-1, 2, 2**40])),
        "t": column_of("t", pa.array(["a", "", "c"])),
    }
    (tmp_path / "x.tfrecord").write_bytes(framed(encode(columns)).content)
    source = {"kind": "tfrecord", "url": f"{tmp_path.as_uri()}/x.tfrecord"}
    assert schema(source) == {name: each.feature for name, each in columns.items()}
    assert read(source)[0] == {name: each.values.tolist() for name, each in columns.items()}


# --- where files are


def test_globs_prefixes_and_lists_name_files(tmp_path: Path) -> None:
    for name in ("a/1.csv", "a/b/2.csv", "a/3.txt", "a/_x/4.csv", "c 100%/5.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    root = tmp_path.as_uri()

    def found(*urls: str) -> list[str]:
        return [file.url.removeprefix(root) for file in files.files_of(list(urls))]

    assert found(f"{root}/a/*.csv") == ["/a/1.csv"]
    assert found(f"{root}/a/**/*.csv") == ["/a/1.csv", "/a/_x/4.csv", "/a/b/2.csv"]
    assert found(f"{root}/a") == ["/a/1.csv", "/a/3.txt", "/a/b/2.csv"]
    assert found(f"{root}/a/[13].*", f"{root}/a/1.csv") == ["/a/1.csv", "/a/3.txt"]
    assert len(found(f"{root}/c*/?.csv")) == 1


@pytest.mark.process
def test_a_bucket_is_read_like_a_folder(s3_url: str, tmp_path: Path) -> None:
    store = open_store(s3_url)
    table = pa.table({"x": np.arange(1000)})
    pq.write_table(table, tmp_path / "x.parquet")
    store.upload(tmp_path / "x.parquet", "dt=1/x.parquet")
    store.put("lines/x.csv", b"n\n1\n2\n")
    columns, _ = read({"kind": "parquet", "url": f"{s3_url}/dt=*/*.parquet"})
    assert columns["x"] == list(range(1000))
    assert read({"kind": "csv", "url": f"{s3_url}/lines/"})[0] == {"n": [1, 2]}


def test_an_object_that_changes_before_it_is_read_is_noticed(store_url: str) -> None:
    store = open_store(store_url)
    store.put("x.csv", b"n\n1\n")
    source = open_source({"kind": "csv", "url": f"{store_url}/x.csv"})
    fragment, schema = next(source.fragments()), source.schema()
    store.put("x.csv", b"n\n2\n")
    with pytest.raises(ChangedError, match=r"x\.csv changed since it was listed"):
        list(source.read(fragment.description, schema))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_an_object_that_changes_while_it_is_read_is_noticed(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for module in (files, text):
        monkeypatch.setattr(module, "BLOCK", 100_000)
    numbers = np.random.default_rng(0).random(100_000)
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"n": numbers}), path, row_group_size=20_000)
    else:
        line = "{}\n" if kind == "csv" else '{{"n": {}}}\n'
        path.write_text("n\n" * (kind == "csv") + "".join(map(line.format, numbers)))
    store = open_store(store_url)
    store.upload(path, path.name)
    source = open_source({"kind": kind, "url": f"{store_url}/{path.name}"})
    [fragment] = source.fragments()
    batches = source.read(fragment.description, source.schema())
    next(batches)
    store.put(path.name, path.read_bytes()[::-1])
    with pytest.raises(ChangedError, match=rf"x\.{kind} changed since it was listed"):
        list(batches)


@pytest.mark.process
def test_files_are_read_by_name_where_listing_is_denied(
    s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(s3_url).put("day/x.csv", b"n\n1\n")
    for name, value in READER.items():
        monkeypatch.setenv(name, value)
    files.store_at.cache_clear()
    with pytest.raises(StoreRefused, match="name its files one by one: 'url' may be a list"):
        read({"kind": "csv", "url": f"{s3_url}/day/"})
    for url in (f"{s3_url}/day/x.csv", [f"{s3_url}/day/x.csv"]):
        assert read({"kind": "csv", "url": url})[0] == {"n": [1]}


# --- bad input


def test_the_table_of_nasty_inputs_is_what_prepare_makes_of_each() -> None:
    """No input ends in an error that is not ours, in a hang or in a crash."""
    assert len(nasty_inputs.CASES) >= 110
    page = Path(__file__).parent.parent / "docs" / "inputs.md"
    assert page.read_text() == nasty_inputs.page(), "run `make docs`"


def test_a_line_break_in_quotes_is_refused_in_every_block_and_makes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = 'n,t\n2,c\n7,"a ""b"" c"\n1,"a\n5,b"\n4,"g"\n9,i\n'
    (tmp_path / "x.csv").write_text(content)
    source = {"kind": "csv", "url": f"{tmp_path.as_uri()}/x.csv", "types": {"n": "int64"}}
    for size in range(1, len(content)):
        monkeypatch.setattr(text, "BLOCK", size)
        with pytest.raises(SourceError, match=r"x\.csv at line 4: a value in quotes does not end"):
            read(source)
    (tmp_path / "x.csv").write_text(content.replace("a\n5", "a 5"))
    assert read(source)[0]["t"] == ["c", 'a "b" c', "a 5,b", "g", "i"]


def test_na_is_missing_in_a_column_of_numbers_and_a_text_in_one_of_texts(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('n,t\n1,NA\nNA,DE\nnan,null\n,\n3,""\n')
    source = {"kind": "csv", "url": tmp_path.as_uri()}
    assert read(source) == (
        {"n": [1, None, None, None, 3], "t": ["NA", "DE", "null", None, None]},
        [],
    )


def test_a_json_line_that_does_not_parse_is_rejected_with_its_offset(tmp_path: Path) -> None:
    (tmp_path / "mit leer" / "süß").mkdir(parents=True)
    path = tmp_path / "mit leer" / "süß" / "größe 1.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": "x"}\n{"n"\n{"n": 3} {"n": 4}\n')
    for url in (path.as_uri(), f"file://{path}", (tmp_path / "mit leer").as_uri()):
        columns, rejected = read({"kind": "jsonl", "url": url})
        assert columns == {"n": [1, 2]}
        assert [each.offset for each in rejected] == [18, 29, 34]
        assert {each.file for each in rejected} == {path.as_uri()}


def test_the_fields_of_objects_in_json_lines_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [
        {"at": {"city": "Bonn", "geo": {"lat": 1}}, "a.b": 1, "in": {"x": 1}, "of": {"x.y": 1}},
        {"at": None, "a": {"b": 2}, "in": {"x": "other"}},
        {"at": {"city": "Ulm", "geo": {"lat": 1.5, "lon": 7}}, "in": None, "of": {"x.y": 2}},
        {"at": "Kiel"},
        {"a.b": 3, "a": {"b": 3}},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    source = {"kind": "jsonl", "url": path.as_uri(), "skip": ["in", "of"]}
    columns, rejected = read({**source, "types": {"at.geo.lon": "float32"}})
    assert columns == {
        "at.city": ["Bonn", None, "Ulm"],
        "at.geo.lat": [1, None, 1.5],
        "at.geo.lon": [None, None, 7],
        "a.b": [1, 2, None],
    }
    assert ["changed from object" in each.reason for each in rejected] == [True, False]
    assert "the field 'a.b' is also one of an object" in rejected[1].reason

    only = {"kind": "jsonl", "url": path.as_uri(), "columns": ["at.city"]}
    assert read(only)[0] == {"at.city": ["Bonn", None, "Ulm", None]}
    with pytest.raises(FinalError, match=r"'of' is of type struct<x\.y: int64>.*kind python"):
        read({**source, "skip": ["in"]})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "parqet"}, "no kind of source 'parqet', did you mean 'parquet'"),
        ({"kind": "csv"}, "needs 'url'"),
        ({"kind": "csv", "url": "", "delimeter": ";"}, "did you mean 'delimiter'"),
        ({"kind": "csv", "url": "", "types": {"n": "int6"}}, "did you mean 'int64'"),
        ({"kind": "csv", "url": "", "encoding": "klingon"}, "there is no encoding 'klingon'"),
        (
            {"kind": "csv", "url": "", "encoding": "utf-16"},
            "no encoding 'utf-16'",
        ),
        ({"kind": "csv", "url": "", "names": ["a", "b", "a"]}, "'names' has a name twice"),
        ({"kind": "csv", "url": "http://x/y"}, "names no store"),
        (
            {"kind": "csv", "url": "", "columns": "n"},
            "columns of the source must be a list of columns",
        ),
        (
            {"kind": "csv", "url": "", "names": [["n"]]},
            r"names\[0\] of a source of kind 'csv' must be a string",
        ),
        (
            {"kind": "parquet", "url": "", "columns": [["n"]]},
            r"columns\[0\] of the source must be a string",
        ),
    ],
)
def test_invalid_options_of_a_source_are_refused(source: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read(source)


def test_a_missing_column_is_refused_and_the_nearest_name_suggested(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("price,label\n1,2\n")
    pq.write_table(pa.table({"price": [1]}), tmp_path / "x.parquet")
    for kind in ("csv", "parquet"):
        source = {"kind": kind, "url": f"{tmp_path.as_uri()}/x.{kind}", "columns": ["prize"]}
        with pytest.raises(SpecError, match="no column 'prize', did you mean 'price'"):
            read(source)
