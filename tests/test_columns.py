"""Columns as they are read: exact, complete, and inferred or declared."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.layout import PAGE
from aerotrain.data.dataset import Feature, load_dataset, load_statistics
from aerotrain.data.sources.batch import SourceError
from aerotrain.standalone import prepare, run_step
from aerotrain.store import open_store
from support.nasty_inputs import JPEG, PNG
from support.prepared import PLAIN, Content, prepared, records, written

MODULE = """
def list_parts():
    return [{"key": "a"}, {"key": "b"}]


def read_part(part):
    yield part["key"], {"x": 1e300, "y": 1.5, "n": 3}
"""


def column(url: str, name: str) -> list[Any]:
    """The values of a column, sorted."""
    values = [each[name] for each in records(url, "all")]
    if load_dataset(url).schema[name].dtype == "float64":
        values = [np.frombuffer(each, "<f8")[0] for each in values]
    return sorted(values)


# --- exact


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"x\n1.5\n1e300\n"),
        ("x.jsonl", b'{"x": 1.5}\n{"x": 1e300}\n'),
        ("x.parquet", pa.table({"x": [1.5, 1e300]})),
        ("x.parquet", pa.table({"x": [[1.5, 2.5], [1.0, -1e300]]})),
    ],
)
def test_a_finite_number_that_float32_cannot_hold_is_rejected_or_kept(
    tmp_path: Path, name: str, content: Content
) -> None:
    with pytest.raises(FinalError, match=r"column 'x' is beyond the range of float32.*'types'"):
        prepared(tmp_path, {name: content})
    url = prepared(tmp_path, {name: content}, types={"x": "float64"})
    feature = load_dataset(url).schema["x"]
    assert feature.dtype == "float64"
    held = [np.frombuffer(each["x"], "<f8") for each in records(url, "all")]
    assert 1e300 in np.abs(held)


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b"x\n1.5\ninf\n1e400\n"), ("x.jsonl", b'{"x": 1.5}\n{"x": 2.5}\n{"x": 1e400}\n')],
)
def test_a_text_that_float64_cannot_hold_is_rejected(
    tmp_path: Path, name: str, content: bytes
) -> None:
    with pytest.raises(FinalError, match=r"(?s)least 1 record was.*at line \d: .*(beyond|too big)"):
        prepared(tmp_path, {name: content})


def test_rounding_is_said_and_float64_keeps_every_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [1_700_000_001.0, 1_700_000_002.5, 3.0]
    files = {"x.parquet": pa.table({"time": times, "small": [0.1, 0.2, 0.3]})}
    url = prepared(tmp_path, files)
    said = capsys.readouterr().out
    assert "column time   float32; rounded from float64, which 'types' can keep" in said
    warning = "float32 changes 2 values by a half or more"
    assert warning in said
    assert said.count(warning) == 1
    assert warning in open_store(url).get(PAGE).decode()
    url = prepared(tmp_path, files, types={"time": "float64"})
    assert column(url, "time") == sorted(times)
    assert "changes" not in capsys.readouterr().out


def test_a_key_is_compared_as_it_was_read(tmp_path: Path) -> None:
    key = {"key": ["id"]}
    near = pa.array([16777216.0, 16777217.0])
    moments = pa.array([1, 2], pa.timestamp("ns"))
    for ids in (near, moments, pa.array([16777216, 16777217]).cast(pa.decimal128(20, 0))):
        url = prepared(tmp_path, {"x.parquet": pa.table({"id": ids})}, key)
        assert len(records(url, "all")) == 2
    with pytest.raises(FinalError, match="1 record repeats a key"):
        prepared(tmp_path, {"x.parquet": pa.table({"id": [0.5, 0.5]})}, key)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1, 2]), pa.array([16777217.5])),
        (pa.array([1, 2]), pa.array([2.0**63])),
        (pa.array([1.5], pa.float32()), pa.array([2**53 + 1])),
        (pa.array([1, 2], pa.int8()), pa.array([300])),
    ],
)
def test_a_value_of_a_later_file_never_changes(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    files = {"1.parquet": pa.table({"n": first}), "2.parquet": pa.table({"n": second})}
    with pytest.raises(SourceError, match=r"2\.parquet: column 'n' cannot be cast .*the value"):
        prepared(tmp_path, files)


def test_integers_of_64_unsigned_bits_are_kept_as_declared(tmp_path: Path) -> None:
    files = {"x.parquet": pa.table({"id": pa.array([1, 2**64 - 1], pa.uint64())})}
    url = prepared(tmp_path, files, types={"id": "string"})
    assert column(url, "id") == [b"1", b"18446744073709551615"]
    csv = {"x.csv": b"id\n18446744073709551615\n"}
    assert column(prepared(tmp_path / "2", csv, types={"id": "string"}), "id") == [
        b"18446744073709551615"
    ]


def test_numbers_with_leading_zeros_are_texts(tmp_path: Path) -> None:
    files = {"x.csv": b"zip,n\n01067,0\n53113,10\n"}
    url = prepared(tmp_path, files)
    assert column(url, "zip") == [b"01067", b"53113"]
    assert column(url, "n") == [0, 10]


# --- complete


#: 600 kB, of which the first 512 KiB are sampled.
_LINES = b'{"n": 1}\n' * 66_667


@pytest.mark.parametrize(
    ("files", "words"),
    [
        # The sample is of several places, but not of this one.
        ({"1.jsonl": _LINES + b'{"n": 1, "late": 2}\n' + _LINES * 15}, "'late'"),
        ({"1.csv": b"n\n1\n" * 1, "2.csv": b"n,more\n1,2\n"}, "'more'"),
        (
            {"1.parquet": pa.table({"n": [1]}), "2.parquet": pa.table({"n": [1], "more": [2]})},
            "'more'",
        ),
        (
            {"a=1/1.parquet": pa.table({"n": [1]}), "a=1/b=2/2.parquet": pa.table({"n": [1]})},
            "'b'",
        ),
    ],
    ids=["late field", "csv", "parquet", "partition"],
)
def test_a_column_that_only_later_records_have_is_refused_unless_it_is_left_out(
    tmp_path: Path, files: Mapping[str, Content], words: str
) -> None:
    with pytest.raises(SourceError, match=f"has (a|no) column {words}.* leave it out with 'skip"):
        prepared(tmp_path, files)
    url = prepared(tmp_path, files, skip=[words.strip("'")])
    assert "n" in load_dataset(url).schema
    url = prepared(tmp_path, files, columns=["n"])
    assert list(load_dataset(url).schema) == ["n"]


def test_hive_partitions_are_decoded(tmp_path: Path) -> None:
    table = pa.table({"n": [1]})
    folders = ("town=New%20York", "town=a%2Fb", "town=__HIVE_DEFAULT_PARTITION__", "town=5 %25")
    url = prepared(tmp_path / "a=1 b", {f"{each}/x.parquet": table for each in folders})
    assert column(url, "town") == [b"", b"5 %", b"New York", b"a/b"]
    assert column(url, "a") == [b"1 b"] * 4


def test_a_partition_may_have_a_declared_type(tmp_path: Path) -> None:
    files = {"month=02/x.csv": b"n\n1\n", "month=11/x.csv": b"n\n1\n"}
    assert column(prepared(tmp_path, files, types={"month": "int8"}), "month") == [2, 11]
    files = {"month=x/x.csv": b"n\n1\n"}
    with pytest.raises(SourceError, match="is in a folder month=x, which is not of the type 'int8"):
        prepared(tmp_path / "2", files, types={"month": "int8"})


@pytest.mark.parametrize(
    ("name", "same", "other"),
    [
        ("x.csv", b"n,dt\n1,7\n", b"n,dt\n1,8\n"),
        ("x.parquet", pa.table({"n": [1], "dt": [7]}), pa.table({"n": [1], "dt": [8]})),
    ],
)
def test_a_column_with_the_name_of_a_partition_must_have_its_value(
    tmp_path: Path, name: str, same: Content, other: Content
) -> None:
    url = prepared(tmp_path / "same", {f"dt=07/{name}": same})
    assert column(url, "dt") == [b"07"]
    with pytest.raises(SourceError, match=r"a column 'dt' with other values than .* '07'"):
        prepared(tmp_path / "other", {f"dt=07/{name}": other})


def test_linked_folders_are_read_and_no_file_twice(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "elsewhere"
    for folder, number in ((inside / "a", 1), (outside, 2), (outside / "deep", 3)):
        folder.mkdir(parents=True)
        (folder / "x.csv").write_text(f"n\n{number}\n")
    (inside / "latest").symlink_to(inside / "a")
    (inside / "linked").symlink_to(outside)
    (outside / "loop").symlink_to(inside)
    source = {"kind": "csv", "url": inside.as_uri()}
    url = prepare((tmp_path / "store").as_uri(), tmp_path, source, **PLAIN)
    assert column(url, "n") == [1, 2, 3]
    (inside / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"gone is a link to .*nowhere, which does not exist"):
        prepare((tmp_path / "store").as_uri(), tmp_path, source, **PLAIN)
    prepare(
        (tmp_path / "2").as_uri(),
        tmp_path,
        source | {"url": f"{inside.as_uri()}/**/*.csv"},
        **PLAIN,
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("cat/2.webp", r"1 of 3 files are images in .* not read: .*cat/2\.webp; convert"),
        ("bird/2.GIF", r"bird/2\.GIF; .* or name the others in 'url'"),
        ("bird/0001", r"in folders without an image .*bird/0001; convert"),
    ],
)
def test_no_image_of_another_format_and_no_class_is_left_out(
    tmp_path: Path, other: str, words: str
) -> None:
    files = {"cat/1.png": PNG, "dog/1.jpg": JPEG, other: b"RIFF"}
    with pytest.raises(SourceError, match=words):
        prepared(tmp_path, files)


# --- inferred


def test_what_was_inferred_is_a_table_in_the_log_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"x.csv": b"id;price;town;y\n1;0.5;Bonn;0\n2;1.5;Rom;1\n", "_SUCCESS": b""}
    options: dict[str, Any] = {"delimiter": ";", "rename": {"y": "label"}, "skip": ["town"]}
    url = prepared(tmp_path, files, **options)
    log, page = capsys.readouterr().out, open_store(url).get(PAGE).decode()
    for title, text in [
        ("kind", "csv"),
        ("files", f"{tmp_path.as_uri()}/in/x.csv; 41 bytes"),
        ("hidden files", "_SUCCESS; not read"),
        ("format", "';' between values, '.' in numbers"),
        ("columns left out", "town"),
        ("column price", "float32; rounded from float64, which 'types' can keep"),
        ("column label", "int64; called y in the files"),
        ("label", "label, int64"),
    ]:
        assert f"  {title:16}  {text}\n" in log
        assert f'<bdi dir="auto">{title}</bdi>' in page
    assert "can keep</" in page


def test_a_missing_label_is_said_and_one_that_is_named_stops_the_first_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path, {"x.csv": b"n,Label\n1,2\n"})
    plan = partial(run_step, "data.prepare.plan", tmp_path.as_uri(), tmp_path, source=source)
    plan()
    said = "label         none; there is no column 'label', did you mean 'Label'?"
    assert said in capsys.readouterr().out
    with pytest.raises(SpecError, match="label names a column 'Lable', which does not exist, did"):
        plan(label="Lable")


# --- declared


@pytest.mark.parametrize(
    ("name", "content", "options", "features", "first"),
    [
        (
            "x.csv",
            b"tag;preis;art;weg\n05.01.1970;1,5;b;x\n06.01.1970;-;a;y\n",
            {
                "delimiter": ";",
                "decimal": ",",
                "nulls": ["-"],
                "types": {"tag": "date %d.%m.%Y", "preis": "float64", "art": ["a", "b"]},
                "rename": {"tag": "day", "preis": "price", "art": "label"},
                "skip": ["weg"],
            },
            {"day": "int32", "price": "float64", "label": "int64"},
            {"day": 4, "price": 1.5, "label": 1},
        ),
        (
            "x.csv",
            "miete|flaeche\n1.220,50 €|1 000.5\n-|2 000\n".encode(),
            {
                "delimiter": "|",
                "nulls": ["-"],
                "types": {"miete": "float32 1.234,56", "flaeche": "float64 1 234.56"},
            },
            {"miete": "float32", "flaeche": "float64"},
            {"miete": 1220.5, "flaeche": 2000.0},
        ),
        (
            "x.jsonl",
            b'{"t": "1970-01-01T00:00:01Z", "d": "1970-01-02", "n": 7, "u": "n/a"}\n'
            b'{"t": "1970-01-01T00:00:02", "d": "1970-01-02", "n": 8, "u": "b"}\n',
            {"types": {"t": "timestamp", "d": "date", "n": "int16"}, "nulls": ["n/a"]},
            {"t": "int64", "d": "int32", "n": "int16", "u": "string"},
            {"t": 1_000_000, "d": 1, "n": 7, "u": b""},
        ),
        (
            "x.parquet",
            pa.table(
                {
                    "d": ["2.1.1970", "3.1.1970"],
                    "c": pa.array(["no", "yes"]).dictionary_encode(),
                    "m": pa.array(["1.25", "2.50"]).cast(pa.decimal128(10, 2)),
                    "i": [1, 2],
                    "n": pa.array([None, None]),
                }
            ),
            {
                "types": {
                    "d": "date %d.%m.%Y",
                    "c": ["yes", "no"],
                    "m": "string",
                    "i": "uint8",
                    "n": "float32",
                }
            },
            {"d": "int32", "c": "int64", "m": "string", "i": "uint8", "n": "float32"},
            {"d": 1, "c": 1, "m": b"1.25", "i": b"\1"},
        ),
    ],
)
def test_columns_are_read_as_they_are_declared(
    tmp_path: Path,
    name: str,
    content: Content,
    options: dict[str, Any],
    features: Mapping[str, str],
    first: Mapping[str, Any],
) -> None:
    url = prepared(tmp_path, {name: content}, **options)
    assert load_dataset(url).schema == {each: Feature(features[each]) for each in features}
    for each, value in first.items():
        assert value in [*column(url, each)], each


def test_arrays_and_examples_have_declared_types_too(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.1, 1e300], [2.0, 3.0]]))
    url = tmp_path.as_uri()
    arrays = {"kind": "npy", "features": {"x": f"{url}/x.npy"}, "types": {"x": "float64"}}
    np.save(tmp_path / "c.npy", np.arange(2))
    small = {"kind": "npy", "features": {"c": f"{url}/c.npy"}, "types": {"c": "int8"}}
    found = []
    for number, source in enumerate([arrays, small]):
        found.append(prepare(f"{url}/store-{number}", tmp_path, source, **PLAIN))
    assert load_dataset(found[0]).schema == {"x": Feature("float64", (2,))}
    assert load_dataset(found[1]).schema == {"c": Feature("int8")}
    shard = load_dataset(found[1]).splits["all"].shards[0].file
    again = {"kind": "tfrecord", "url": f"{found[1]}/{shard}", "types": {"c": "int32"}}
    kept = prepare(f"{url}/store-2", tmp_path, again, **PLAIN)
    assert load_dataset(kept).schema == {"c": Feature("int32")}
    held = np.concatenate([np.frombuffer(each["x"], "<f8") for each in records(found[0], "all")])
    assert sorted(held) == [0.1, 2.0, 3.0, 1e300]


def test_a_word_that_is_no_class_is_rejected(tmp_path: Path) -> None:
    files = {"x.csv": b"n,label\n1,cat\n2,bird\n3,dog\n"}
    types = {"types": {"label": ["cat", "dog"]}}
    with pytest.raises(FinalError, match="at line 3: column 'label': 'bird' is not one of"):
        prepared(tmp_path, files, **types)
    url = prepared(tmp_path, files, {"max_rejected": 1}, **types)
    assert load_dataset(url).splits["all"].classes == {0: 1, 1: 1}
    assert load_statistics(url)["label"]["names"] == ["cat", "dog"]


def test_a_text_that_is_no_number_of_the_declared_form_is_rejected(tmp_path: Path) -> None:
    files = {"x.csv": b"n;preis\n1;1.220,5\n2;1,220.5\n3;7 %\n"}
    form = {"delimiter": ";", "types": {"preis": "float32 1.234,56"}}
    with pytest.raises(FinalError, match=r"at line 3: .*'1,220.5' is no number as 1.234,56"):
        prepared(tmp_path, files, **form)
    url = prepared(tmp_path, files, {"max_rejected": 1}, **form)
    assert sorted(column(url, "preis")) == [7.0, 1220.5]
    with pytest.raises(SpecError, match=r"cannot be of type 'float32 1.23'.*one of '1234.56', "):
        prepared(tmp_path, files, delimiter=";", types={"preis": "float32 1.23"})


def test_classes_keep_their_names_where_their_column_is_renamed_or_left_out(tmp_path: Path) -> None:
    files = {"x.csv": b"n,kind,size\n1,cat,s\n2,dog,m\n"}
    types = {"kind": ["cat", "dog"], "size": ["s", "m"]}
    renamed = {"types": types, "rename": {"kind": "label"}, "skip": ["size"]}
    summary = load_statistics(prepared(tmp_path, files, **renamed))
    assert {name: each.get("names") for name, each in summary.items()} == {
        "n": None,
        "label": ["cat", "dog"],
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"types": {"n": "int64 %d"}}, "cannot be of type 'int64 %d'"),
        ({"types": {"m": "int64"}}, "no column 'm'"),
        ({"rename": {"n": "t"}}, "two columns are called 't' by 'rename'"),
        ({"nulls": "-"}, "nulls of the source must be a list"),
        ({"decimal": ","}, "another character than 'delimiter'"),
    ],
)
def test_a_wrong_declaration_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        prepared(tmp_path, {"x.csv": b"n,t\n1,a\n"}, **options)


def test_the_types_of_a_module_hold_for_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_numbers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FinalError, match="column 'x' is beyond the range of float32"):
        prepare((tmp_path / "1").as_uri(), tmp_path, "large_numbers", **PLAIN)
    source = {"kind": "python", "module": "large_numbers", "types": {"x": "float64", "n": "int8"}}
    url = prepare((tmp_path / "2").as_uri(), tmp_path, source, **PLAIN)
    found = {name: each.dtype for name, each in load_dataset(url).schema.items()}
    assert found == {"n": "int8", "x": "float64", "y": "float32"}
    assert column(url, "x") == [1e300, 1e300]
