"""`aerotrain new`: what it decides by the first records, what it refuses, and what it writes."""

import csv
import gzip
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.errors import ExitCode, SpecError
from aerotrain.data.dataset import load_dataset
from aerotrain.scaffold.command import run
from aerotrain.scaffold.csv_format import csv_options
from aerotrain.scaffold.templates import Code, literal
from aerotrain.standalone import prepare
from aerotrain.standalone.cli import main, parse
from aerotrain.store import open_store

ROOT = Path(__file__).parent.parent

#: Table files of which each is read by `new`, with the words that it takes besides them.
Rows = Sequence[Mapping[str, Any]]


def written(path: Path, rows: Rows, delimiter: str = ",") -> Path:
    """A CSV file of the rows."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def table(path: Path, rows: Rows) -> Path:
    """A file of the rows, of the kind that its name says."""
    match path.suffixes:
        case [".parquet"]:
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=10_000)
        case [".jsonl"]:
            path.write_text("\n".join(map(json.dumps, rows)))
        case [".csv", ".gz"]:
            content = written(path.parent / "x", rows).read_bytes()
            (path.parent / "x").unlink()
            path.write_bytes(gzip.compress(content, 1))
        case _:
            written(path, rows)
    return path


@pytest.fixture
def new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, str]]:
    """Run `aerotrain new NAME` into a folder; returns what it says of each column."""

    def new(name: str, data: Path | str, *words: str, ask: Any = None) -> dict[str, str]:
        folder = str(tmp_path / "dags")
        run(parse(["new", name, "--from", str(data), "--to", folder, *words]), ask)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
        pairs = (line.strip().split("  ", 1) for line in lines)
        return {column: what.strip() for column, what in pairs}

    return new


def customers(count: int = 200) -> Rows:
    """A table with everything that a column can be, whose label follows from two of them."""
    random = Random(7)
    rows = []
    for number in range(count):
        plan, spend = random.choice(["basic", "pro", ""]), random.gauss(60, 20)
        day = date(2024, 1, 1) + timedelta(random.randrange(300))
        rows.append(
            {
                "customer": f"c-{number:04d}",
                "Monthly Spend ($)": f"{spend:.2f}",
                "visits": random.choice(["", 1, 2, 3]),
                "class": plan,
                "since": "" if number % 19 == 7 else day.isoformat(),
                'a "größe"': random.choice([160, 170.5]),
                "active": random.choice(["true", "false"]),
                "newsletter": random.choice(["true", "false", ""]),
                "source": "web",
                "note": f"called us {number} times about the {plan} plan",
                "session": f"{random.randrange(10**12):x}",
                "churned": "yes" if spend + 30 * (plan == "pro") > 65 else "no",
            }
        )
    return rows


def test_each_column_is_used_for_what_its_values_are(new: Any, tmp_path: Path) -> None:
    said = new("churn", written(tmp_path / "x.csv", customers()), "--label", "churned")
    kinds = {name: what.partition(":")[0] for name, what in said.items()}
    assert kinds == {
        "customer": "key of the records",
        "Monthly Spend ($)": "number",
        "visits": "number",
        "class": "category",
        "since": "number",
        'a "größe"': "number",
        "active": "number",
        "newsletter": "category",
        "source": "left out",
        "note": "text",
        "session": "left out, an identifier",
        "churned": "the label, 2 classes",
        "(all)": "200 records",
    }
    dag = (tmp_path / "dags" / "churn.py").read_text()
    assert '"skip": ["source", "session"]' in dag
    assert '"visits": "float32"' in dag
    assert '"since": "date"' in dag
    assert '"churned": ["no", "yes"]' in dag
    assert 'fill={"since": "2024-' in dag


def test_a_table_of_another_country_is_read_without_options(new: Any, tmp_path: Path) -> None:
    rows = [
        {
            "Fläche": f"{each},5",
            "Einzug": f"{each % 28 + 1:02d}.11.2021",
            "Übergabe": f"{each % 28 + 1:02d}.11.2021 {each % 24:02d}:30",
            "Miete": f"{9 * each},25",
        }
        for each in range(40)
    ]
    path = tmp_path / "miete.csv"
    path.write_bytes(written(path, rows, ";").read_text().encode("cp1252"))
    said = new("miete", path)
    assert said["Miete"].startswith("the label, a number of mean 175.8")
    assert said["Einzug"].startswith("number: dates as %d.%m.%Y, from 2021-11-01")
    assert said["Übergabe"].startswith(
        "number: timestamps as %d.%m.%Y %H:%M, from 2021-11-01 00:30"
    )
    dag = (tmp_path / "dags" / "miete.py").read_text()
    assert '"encoding": "cp1252"' in dag
    assert '"delimiter": ";"' in dag
    assert '"decimal": ","' in dag


def test_a_few_words_among_dates_mean_a_missing_date_unless_they_are_classes(
    new: Any, tmp_path: Path
) -> None:
    days = [f"2026-01-{number % 20 + 1:02d}" for number in range(200)]
    words = {0: "unknown", 20: "2026-02-30", 40: "unknown"}
    rows = [
        {
            "few": words.get(number, day),
            "class": "k0" if number == 7 else day,
            "many": "01.02.2026" if number < 50 else day,
            "target": f"k{number % 2}",
        }
        for number, day in enumerate(days)
    ]
    said = new("days", written(tmp_path / "x.csv", rows))
    assert said["few"] == (
        "number: dates, from 2026-01-01 to 2026-01-20; 3 missing count as 2026-01-11"
    )
    words = "words for a missing value, in all columns: '2026-02-30', 'unknown'"
    assert said["(missing)"] == words
    assert said["many"].startswith("category: 21 texts")
    assert "150 of 200 values are dates, 50 are not, such as '01.02.2026'" in said["many"]
    dag = (tmp_path / "dags" / "days.py").read_text()
    assert '"few": "date"' in dag
    assert '"nulls": ["2026-02-30", "unknown"]' in dag
    assert '"few": "2026-01-11"' in dag
    assert "max_rejected=1," in dag  # k0, a label, is no date of the column "class"


def test_numbers_as_people_write_them_are_numbers_of_the_data_set(new: Any, tmp_path: Path) -> None:
    rows = [
        {
            "price": f"{number}.220,73 €",
            "dollars": f"${number},000.50",
            "share": f"{number} %",
            "swiss": f"{number}'500.25",
            "spaced": f"{number}\N{NARROW NO-BREAK SPACE}000",
            "one word": "sold" if number == 7 else f"{number}.5",
            "postcode": f"{number % 9:05d}",
            "phone": f"0{number}-5544{number}",
            "rent": f"1.{number:03d},5",
        }
        for number in range(1, 61)
    ]
    said = new("prices", written(tmp_path / "x.csv", rows, ";"), "--label", "rent")
    assert {name: what.partition(":")[0] for name, what in said.items()} == {
        **dict.fromkeys(("price", "dollars", "share", "swiss", "spaced", "one word"), "number"),
        "postcode": "category",
        "phone": "key of the records",
        "rent": "the label, a number of mean 1,031",
        "(all)": "60 records",
        "(missing)": "words for a missing value, in all columns",
    }
    assert said["price"] == ("number: 60 values from 1,220.73 to 60,220.7, written as 1.234,56")
    assert said["one word"].endswith("1 missing")
    dag = (tmp_path / "dags" / "prices.py").read_text()
    for name, form in (("price", "1.234,56"), ("swiss", "1'234.56"), ("rent", "1.234,56")):
        assert f'"{name}": "float32 {form}"' in dag
    assert '"nulls": ["sold"]' in dag


def test_words_for_missing_numbers_and_an_unnamed_index_are_found() -> None:
    assert csv_options(b",price,name\n0,1.5,a\n1,-,b\n2,?,-\n3,4,c\n") == {
        "nulls": ["-", "?"],
        "skip": [""],
    }


def test_parquet_and_json_lines_keep_their_types(new: Any, tmp_path: Path) -> None:
    count = 60
    columns = {
        "n": pa.array([None, 1, 2] * 20),
        "when": pa.array([datetime(2026, 1, 1 + each % 20) for each in range(count)]),
        "tags": pa.array([["a"] * (each % 3) for each in range(count)]),
        "target": pa.array([float(each % 2) for each in range(count)]),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    said = new("flat", tmp_path / "x.parquet")
    assert said["n"] == "number: 2 values from 1 to 2, 20 missing"
    assert said["when"].startswith("number: timestamp")
    assert said["tags"].startswith("left out: the column 'tags' ")
    assert said["target"] == "the label, 2 classes: 0, 1"

    lines = [
        {
            "vip": [True, False, None][each % 3],
            "day": f"2026-01-{1 + each % 20:02d}",
            "at": f"2026-01-{1 + each % 20:02d}T08:00:00Z",
            "home": {"city": ["Bonn", "Ulm"][each % 2], "geo": {"lat": each / 7}},
            "items": [{"price": each}],
            "target": each % 4,
        }
        for each in range(count)
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    said = new("lines", tmp_path / "x.jsonl")
    assert said["vip"] == "number: true or false; 20 missing count as false"
    assert said["day"].startswith("number: dates, from 2026-01-01")
    assert said["at"].startswith("number: timestamps, from 2026-01-01 08:00:00")
    assert said["home.city"].startswith("category: 2 texts")
    assert said["home.geo.lat"].startswith("number: 60 values")
    assert "flatten it by a source of the kind python, as 'Objects' in docs/" in said["items"]
    assert said["target"] == "the label, 4 classes: 0, 1, 2, 3"


@pytest.mark.parametrize(
    ("count", "rejected"),
    [
        (10, "left out by max_rejected=10 in the DAG: a run fails if there are more"),
        (11, "more than 1%: a run fails and names the first; correct them, or give"),
    ],
)
def test_a_label_that_up_to_a_hundredth_of_the_records_lack_leaves_them_out(
    new: Any, tmp_path: Path, count: int, rejected: str
) -> None:
    rows = [{"x": n % 9, "target": "" if n < count else n % 3 + 4} for n in range(1000)]
    said = new("few", written(tmp_path / "x.csv", rows))
    assert said["target"].endswith(f"3 classes: 4, 5, 6; {count} records without it")
    first = f"{count} records, the first at line 2 of x.csv: the label 'target' is missing; "
    assert said["(rejected)"].startswith(first + rejected)
    dag = (tmp_path / "dags" / "few.py").read_text()
    assert 'ranges={"target": [4, 6]}' in dag
    assert ("max_rejected=10" in dag) == (count == 10)


def test_an_identifier_is_no_label_although_its_name_begins_like_the_pipelines(
    new: Any, tmp_path: Path
) -> None:
    rows = [{"kunden_id": each * 7, "x": each % 9, "z": each % 4} for each in range(100)]
    with pytest.raises(SpecError, match=r"in doubt; name it by --label, probably one of 'z', 'x'"):
        new("kunden", written(tmp_path / "x.csv", rows))


def test_the_likeliest_labels_of_a_wide_table_are_named_first(new: Any, tmp_path: Path) -> None:
    random = Random(1)
    rows = [
        {**{f"x{each}": random.random() for each in range(40)}, "bought": each % 2, "z": each / 7}
        for each in range(100)
    ]
    says = r"one of 'bought'; or, of more values, 'z', 'x39', .* 'x32'$"
    with pytest.raises(SpecError, match=says):
        new("shop", written(tmp_path / "x.csv", rows))


@pytest.mark.process
@pytest.mark.parametrize(
    ("label", "amount", "paid", "counted"),
    [
        (["yes", "no"], [1.5, "unsure"], ["true", "false", "true", "unsure"], 0),
        (["yes", "no", "unsure"], [1.5, "unsure"], ["true", "false"], 10),
        (["yes", "no", ""], [1.5], ["true", "false"], 3),
        (["yes", "no", "unsure"], [1.5], [1.5, 2.5, 3.5, "unsure"], 4),
    ],
    ids=[
        "a word among flags",
        "a word that is also a label",
        "a label that is missing",
        "two reasons to reject a record",
    ],
)
def test_as_many_records_are_rejected_as_new_says(
    new: Any, tmp_path: Path, label: Any, amount: Any, paid: Any, counted: int
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    def some(values: Any, number: int, of: int) -> Any:
        """The last of the values in some records, and the others in turn."""
        rare = number % of == 3
        return values[-1] if rare else values[number % max(1, len(values) - 1)]

    rows = [
        {
            "amount": some([n + 0.5, *amount[1:]], n, 100),
            "paid": some(paid, n, 250),
            "again": some(paid, n, 250),
            "target": some(label, n, 350),
        }
        for n in range(1000)
    ]
    said = new("kept", written(tmp_path / "x.csv", rows))
    assert said.get("(rejected)", "0 records").partition(" ")[0] == str(counted)
    dag = DagBag(str(tmp_path / "dags" / "kept.py")).dags["kept"]
    planned = dag.get_task("prepare.plan").job["arguments"]
    rules = {key: each for key, each in planned.items() if key not in ("shards", "allow_drift")}
    dataset = load_dataset(prepare((tmp_path / "store").as_uri(), tmp_path, **rules))
    assert (dataset.records, dataset.rejected) == (1000 - counted, counted)


def test_images_that_cannot_be_read_are_counted_and_left_out(new: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    image = tf.io.encode_png(np.zeros((4, 4, 3), np.uint8)).numpy()
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(60):
            (tmp_path / "pets" / name / f"{number}.png").write_bytes(image)
    (tmp_path / "pets" / "dog" / "damaged.png").write_bytes(image[:-9])
    (tmp_path / "pets" / "notes.txt").write_text("from the zoo")
    said = new("pets", tmp_path / "pets")
    assert said["dog"] == "class, 61 images"
    assert said["(others)"].endswith("notes.txt; not read")
    assert said["(rejected)"].startswith("1 record, the first at ")
    assert "damaged.png: it is a damaged PNG" in said["(rejected)"]
    assert "max_rejected=1" in (tmp_path / "dags" / "pets.py").read_text()


def test_the_first_record_that_cannot_be_read_is_named(new: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "x.csv", [{"x": each % 9, "target": each % 2} for each in range(100)])
    file.write_text(file.read_text() + "1,2,3\n")
    said = new("rows", file)
    assert said["(rejected)"].startswith("1 record, the first at line 102 of x.csv: ")


@pytest.mark.parametrize("name", ["class", "y", "CLASS", "churn_score"])
def test_a_column_that_may_be_another_than_the_label_is_asked_for(
    new: Any, tmp_path: Path, name: str
) -> None:
    rows = [{name: each % 3, "x": each % 9, "z": each % 4} for each in range(100)]
    data = written(tmp_path / "x.csv", rows)
    with pytest.raises(SpecError, match=rf"in doubt; name it by --label, probably one of '{name}'"):
        new("churn", data)
    assert new("churn", data, "--label", name)[name].startswith("the label, 3 classes")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("csv", []),
        ("parquet", []),
        ("parquet", ["--task", "regression"]),
        ("parquet", ["--task", "classification"]),
    ],
)
def test_a_label_that_is_nan_is_a_missing_one(
    new: Any, tmp_path: Path, kind: str, words: list[str]
) -> None:
    rows = [{"x": n % 7 / 2, "target": math.nan if n % 150 == 3 else n % 3} for n in range(300)]
    said = new("nan", table(tmp_path / f"x.{kind}", rows), *words)
    assert said["target"].startswith("the label, ")
    assert said["target"].endswith("; 2 records without it")
    assert "nan" not in said["target"]
    assert "max_rejected=2" in (tmp_path / "dags" / "nan.py").read_text()


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.jsonl", "many", "x.csv.gz"])
def test_data_that_are_sorted_are_read_from_all_over(new: Any, tmp_path: Path, name: str) -> None:
    count = 120_000
    is_late = [each >= count // 2 for each in range(count)]
    rows = [
        {
            "target": each * 4 // count,
            "late": each % 90 if late else None,
            "constant": each % 90 if late else 1,
            "fraction": each % 90 / 4 if late else float(each % 90),
            "x": each * 7 % 1000 / 8,
        }
        for each, late in enumerate(is_late)
    ]
    (tmp_path / "data").mkdir()
    if name == "many":
        for number in range(40):
            some = rows[3000 * number : 3000 * (number + 1)]
            written(tmp_path / "data" / f"{number:02d}.csv", some)
    else:
        table(tmp_path / "data" / name, rows)
    said = new("sorted", tmp_path / "data")
    assert said["target"] == "the label, 4 classes: 0, 1, 2, 3"
    for column in ("late", "constant", "fraction"):
        assert said[column].startswith("number: "), said[column]
    assert "(rejected)" not in said


NUMBERS = [{"a": each, "b": each % 7, "target": each % 2} for each in range(60)]


@pytest.mark.parametrize(
    ("words", "rows", "message"),
    [
        (["churn"], [{"a": n, "b": n % 7} for n in range(60)], "in doubt; name it by --label.*'b'"),
        (
            ["churn", "--label", "c"],
            NUMBERS,
            "no column 'c' to predict.*the columns are a, b, target",
        ),
        (["churn", "--label", "target"], NUMBERS[:3], "has 3 records, .* at least 30"),
        (
            ["churn"],
            [{**row, "target": "no"} for row in NUMBERS],
            "'target' .* only has the value 'no'",
        ),
        (["churn", "--label", "a", "--task", "classification"], NUMBERS * 3, None),
        (["keras"], NUMBERS, "'keras' is the name of a Python module"),
        (["train"], NUMBERS, "'train' is the name of .* part of a DAG file"),
        (["my-dag"], NUMBERS, "'my-dag' cannot name a module"),
        (["class"], NUMBERS, "'class' is a keyword of Python"),
    ],
)
def test_what_cannot_become_a_pipeline_is_refused_in_one_sentence(
    new: Any, tmp_path: Path, words: list[str], rows: Rows, message: str | None
) -> None:
    data = written(tmp_path / "x.csv", rows)
    if message is None:
        assert "60 classes" in new(words[0], data, *words[1:])["a"]
        return
    with pytest.raises(Exception, match=message):
        new(words[0], data, *words[1:])
    assert not (tmp_path / "dags").exists()


@pytest.mark.parametrize("name", ["mit leer.csv", "größe.csv", "mit[x].csv", "100%.csv"])
def test_data_with_an_odd_name_are_found_by_their_path(new: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    seen = new("odd", written(tmp_path / "folder" / name, NUMBERS))
    assert seen == new("many", str(tmp_path / "folder" / "*.csv"))


def test_the_second_of_two_classes_is_the_one_that_means_yes(new: Any, tmp_path: Path) -> None:
    rows = [{"x": each % 9, "target": "Ja" if each % 3 else "nein"} for each in range(60)]
    assert new("yes", written(tmp_path / "x.csv", rows))["target"].endswith("2 classes: nein, Ja")


def test_no_file_is_overwritten(new: Any, tmp_path: Path) -> None:
    data = written(tmp_path / "x.csv", NUMBERS)
    new("once", data)
    (tmp_path / "dags" / "once.py").write_text("mine")
    with pytest.raises(SpecError, match=r"once\.py exists, and is not overwritten"):
        new("once", data)
    assert (tmp_path / "dags" / "once.py").read_text() == "mine"


def test_a_label_in_doubt_is_asked_at_a_terminal(new: Any, tmp_path: Path) -> None:
    asked = []

    def ask(columns: Sequence[str]) -> str:
        asked.append(list(columns))
        return "b"

    data = written(tmp_path / "x.csv", [{"a": n / 9, "b": n % 7} for n in range(60)])
    assert new("churn", data, ask=ask)["b"].startswith("the label, 7 classes")
    assert asked == [["b", "a"]]


def test_the_command_prints_an_error_as_other_commands_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new", "churn", "--from", str(tmp_path / "no.csv")])
    assert ended.value.code == ExitCode.FINAL
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("error: the source is empty: there is no file at file://")


def test_a_literal_takes_a_line_for_each_item_only_if_it_does_not_fit() -> None:
    assert literal({"a": (1,), "b": ['"x"', "it's"]}) == """{"a": (1,), "b": ['"x"', "it's"]}"""
    long = {"url": Code("DATA"), "names": ["a" * 40, "b" * 40]}
    assert literal(long, indent=4).splitlines()[1:3] == [
        '        "url": DATA,',
        '        "names": [',
    ]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pipelines of each kind, below whose `dags` their data are."""
    folder = tmp_path_factory.mktemp("clone")
    data = folder / "dags" / "data"
    data.mkdir(parents=True)
    random = Random(3)
    written(data / "customers.csv", customers(600))
    rents = [
        {"area": area, "rooms": area // 30, "rent": 300 + 11 * area + random.randrange(20)}
        for area in (random.randrange(20, 140) for _ in range(400))
    ]
    pq.write_table(pa.Table.from_pylist(rents), data / "rents.parquet")
    words = ["fine kind great", "late rude torn", "cheap small light"]
    mails = [
        {"text": f"{words[each % 3]} parcel no. {random.randrange(9999)}", "topic": f"t{each % 3}"}
        for each in range(300)
    ]
    (data / "mails.jsonl").write_text("\n".join(map(json.dumps, mails)))
    draw(data / "shapes")
    for words in (
        ["churn", "--from", str(data / "customers.csv"), "--label", "churned"],
        ["rents", "--from", str(data / "rents.parquet"), "--label", "rent"],
        ["topics", "--from", str(data / "mails.jsonl"), "--label", "topic"],
        ["shapes", "--from", str(data / "shapes")],
    ):
        run(parse(["new", *words, "--to", str(folder / "dags")]), None)
    return folder


def draw(folder: Path) -> None:
    """Images of two classes: black above, or below."""
    import tensorflow as tf

    random = np.random.default_rng(5)
    for name, rows in (("above", slice(0, 20)), ("below", slice(20, 40))):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            image = random.integers(150, 255, (40, 40, 3), np.uint8)
            image[rows] //= 4
            tf.io.write_file(str(folder / name / f"{number}.png"), tf.io.encode_png(image))


@pytest.mark.process
def test_what_is_written_passes_ruff_and_its_own_tests(pipelines: Path) -> None:
    """That of a table in CSV is run by the tutorial."""
    ours = '["aerotrain", "aerotrain_airflow"]'
    settings = ["--config", str(ROOT / "pyproject.toml")]
    for words in (
        ["check", *settings, "--config", f"lint.isort.known-first-party={ours}"],
        ["format", "--check", *settings],
    ):
        command = [sys.executable, "-m", "ruff", *words, str(pipelines)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout
    tests = [f"tests/test_{name}.py" for name in ("rents", "topics", "shapes")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    tested = subprocess.run(command, cwd=pipelines, capture_output=True, text=True, check=False)
    assert "6 passed" in tested.stdout, tested.stdout


@pytest.mark.process
def test_a_word_in_capital_letters_is_the_same_word(
    pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    modules = {"topics": pipelines, "churn": pipelines, "reviews": ROOT}
    for name, folder in modules.items():
        monkeypatch.syspath_prepend(str(folder / "dags" / "models"))
        module = importlib.import_module(name)
        column = {"topics": "text", "churn": "note", "reviews": "line"}[name]
        texts = tf.constant(["ÄRGER über İzmir, ΣΕΙΣΜΌΣ", "ärger ÜBER i̇zmir, σεισμός"])
        numbers = dict.fromkeys([*getattr(module, "NUMBERS", ()), "churned"], tf.zeros(2))
        words = dict.fromkeys(getattr(module, "CATEGORIES", ()), tf.constant(["", ""]))
        features = {**numbers, **words, column: texts, "topic": 0, "label": 0}
        found = {"mean": 0.0, "std": 1.0, "vocabulary": {"a": 1}}
        statistics = [] if name == "reviews" else [dict.fromkeys(features, found)]
        x, _ = module.transform(features, *statistics)
        assert np.array_equal(x[0], x[1]), name


@pytest.mark.process
def test_a_written_test_says_what_to_add_for_another_column(
    pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("dags/models", "tests"):
        monkeypatch.syspath_prepend(str(pipelines / folder))
    features, _ = importlib.import_module("test_churn").invented(importlib.import_module("churn"))
    says = r"transform reads 'age', .* add it there, such as features\['age'\] = number"
    with pytest.raises(pytest.fail.Exception, match=says):
        _ = features["age"]


@pytest.mark.process
@pytest.mark.parametrize(("name", "metric"), [("rents", "r2_score"), ("shapes", "accuracy")])
def test_what_is_written_runs_at_once_and_learns(
    pipelines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, metric: str
) -> None:
    """The table of the tutorial, which runs in Airflow, is another one."""
    from airflow.dag_processing.dagbag import DagBag

    from aerotrain.evaluation import evaluate
    from aerotrain.prediction import partition, plan
    from aerotrain.serving import export
    from aerotrain.training import train as training
    from support.training_fixtures import Pipeline

    monkeypatch.syspath_prepend(str(pipelines / "dags" / "models"))
    bag = DagBag(str(pipelines / "dags" / f"{name}.py"))
    assert bag.import_errors == {}
    dag = bag.dags[name]
    planned = dag.get_task("prepare.plan").job["arguments"]
    rules = {key: each for key, each in planned.items() if key not in ("shards", "allow_drift")}
    pipeline = Pipeline(tmp_path, data="")
    data = prepare(pipeline.store, tmp_path / "scratch", **rules)
    epochs, threshold = (dag.params.dump()[each] for each in ("epochs", "threshold"))
    wanted = {"model": name, "data": data, "epochs": epochs, "hparams": {"learning_rate": 1e-3}}
    model = training.run(pipeline.replica("train", "r", **wanted))
    assert dag.get_task("promote").upstream_task_ids == {"evaluate", "export"}
    judged = dag.get_task("evaluate").job["arguments"]
    bound, *others = judged["gate"]
    assert [each["kind"] for each in others] == ["better_than_trivial", "no_worse"]
    gate = [{**bound, "bound": threshold}, *others]
    passed = {"model": model, "data": data, "gate": gate, "first_run": judged["first_run"]}
    replica = pipeline.replica("evaluate", "r", **passed)
    assert evaluate.run(replica)[metric] > 0.8
    found = json.loads(open_store(replica.job.prefix).get("card.json"))
    assert found["metrics"][metric] > found["trivial"][metric]
    if name == "rents":
        area, rooms = found["importance"]["columns"]
        assert (area["column"], rooms["column"]) == ("area", "rooms")
        assert area["loss"] > rooms["loss"]
    else:  # whose input is an image
        assert found["importance"] is None
    version = export.run(pipeline.replica("export", "r", model=model, data=data))
    assert version.endswith("/1")
    wanted = {"model": version, "source": rules["source"], "fill": rules.get("fill", {})}
    planned = plan.run(pipeline.replica("prediction.plan", "r", **wanted))
    for each in planned["partitions"]:
        partition.run(pipeline.replica("prediction.partition", "r", **each))
    rows = pq.read_table(planned["output"].removeprefix("file://") + "/data")
    if name == "shapes":
        assert set(rows["predictions_class"].to_pylist()) == {"above", "below"}
    else:
        assert len(rows) == 400
