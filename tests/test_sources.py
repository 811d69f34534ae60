"""Sources: each kind yields its records as columns, and bad input is reported by position."""

import bz2
import gzip
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.data.dataset import Feature
from aerotrain.data.records import column_of, encode, framed
from aerotrain.data.sources import (
    Rejected,
    SourceError,
    files,
    lines,
    open_source,
    parquet,
    text,
)
from aerotrain.store import ChangedError, StoredObject, StoreRefused, open_store
from aerotrain.store.local import LocalStore
from devtools.s3_server import S3Server
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
    monkeypatch.setattr(lines, "BLOCK", 300)
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
    (tmp_path / "image.gz").write_bytes(gzip.compress((tmp_path / "image.npy").read_bytes()))
    monkeypatch.setattr("aerotrain.data.sources.arrays.FRAGMENT_BYTES", 20)
    url = tmp_path.as_uri()
    arrays = {"image": f"{url}/image.npy", "label": f"{url}/label.npy"}
    source = {"kind": "npy", "features": arrays}
    assert schema(source) == {"image": Feature("uint8", (2, 2)), "label": Feature("int32")}
    assert read(source)[0] == {"image": image.tolist(), "label": list(range(6))}
    assert read({"kind": "npy", "features": {"image": f"{url}/image.gz"}})[0] == {
        "image": image.tolist()
    }


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


def test_an_example_may_have_several_texts(tmp_path: Path) -> None:
    words = [[b"a", b"b"], [b"c", b""]]
    column = column_of("words", pa.array(words))
    (tmp_path / "x.tfrecord").write_bytes(framed(encode({"words": column})).content)
    assert read({"kind": "tfrecord", "url": tmp_path.as_uri()})[0] == {"words": words}


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
    for module in (files, lines):
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


def test_a_name_outside_its_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [StoredObject("a/../../x.csv", 4, "etag", 0.0)]  # which a bucket may contain
    monkeypatch.setattr(LocalStore, "list", lambda _store, _prefix="": iter(listed))
    with pytest.raises(SpecError, match=r"'a/../../x.csv' is not a valid key"):
        read({"kind": "csv", "url": tmp_path.as_uri()})


# --- bad input


@pytest.mark.parametrize(
    ("content", "columns", "rejected"),
    [
        (b"n,t\n1,a\n2\n3,c\n", {"n": [1, 3], "t": ["a", "c"]}, [(8, "Expected 2 columns, got 1")]),
        (b"n,t\n1,a\nx,b\n3,c\n4,d\n", {"n": [1, 3, 4], "t": [*"acd"]}, [(8, "'x' is no int64")]),
        (b"n,t\n1,a\n2,\xe9\n", {"n": [1], "t": ["a"]}, [(8, "invalid UTF8")]),
        (
            b'n,t\n1,"a\nb"\n2,3" pipe\n3,"c, d"\n4,"e',
            {"n": [2, 3], "t": ['3" pipe', "c, d"]},
            [(4, "a value in quotes does not end in its line"), (31, "quotes")],
        ),
        (
            b'n,t\n1,"a\n5,b"\n2,c\n3,"d\n\n6,e\n7,f"\n4,g\n',
            {"n": [2, 4], "t": ["c", "g"]},
            [(4, "a value in quotes does not end in its line"), (18, "quotes")],
        ),
        (
            b'n,t\n1,"a\n5,b\n2,"c"\n3,d\n',
            {"n": [5, 2, 3], "t": ["b", "c", "d"]},
            [(4, "a value in quotes does not end in its line")],
        ),
        (b"\xef\xbb\xbfn,t\r\n1,a\r\n\r\n,\r\n", {"n": [1, None], "t": ["a", None]}, []),
    ],
    ids=[
        "ragged",
        "another type",
        "another encoding",
        "a quoted line break",
        "quoted line breaks before what looks like a record",
        "a quote that does not end",
        "mark, empty line and nulls",
    ],
)
def test_a_line_of_csv_that_does_not_parse_is_rejected_with_its_offset(
    tmp_path: Path, content: bytes, columns: dict[str, Any], rejected: list[tuple[int, str]]
) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    url = f"{tmp_path.as_uri()}/x.csv"
    found, skipped = read({"kind": "csv", "url": url, "types": {"n": "int64"}})
    assert found == columns
    assert [(each.file, each.offset) for each in skipped] == [(url, at) for at, _ in rejected]
    for each, (_, words) in zip(skipped, rejected, strict=True):
        assert words in each.reason


def test_a_quoted_line_break_at_the_edge_of_a_block_makes_no_false_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = 'n,t\n1,"a\n5,b"\n2,c\n3,"d\n\n6,e\n7,f"\n4,"g"\n8,"h\n9,i\n'
    (tmp_path / "x.csv").write_text(content)
    source = {"kind": "csv", "url": f"{tmp_path.as_uri()}/x.csv", "types": {"n": "int64"}}
    expected = read(source)
    assert expected[0] == {"n": [2, 4, 9], "t": ["c", "g", "i"]}
    for module, name in ((lines, "BLOCK"), (text, "FRAGMENT_BYTES")):
        for size in range(18, len(content)):
            monkeypatch.setattr(module, name, size)
            assert read(source) == expected, (name, size)


def test_na_is_missing_in_a_column_of_numbers_and_a_text_in_one_of_texts(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('n,t\n1,NA\nNA,DE\nnan,null\n,\n3,""\n')
    source = {"kind": "csv", "url": tmp_path.as_uri()}
    assert read(source) == (
        {"n": [1, None, None, None, 3], "t": ["NA", "DE", "null", None, None]},
        [],
    )


def test_files_in_another_encoding_are_read_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("t\nGrüße\n".encode("latin-1"))
    source = {"kind": "csv", "url": tmp_path.as_uri(), "encoding": "latin-1"}
    assert read(source)[0] == {"t": ["Grüße"]}
    with pytest.raises(SpecError, match="utf-16 cannot be divided at their line ends"):
        open_source({**source, "encoding": "utf-16"})


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
    ("name", "content", "reason"),
    [
        ("cat/x.jpg", b"I am text", "neither JPEG nor PNG"),
        ("cat/x.jpg", JPEG[:-2], "truncated"),
        ("cat/x.png", PNG[:-12], "truncated"),
        ("cat/x.png", b"", "the file is empty"),
        ("bird/x.png", PNG, "its class 'bird' is not one of cat, dog"),
    ],
)
def test_a_file_that_is_not_a_complete_image_is_rejected(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(content)
    source = {"kind": "images", "url": tmp_path.as_uri(), "classes": ["cat", "dog"]}
    _, rejected = read(source)
    assert [(each.file, each.offset) for each in rejected] == [(f"{tmp_path.as_uri()}/{name}", 0)]
    assert reason in rejected[0].reason


def test_a_record_that_is_not_an_example_is_rejected_even_as_the_first(tmp_path: Path) -> None:
    records = [b"text", *encode({"x": column_of("x", np.arange(2))}).to_pylist(), b"\xff"]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(framed(pa.array(records, pa.large_binary())).content)
    columns, rejected = read({"kind": "tfrecord", "url": path.as_uri()})
    assert columns == {"x": [0, 1]}
    assert [each.reason for each in rejected] == ["it is not a tf.train.Example"] * 2


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [0, 12], ids=["length", "data"])
def test_a_damaged_tfrecord_file_is_named_with_the_records_before_it(
    tmp_path: Path, suffix: str, place: int
) -> None:
    content = bytearray(framed(encode({"x": column_of("x", np.arange(100))})).content)
    at = len(content) // 2
    content[at + place] ^= 1
    (tmp_path / f"x.tfrecord{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    said = rf"x\.tfrecord{suffix} is not a whole TFRecord file: after 50 records, at byte {at}, "
    with pytest.raises(SourceError, match=said):
        read({"kind": "tfrecord", "url": f"{tmp_path.as_uri()}/x.tfrecord{suffix}"})


@pytest.mark.parametrize(
    ("kind", "name", "content", "words"),
    [
        ("csv", "x.csv", b"", "the source is empty: there is no record in 1 file,"),
        ("csv", "x.csv", b"n,t\n", "the source is empty: there is no record in 1 file,"),
        ("jsonl", "x.jsonl", b"", "the source is empty: there is no record in 1 file,"),
        ("parquet", "x.parquet", b"PAR1 truncated", "is not a complete Parquet file"),
        ("parquet", "y.txt", b"", r"there is no file at .*/x\.\*"),
        ("tfrecord", "x.tfrecord", b"", "the source is empty"),
        (
            "tfrecord",
            "x.tfrecord",
            b"id,n\n" * 9,
            r"x\.tfrecord is not a whole TFRecord file: after 0",
        ),
        ("images", "x.txt", b"", r"no name that ends in \.jpg.* in 1 file at"),
    ],
)
def test_a_source_that_cannot_be_read_at_all_is_refused(
    tmp_path: Path, kind: str, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FinalError, match=words):
        read({"kind": kind, "url": f"{tmp_path.as_uri()}/x.*"})


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        (
            "csv",
            gzip.compress(b"n\n1\n"),
            "by gzip, but its name does not say so; let it end",
        ),
        ("csv", b"PK\3\4" + bytes(40), "is a zip archive; unpack it"),
        ("csv", b"PAR1" + bytes(40), "is a Parquet file; read it as kind 'parquet'"),
        ("csv", "n\n1\n".encode("utf-16"), "is in UTF-16; write it in UTF-8"),
        ("csv", b"n,t\r1,a\r2,b\r", "ends its lines with CR alone; end them with LF"),
        ("csv", b"# from a tool\nn,t\n1,a\n", "begins with a comment; remove its first line"),
        ("csv", b"n;t\n1;a\n", "has no ',' in its first line, but 1 ';'; set 'delimiter'"),
        ("csv", b"n\tt\tu\n1\ta\tb\n", r"has no ',' in its first line, but 2 '\\t'; set"),
        (
            "csv",
            b"n,gr\xf6\xdfe\n1,2\n",
            "is not UTF-8 at byte 4 of its first line; set 'encoding'",
        ),
        (
            "csv",
            b"n,t\n1\n2\n",
            "none of the first lines of .*/x is a record, .* byte 4: .*Expected 2 columns",
        ),
        ("jsonl", b'[{"n": 1},\n {"n": 2}]\n', "is a JSON array; write each record as a line"),
        ("jsonl", b'\xef\xbb\xbf\n[{"n": 1}]', "is a JSON array; write each record as a line"),
        ("jsonl", b'{\n  "n": 1\n}\n', "is JSON with records of several lines; write"),
        ("jsonl", b'{"n": [\n1]}\n', "is JSON with records of several lines; write"),
        (
            "jsonl",
            b"n\n1\n",
            "none of the first lines of .*/x .* byte 0: .*JSON parse error",
        ),
        (
            "tfrecord",
            gzip.compress(b"x" * 90),
            "by gzip, but its name does not say so; let it end",
        ),
    ],
    ids=range(16),
)
def test_a_file_of_another_kind_is_refused_and_its_kind_named(
    tmp_path: Path, kind: str, content: bytes, words: str
) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(SourceError, match=f"(?s){words}"):
        read({"kind": kind, "url": f"{tmp_path.as_uri()}/x"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.CSV.GZ", gzip.compress(b"n\n1\n")),
        ("x.csv.bz2", bz2.compress(b"n\n1\n")),
        ("x.csv", b"n" + b",m" + b"x" * 80_000 + b"\n1,2\n"),
        (
            "x.csv",
            b"n" + b"".join(b"," + b"%d" % each * 90_000 for each in range(9)) + b"\n1" + b",2" * 9,
        ),
        ("x.csv", b"#,n\n1,1\n"),
    ],
    ids=["upper case", "bzip2", "a header of 80 kB", "a header of 1.5 MB", "a name that is a mark"],
)
def test_unusual_files_are_read(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    source = {"kind": "csv", "url": f"{tmp_path.as_uri()}/{name}"}
    assert read({**source, "columns": ["n"]})[0] == {"n": [1]}


def test_a_column_name_may_contain_other_delimiters_if_the_delimiter_is_set(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.csv").write_text("n;t\n1\n")
    source = {"kind": "csv", "url": tmp_path.as_uri(), "delimiter": ","}
    assert read(source)[0] == {"n;t": [1]}
    (tmp_path / "x.csv").write_text("n;t\n1;a\n")
    assert read({**source, "delimiter": ";"})[0] == {"n": [1], "t": ["a"]}


@pytest.mark.parametrize("left", [0, 5, 10_000, -1])
def test_a_truncated_parquet_file_is_refused_by_its_name(tmp_path: Path, left: int) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(5000)})
    pq.write_table(table, tmp_path / "1.parquet")
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[:left])
    with pytest.raises(SourceError, match=r"2\.parquet is not a complete Parquet file: .*write it"):
        read({"kind": "parquet", "url": tmp_path.as_uri()})


def test_empty_files_among_others_add_no_records(tmp_path: Path) -> None:
    """Only one file, in the middle, has records."""
    for number in range(12):
        (tmp_path / f"{number:02d}.csv").write_text(("", "n,t\n")[number % 2])
    (tmp_path / "06.csv").write_text("n,t\n1,a\n")
    (tmp_path / "12.csv.gz").write_bytes(gzip.compress(b""))
    assert read({"kind": "csv", "url": tmp_path.as_uri()}) == ({"n": [1], "t": ["a"]}, [])


def test_two_columns_of_one_name_are_refused_if_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,a\n1,2,3\n")
    pq.write_table(pa.table([[1], [2], [3]], names=["a", "b", "a"]), tmp_path / "x.parquet")
    for kind in ("csv", "parquet"):
        source = {"kind": kind, "url": f"{tmp_path.as_uri()}/x.{kind}"}
        with pytest.raises(SourceError, match=rf"x\.{kind} has 2 columns called 'a'"):
            read(source)
        assert read({**source, "columns": ["b"]})[0] == {"b": [2]}
    with pytest.raises(SpecError, match="'names' has 'a' more than once"):
        read({"kind": "csv", "url": tmp_path.as_uri(), "names": ["a", "b", "a"]})


def test_a_later_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("a,b,a\n1,2,3\n")
    source = open_source({"kind": "csv", "url": tmp_path.as_uri()})
    _, second = source.fragments()
    with pytest.raises(SourceError, match=r"2\.csv has 2 columns called 'a'"):
        list(source.read(second.description, {"a": Feature("int64")}))


def test_a_file_whose_name_is_not_utf8_is_refused_unless_it_is_hidden(tmp_path: Path) -> None:
    for name in (b"y.csv", b"_\xe9.csv"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("x\n1\n")
    source = {"kind": "csv", "url": tmp_path.as_uri()}
    assert read(source)[0] == {"x": [1]}
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xe9.csv")).write_text("x\n1\n")
    with pytest.raises(SourceError, match=r"a file whose name is not UTF-8: b'x\\xe9\.csv'"):
        read(source)


@pytest.mark.parametrize("depth", [101, 10_000, 100_000])
def test_json_that_is_nested_too_deeply_is_rejected(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "x.jsonl"
    deep = '{"n": ' + "[" * depth + "]" * depth + "}"
    shallow = '{"n": 2, "t": "\\"' + "[" * depth + '"}'
    path.write_text(f'{{"n": 1, "t": ""}}\n{deep}\n{shallow}\n')
    columns, rejected = read({"kind": "jsonl", "url": path.as_uri()})
    assert columns == {"n": [1, 2], "t": ["", '"' + "[" * depth]}
    assert [each.offset for each in rejected] == [18]
    assert "it is nested deeper than 100" in rejected[0].reason


def npy(shape: tuple[int, ...]) -> bytes:
    """A truncated array file."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(400)


@pytest.mark.parametrize("shape", [(10**12,), (10**12, 10**9)])
def test_a_header_that_counts_more_records_than_the_file_has_is_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    content = npy(shape)
    for name, written in (("x", content), ("x.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        with pytest.raises(SourceError, match=rf"{name} ends before the last of the \d+ records"):
            read({"kind": "npy", "features": {"x": f"{tmp_path.as_uri()}/{name}"}})


def test_an_array_whose_records_hold_no_value_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy((10**12, 0)))
    with pytest.raises(SourceError, match="its records hold no value"):
        read({"kind": "npy", "features": {"x": f"{tmp_path.as_uri()}/x.npy"}})


def test_arrays_of_different_length_or_truncated_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.save(tmp_path / "b.npy", np.zeros(4))
    whole = {name: f"{tmp_path.as_uri()}/{name}.npy" for name in ("a", "b")}
    with pytest.raises(SourceError, match="'a' has 3, 'b' has 4"):
        read({"kind": "npy", "features": whole})
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(SourceError, match="ends before the last of the 3 records"):
        read({"kind": "npy", "features": {"a": whole["a"]}})
    (tmp_path / "a.npy").write_bytes(b"text")
    with pytest.raises(SourceError, match="is not a npy file that can be read"):
        read({"kind": "npy", "features": {"a": whole["a"]}})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "parqet"}, "no kind of source 'parqet', did you mean 'parquet'"),
        ({"kind": "csv"}, "needs 'url'"),
        ({"kind": "csv", "url": "", "delimeter": ";"}, "did you mean 'delimiter'"),
        ({"kind": "csv", "url": "", "types": {"n": "int6"}}, "did you mean 'int64'"),
        ({"kind": "csv", "url": "", "encoding": "klingon"}, "no encoding 'klingon'"),
        ({"kind": "csv", "url": "http://x/y"}, "names no store"),
        ({"kind": "csv", "url": "", "columns": "n"}, r"'columns' must be a list of names, got 'n'"),
        ({"kind": "csv", "url": "", "names": [["n"]]}, r"'names' must be a list of names, got \["),
        ({"kind": "parquet", "url": "", "columns": [["n"]]}, r"'columns' must be a list of names"),
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


def test_a_later_file_that_lacks_a_column_is_refused_by_its_name(tmp_path: Path) -> None:
    for number, name in ((1, "n"), (2, "m")):
        (tmp_path / f"{number}.csv").write_text(f"{name},t\n1,a\n")
    (tmp_path / "1.csv").write_text("n,t\n1,a\n2,b\n")
    source = open_source({"kind": "csv", "url": tmp_path.as_uri()})
    _, second = source.fragments()
    with pytest.raises(SourceError, match=r"2\.csv has no column 'n'"):
        list(source.read(second.description, {"n": Feature("int64"), "t": Feature("string")}))
