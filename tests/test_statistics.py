"""Statistics: correct, bounded, independent of order; drift stops the run."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PAGE, SCHEMA, STATISTICS
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Feature, load_dataset, load_statistics
from aerotrain.data.hashing import hashes_of
from aerotrain.data.records.columns import Column, column_of
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.drift import ColumnChange, check_changes, compared
from aerotrain.data.statistics.page import page
from aerotrain.standalone import prepare, run_step
from aerotrain.store import MANIFEST, open_store

RECORDS = 20_000


def values() -> dict[str, Any]:
    random = np.random.default_rng(0)
    price = random.gamma(2, 30, RECORDS)
    price[::100] = np.nan
    return {
        "price": price,
        "town": pa.array(random.choice(["Ulm", "Bonn", "Köln"], RECORDS, p=[0.7, 0.2, 0.1])),
        "id": np.arange(RECORDS),
        "image": random.integers(0, 256, (RECORDS, 28, 28), np.uint8),
        "text": pa.array(["long " * 30] * RECORDS),
    }


def gathered(order: Any, parts: int) -> dict[str, dict[str, Any]]:
    """The summary of all records, in that order and in so many partitions."""
    hashes = hashes_of([f"key-{number}" for number in range(RECORDS)])
    columns = {name: column_of(name, each) for name, each in values().items()}
    whole = Statistics()
    for rows in np.array_split(np.arange(RECORDS)[order], parts):
        part = Statistics()
        for batch in np.array_split(rows, 3):
            taken = {name: column.take(batch) for name, column in columns.items()}
            part.add(taken, {}, hashes[batch])
        whole.merge(Statistics.from_json(part.to_json()))
    return whole.summary()


def shown(summary: dict[str, dict[str, Any]]) -> str:
    return page("file:///x", summary, {})


def changes(before: Any, now: Any, limit: float) -> list[ColumnChange]:
    rules = PlanArguments(source={"kind": "python", "module": "x"}, drift=limit)
    return list(compared("file:///x", before, now, rules).changes)


@pytest.fixture(scope="module")
def summary() -> dict[str, dict[str, Any]]:
    return gathered(slice(None), parts=2)


def test_numbers_are_described(summary: dict[str, dict[str, Any]]) -> None:
    price, described = values()["price"], summary["price"]
    known = price[~np.isnan(price)].astype(np.float32)
    assert described["records"] == RECORDS
    assert described["missing"] == RECORDS // 100
    assert described["mean"] == pytest.approx(known.mean(), rel=1e-5)
    assert described["std"] == pytest.approx(known.std(), rel=1e-5)
    assert (described["min"], described["max"]) == (known.min(), known.max())
    below = [(known <= value).mean() for value in described["quantiles"].values()]
    assert below == pytest.approx([float(name) for name in described["quantiles"]], abs=0.025)
    assert described["distinct"] == pytest.approx(len(known), rel=0.06)


def test_words_are_counted_and_long_texts_are_not(summary: dict[str, dict[str, Any]]) -> None:
    town = values()["town"].to_pylist()
    expected = {name: town.count(name) for name in ("Ulm", "Bonn", "Köln")}
    assert list(summary["town"]["vocabulary"].items()) == list(expected.items())
    assert "vocabulary" not in summary["text"]
    assert (summary["text"]["mean"], summary["text"]["distinct"]) == (150, None)
    assert summary["id"]["distinct"] == pytest.approx(RECORDS, rel=0.06)
    assert re.search(r"<td>distinct</td><td>about \d+,\d00</td>", shown(summary))
    assert "vocabulary" not in summary["id"]


def test_images_are_described_by_some_of_their_values(summary: dict[str, dict[str, Any]]) -> None:
    assert summary["image"]["mean"] == pytest.approx(127.5, abs=1)
    assert summary["image"]["std"] == pytest.approx(73.9, abs=1)
    assert summary["image"]["shape"] == [28, 28]


def test_samples_do_not_depend_on_the_order_of_records_or_partitions(
    summary: dict[str, dict[str, Any]],
) -> None:
    other = gathered(slice(None, None, -1), parts=5)
    for name in ("price", "town", "id", "text"):
        for key in ("records", "missing", "distinct", "quantiles", "examples", "vocabulary"):
            assert other[name].get(key) == summary[name].get(key), (name, key)


@pytest.mark.parametrize("part_bytes", [1, 2**30])
def test_records_that_repeat_and_have_no_key_are_sampled_one_by_one(
    tmp_path: Path, part_bytes: int
) -> None:
    (tmp_path / "in").mkdir()
    values = np.repeat(np.arange(10.0), 2000)  # in four files: each repeats in one of them
    for number, each in enumerate(np.array_split(values, 4)):
        pq.write_table(pa.table({"x": each}), tmp_path / "in" / f"{number}.parquet")
    source = {"kind": "parquet", "url": (tmp_path / "in").as_uri()}
    splits = {"train": 0.5, "test": 0.5}
    store = (tmp_path / "store").as_uri()
    url = prepare(store, tmp_path, source, part_bytes=part_bytes, splits=splits)
    column = load_statistics(url)["x"]
    quantiles = {
        name: column["quantiles"][name] for name in ("0.05", "0.25", "0.5", "0.75", "0.95")
    }
    assert list(quantiles.values()) == pytest.approx([0, 2, 4.5, 7, 9], abs=0.6)
    assert len(set(column["examples"])) > 1


EXTREMES = np.iinfo(np.int64)

#: Values at which floating-point arithmetic fails.
NASTY: dict[str, Any] = {
    "a moment, always the same": np.full(1000, 1_700_000_000_000_000_000),
    "ids that floats do not distinguish": 1_700_000_000_000_000_000 + np.arange(1000),
    "the least and the greatest integer": np.array([EXTREMES.min, EXTREMES.max] * 500),
    "the greatest integer alone": np.full(1000, EXTREMES.max),
    "large and always the same": np.full(1000, 1e300),
    "large and nearly the same": np.array([1e300, np.nextafter(1e300, np.inf)] * 500),
    "3 and the next float": np.array([3, np.nextafter(3.0, 4.0)] * 500),
    "all that floats span": np.array([-np.finfo(float).max, np.finfo(float).max, 0.0, 1.0] * 250),
    "subnormal": np.array([0.0, 5e-324, 1e-323, 3e-310] * 250),
    "subnormal, always the same": np.full(1000, 5e-324),
    "infinite": np.full(1000, np.inf),
    "from one infinity to the other": np.array([-np.inf, np.inf] * 500),
    "infinite, missing and ordinary": np.array([-np.inf, 1.0, np.nan, 2.0, np.inf] * 200),
    "missing": np.full(1000, np.nan),
    "missing but for one": np.array([np.nan] * 999 + [7.0]),
    "one value": np.array([1_700_000_000_000_000_000]),
    "one value, missing": np.array([np.nan]),
    "both zeros": np.array([0.0, -0.0] * 500),
    "yes and no": np.array([True, False] * 500),
}


def summed_up(values: Any) -> dict[str, Any]:
    """The summary of a column, merged from the files of two partitions."""
    dtype = "float32" if values.dtype.kind == "f" else values.dtype.name
    values_of = Column(Feature(dtype), values)
    hashes = hashes_of([f"key-{number}" for number in range(len(values))])
    whole = Statistics()
    for rows in np.array_split(np.arange(len(values)), 2):
        part = Statistics()
        if len(rows):
            part.add({"x": values_of.take(rows)}, {}, hashes[rows])
        whole.merge(Statistics.from_json(part.to_json()))
    summary: dict[str, Any] = json.loads(json.dumps(whole.summary()))
    return summary


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", NASTY.values(), ids=NASTY)
def test_any_numbers_are_described_compared_and_shown(values: Any) -> None:
    summary = summed_up(values)
    column = summary["x"]
    known = values[~np.isnan(values)]
    assert column["missing"] == len(values) - len(known)
    assert column["distinct"] == len(np.unique(known))
    assert "1 column" in shown(summary)
    assert changes(summary, summary, 0.01) == []
    if not len(known):
        assert "min" not in column
        return
    assert (column["min"], column["max"]) == (float(known.min()), float(known.max()))
    quantiles = list(column["quantiles"].values())
    assert quantiles == sorted(quantiles)
    assert (quantiles[0], quantiles[-1]) == (column["min"], column["max"])
    if np.isfinite(known).all():
        assert column["min"] <= column["mean"] <= column["max"]
    if len(np.unique(known)) == 1 and np.isfinite(known).all():
        assert (column["mean"], column["std"]) == (column["min"], 0)
    if values.dtype.kind == "i" and len(np.unique(known)) <= 200:
        assert column["vocabulary"].keys() == {str(each) for each in np.unique(values)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (np.full(1000, 5.0), np.full(1000, 7.0)),
        (np.full(1000, 1e30), np.full(1000, np.inf)),
        (np.full(1000, -np.inf), np.full(1000, np.inf)),
        (np.arange(1000.0), np.full(1000, np.inf)),
        (np.arange(1000.0), np.array([1.0, np.inf] * 500)),
    ],
)
def test_a_shift_of_any_numbers_is_a_drift(before: Any, now: Any) -> None:
    for one, other in ((before, now), (now, before)):
        [change] = changes(summed_up(one), summed_up(other), 0.25)
        assert change.what.startswith("drift of")


# --- with a data set, and against the last one


COLUMNS: dict[str, Any] = {
    "price": np.arange(1000) * 0.5,
    "town": [f"town-{row % 3}" for row in range(1000)],
    "label": np.arange(1000) % 2,
}


def write(folder: Path, **columns: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    table = {**COLUMNS, **columns}
    pq.write_table(
        pa.table({name: each for name, each in table.items() if each is not None}),
        folder / "x.parquet",
    )
    return {"kind": "parquet", "url": folder.as_uri()}


def test_a_data_set_has_its_schema_its_statistics_and_a_page(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    url = prepare(store, tmp_path, write(tmp_path / "in"))
    assert json.loads(open_store(url).get(SCHEMA))["label"] == {"dtype": "int64", "shape": []}
    assert load_statistics(url)["label"]["vocabulary"] == {"0": 500, "1": 500}
    page = open_store(url).get(PAGE).decode()
    assert "1,000 records, 3 columns" in page
    assert page.count("<svg") == 1
    assert page.count('class="bars"') == 2
    test = load_dataset(url).splits["test"]
    assert f"<tr><td>records</td><td>{test.records}</td>" in page
    assert f"class 0</bdi></td><td>{test.classes[0] / test.records:.1%}</td>" in page


def test_drift_is_shown_as_a_table() -> None:
    table = [
        ColumnChange("price", "drift of 0.35", "median 2", "median 4"),
        ColumnChange("town", "column missing", "string of shape ()", "-"),
    ]
    words = (
        r"\n  column +what +before +now\n  price +drift of 0.35 +median 2 +median 4\n"
        r"  town +column missing +string of shape \(\) +-\n.*allow_drift"
    )
    with pytest.raises(FinalError, match=words):
        check_changes(table, 0.25)


def test_drift_stops_the_run_until_it_is_accepted_and_then_is_what_the_next_is_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = (tmp_path / "store").as_uri()
    prepare(store, tmp_path, write(tmp_path / "in"))
    described = write(tmp_path / "in", price=np.arange(1000) * 0.5 + 200)
    with pytest.raises(FinalError, match=r"price +drift of"):
        prepare(store, tmp_path, described)
    other = write(tmp_path / "other", price=np.arange(1000) * 90.0)
    prepare(store, tmp_path, other, name="another")  # is compared with none
    capsys.readouterr()
    accepted = prepare(store, tmp_path, described, allow_drift=True)
    assert "drift columns=1\n" in capsys.readouterr().out
    again = prepare(store, tmp_path, described, seed=1)
    assert "drift columns=0\n" in capsys.readouterr().out
    assert open_store(again).exists(MANIFEST)
    assert again != accepted


def test_infinity_and_nan_are_valid_json(tmp_path: Path) -> None:
    price = np.array([-np.inf, np.nan, 1.5, np.inf] * 250)
    store = (tmp_path / "store").as_uri()
    url = prepare(store, tmp_path, write(tmp_path / "in", price=price))
    documents = [each.key for each in open_store(store).list() if each.key.endswith(".json")]
    assert any(each.endswith(STATISTICS) for each in documents)
    for each in documents:
        json.loads(open_store(store).get(each), parse_constant=pytest.fail)
    column = load_statistics(url)["price"]
    assert (column["min"], column["max"], column["missing"]) == (-np.inf, np.inf, 250)
    assert column["quantiles"]["0.5"] == 1.5
    assert np.isnan(column["mean"])
    prepare(store, tmp_path, write(tmp_path / "in", price=price[::-1]))


def test_other_columns_are_refused_before_anything_is_written_with_what_to_do(
    tmp_path: Path,
) -> None:
    store = (tmp_path / "store").as_uri()
    prepare(store, tmp_path, write(tmp_path / "in"))
    before = [each.key for each in open_store(store).list()]
    described = write(tmp_path / "in", town=None, city=["town-0", "town-1"] * 500)
    expected = r"(?s)city +column new.*town +column missing.*'rename' keeps the name"
    with pytest.raises(FinalError, match=expected):
        run_step("data.prepare.plan", store, tmp_path, source=described)
    assert [each.key for each in open_store(store).list()] == before
