"""The page of the statistics: what it shows of each column, alone and next to the last data set."""

import re
from base64 import b64decode
from collections.abc import Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PAGE
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Shard, Split
from aerotrain.data.hashing import hashes_of
from aerotrain.data.records.columns import Columns, column_of
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.drift import compared
from aerotrain.data.statistics.examples import PICTURES
from aerotrain.data.statistics.page import page
from aerotrain.pages.axis import BINS, Axis
from aerotrain.pages.html import thumbnail
from aerotrain.standalone import prepare
from aerotrain.store import open_store

RULES = PlanArguments(source={"kind": "python", "module": "x"})


def gathered(columns: Columns, parts: Sequence[Any], **options: Any) -> Statistics:
    """The statistics of records in these parts, merged in their order."""
    whole = Statistics()
    hashes = hashes_of([f"key-{number}" for number in range(len(next(iter(columns.values()))))])
    for rows in parts:
        part = Statistics()
        taken = {name: column.take(rows) for name, column in columns.items()}
        part.add(taken, {}, hashes[rows], **options)
        whole.merge(Statistics.from_json(part.to_json()))
    return whole


def described(times: Any = None, **values: Any) -> dict[str, dict[str, Any]]:
    """The summary of records with these columns."""
    columns = {name: column_of(name, each) for name, each in values.items()}
    records = len(next(iter(columns.values())))
    return gathered(columns, [np.arange(records)], times=times or {}).summary()


def shown(summary: Any, splits: Any = MappingProxyType({}), **more: Any) -> str:
    return page("file:///store/datasets/1a2b", summary, splits, **more)


def side_by_side(before: Any, now: Any) -> str:
    return shown(now, comparison=compared("file:///store/datasets/3c4d", before, now, RULES))


class Elements(HTMLParser):
    """The tags, the addresses and the texts of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def images(records: int, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (records, *shape), np.uint8)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 4), (480, 640, 3), (99, 5)])
def test_pixels_become_a_png_of_at_most_48_pixels(shape: tuple[int, ...]) -> None:
    pixels = images(1, shape)[0] if max(shape) < 48 else np.full(shape, 100, np.uint8)
    found = np.asarray(Image.open(BytesIO(b64decode(thumbnail(pixels) or ""))))
    assert max(found.shape) <= 48
    assert (found == (pixels.reshape(found.shape) if max(shape) < 48 else 100)).all()


def test_the_page_has_pictures_with_their_classes() -> None:
    found = shown(described(image=images(400, (8, 8)), label=np.arange(400) % 3))
    sources = [each for each in Elements(found).addresses if each.startswith("data:image/png")]
    assert len(set(sources)) == PICTURES
    assert b64decode(sources[0].partition(",")[2]).startswith(b"\x89PNG")
    classes = re.findall(r'<figcaption><bdi dir="auto">(\d)', found)
    assert set(classes) == set("012")
    assert classes == sorted(classes)


def test_classes_are_shown_by_their_names_instead_of_numbers_with_a_mean() -> None:
    summary = described(image=images(40, (8, 8)), label=np.arange(40) % 2)
    summary["label"]["names"] = ["ca<t", "dog"]
    split = Split(shards=(Shard(file="a", records=40, bytes=9, sha256=""),), classes={0: 20, 1: 20})
    found = shown(summary, {"train": split})
    table, picture, bars = (found.index(each) for each in ("<th>", 'class="sheet"', 'class="bars"'))
    for place in (table, picture, bars):
        assert "ca&lt;t</bdi>" in found[place : place + 1000]
    assert "class 1" not in found
    del summary["label"]["names"]
    for each in (found, shown(summary, {"train": split})):  # the label comes first
        first, _, second = each.partition('id="column-0"')[2].partition('id="column-1"')
        assert ">label</bdi>" in first
        assert ">median<" not in first
        assert ">median<" in second


def test_columns_that_differ_between_splits_are_named(tmp_path: Path) -> None:
    parts = ["train"] * 700 + ["test"] * 300
    random = np.random.default_rng(0)
    written = pa.table(
        {
            "part": parts,
            "same": random.normal(size=1000),
            "moved": random.normal(size=1000) + [3.0 * (each == "test") for each in parts],
            "town": ["Graz" if each == "train" else "Linz" for each in parts],
            "scan": [[1.0, 2.0]] * 1000,
            "label": random.integers(0, 2, 1000),
        }
    )
    pq.write_table(written, tmp_path / "x.parquet")
    source = {"kind": "parquet", "url": (tmp_path / "x.parquet").as_uri()}
    options = {
        "split_by": {"way": "column", "column": "part"},
        "splits": {"train": 0.7, "test": 0.3},
    }

    def text_of(**more: Any) -> str:
        store = (tmp_path / f"store-{len(more)}").as_uri()
        url = prepare(store, tmp_path, source, **options, **more)
        return Elements(open_store(url).get(PAGE).decode()).text

    page = text_of()
    assert "3 differences between splits" in page
    assert re.search(r"moveddrift of 0\.\d+median -?0\.\d+median [23]\.\d+test", page)
    assert "towndrift of 1.00'Linz' 0.0%'Linz' 100.0%test" in page
    off = dict.fromkeys(("moved", "town"), "off")
    assert "No column of test differs from that of train" in text_of(drift_rules=off)


@pytest.mark.parametrize(
    "labels", [[n % 20 for n in range(300)], [f"c{n % 12}" for n in range(300)]]
)
def test_pictures_do_not_depend_on_the_order_of_records_or_partitions(labels: list[Any]) -> None:
    png = [file_of(each) for each in images(300, (8, 8))]
    for number in range(0, 300, 7):
        png[number] = png[number][:30]  # damaged
    columns = {
        "pixels": column_of("pixels", images(300, (8, 8))),
        "file": column_of("file", pa.array(png)),
        "label": column_of("label", np.array(labels)),
    }
    rows = np.arange(300)
    one = gathered(columns, [rows]).summary()
    others = [
        gathered(columns, each).summary()
        for each in (np.array_split(rows[::-1], 7), np.array_split(rows, 10)[::-1])
    ]
    for name in ("pixels", "file"):
        assert one[name]["pictures"] == others[0][name]["pictures"] == others[1][name]["pictures"]
    assert len(one["pixels"]["pictures"]) == PICTURES


def file_of(pixels: Any, kind: str = "PNG") -> bytes:
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def test_encoded_pictures_are_shown_and_other_bytes_are_not() -> None:
    photo = file_of(images(1, (200, 200, 3))[0], "JPEG")
    small = file_of(images(1, (8, 8))[0])
    damaged, svg = b"\xff\xd8\xff\xe0 some", b"<svg onload='alert(1)'/>"
    summary = described(image=pa.array([small, photo, damaged, svg, b"no\0text"] * 2, pa.binary()))
    contents = [png for label, png in summary["image"]["pictures"] if label is None]
    assert {Image.open(BytesIO(b64decode(each))).size for each in contents} == {(8, 8), (48, 48)}
    found = Elements(shown(summary))
    assert {each[:15] for each in found.addresses} == {"data:image/png;"}
    assert "svg onload" not in found.text


def test_dark_pictures_are_shown_brighter() -> None:
    found = shown(described(image=images(50, (8, 8)) // 16))
    assert "--light:17" in found
    assert "the greatest value is 15" in found


HOSTILE = (
    "</style><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\u202e\0\ud800" + "x" * 300
)


def test_names_and_values_are_never_markup() -> None:
    now = described(**{HOSTILE: np.arange(9)}, text=pa.array(["<b onclick=x>"] * 9))
    other = described(**{HOSTILE: np.arange(9) + 100}, text=pa.array(["\"'><i>"] * 9))
    found = side_by_side(other, now)
    elements = Elements(found)
    assert not {"script", "b onclick", "i onclick"} & elements.tags
    assert not elements.handlers
    assert all(each.startswith("#column-") for each in elements.addresses)
    assert "<script>alert(1)</script>" in elements.text
    assert "default-src 'none'" in found
    assert found.encode()


def test_a_key_of_one_length_has_no_histogram() -> None:
    keys = pa.array([f"C{number:06}" for number in range(500)])
    assert "<svg" not in shown(described(key=keys))
    longer = pa.array([f"C{number:09}" for number in range(500)])
    assert "<svg" in side_by_side(described(key=longer), described(key=keys)), (
        "the length has changed"
    )


def test_dates_are_shown_as_dates() -> None:
    days, times = np.arange(18_000, 19_000).astype(np.int32), np.arange(10**6) * 10**9
    found = shown(
        described(
            {"day": "days", "time": "microseconds", "took": ""},
            day=days,
            time=times[:1000],
            took=np.arange(1000) * 77,
        )
    )
    text = Elements(found).text
    for date in ("2019-04-14", "2022-01-07", "1970-01-01", "1970-01-12 13:30:00", "76,923"):
        assert date in text
    assert "18,000" not in text


DAY = np.datetime64("2012-10-15").astype(int)


@pytest.mark.parametrize(
    ("least", "greatest", "unit", "labels"),
    [
        (0, 1, "", ["0", "0.5", "1"]),
        (-3, 1e6, "", ["0", "500,000", "1,000,000"]),
        (1950, 2019, "", ["1960", "1980", "2000", "2020"]),
        (8, 9, "", ["8", "9"]),
        (-1e308, 1e308, "", ["-1e308", "1e308"]),
        (DAY, DAY + 3364, "days", ["2013", "2016", "2019"]),
        (DAY, DAY + 120, "days", ["2012-11", "2012-12", "2013-01", "2013-02"]),
        (DAY, DAY + 6, "days", ["2012-10-15", "2012-10-17", "2012-10-19", "2012-10-21"]),
    ],
)
def test_an_axis_has_round_labels(least: Any, greatest: Any, unit: str, labels: list[str]) -> None:
    values = np.linspace(least / 2, greatest / 2, 70) * 2
    is_whole = isinstance(greatest, int) and greatest > 1
    [column] = described({"x": unit}, x=values.round().astype(int) if is_whole else values).values()
    axis = Axis.of([column])
    assert axis is not None
    assert [text for _, text in axis.labels()] == labels
    assert sum(axis.shares(column)) == pytest.approx(1)


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "is_cut"),
    [
        (RANDOM.lognormal(3, 2, 5000), True),
        (np.append(np.zeros(2000), RANDOM.lognormal(8, 2, 3000)), True),
        (RANDOM.standard_t(1, 5000), True),
        (np.append(np.arange(18_000, 19_000), [2_932_896] * 50), True),  # a date far away
        (RANDOM.normal(5, 2, 9999), False),
        (RANDOM.gamma(2, 3, 9999), False),
    ],
)
def test_values_far_away_do_not_hide_the_others(values: Any, is_cut: bool) -> None:
    [column] = described(x=values).values()
    axis = Axis.of([column])
    assert axis is not None
    assert axis.is_cut == is_cut
    shares = axis.shares(column)
    assert sum(shares) == pytest.approx(1)
    assert sum(share > 0.005 for share in shares) > 8
    edges = np.linspace(axis.least, axis.greatest, axis.bins + 1)
    counts = np.histogram(np.clip(values, axis.least, axis.greatest), edges)[0]
    assert shares == pytest.approx(counts / len(values), abs=0.03)
    assert ("the last bar have all values beyond" in shown({"x": column})) == is_cut


@pytest.mark.parametrize("span", [17, 46, 500])
def test_every_bar_of_integers_has_as_many_of_them(span: int) -> None:
    values = np.tile(np.arange(span), 3)[: 3 * span].astype(np.uint8 if span < 256 else np.int16)
    for shape in ((-1, 1), (-1,)):  # without a vocabulary, and with one
        [column] = described(x=values.reshape(shape)).values()
        axis = Axis.of([column])
        assert axis is not None
        assert axis.bins <= BINS
        shares = axis.shares(column)[:-1]  # the last one may have fewer
        integers = round((axis.greatest - axis.least) / axis.bins)
        assert shares == pytest.approx([integers / span] * len(shares), rel=0.25)


def test_rare_categories_are_counted_as_others() -> None:
    words = [f"common-{n}" for n in range(12) for _ in range(50)] + [f"rare-{n}" for n in range(40)]
    found = Elements(shown(described(word=pa.array(words))))
    assert "40 others40 (6.2%)" in found.text


def test_two_data_sets_are_side_by_side_with_the_verdict_of_each_column() -> None:
    random = np.random.default_rng(0)
    one = described(
        same=random.normal(0, 1, 2000),
        moved=random.normal(0, 1, 2000),
        gone=np.zeros(2000),
        town=pa.array(["Ulm", "Bonn"] * 1000),
    )
    other = described(
        same=random.normal(0, 1, 2000),
        moved=random.normal(3, 1, 2000),
        town=pa.array(["Ulm", "Ulm", "Ulm", "Rome"] * 500),
    )
    found = side_by_side(one, other)
    text = Elements(found).text
    assert "4 changes" in text
    assert re.search(r"movedfloat64drift of 0\.\d\d: median", text)
    assert "samefloat64no drift, compared as numbers" in text
    assert "gonefloat64column missing" in text
    assert "Ulm75.0% was 50.0%" in text
    assert "Bonn0.0% was 50.0%" in text
    assert found.count("<path") == 2  # the outlines of what was before


# --- with a data set


def write(folder: Path, shift: float = 0) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    table = {
        "price": np.arange(1000) * 0.5 + shift,
        "label": np.arange(1000) % 2,
        "day": pa.array(np.arange(18_000, 19_000).astype("datetime64[D]")),
        "time": pa.array(np.arange(18_000, 19_000).astype("datetime64[D]").astype("datetime64[s]")),
        "took": pa.array(np.arange(1000), pa.duration("s")),
    }
    pq.write_table(pa.table(table), folder / "x.parquet")
    return {"kind": "parquet", "url": folder.as_uri()}


def test_a_run_that_fails_by_drift_leaves_a_page_that_shows_it(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    first = prepare(store, tmp_path, write(tmp_path / "in"))
    shown = open_store(first).get(PAGE).decode()
    assert "Compared with" not in shown
    assert shown.count("<td>2019-04-14</td>") == 2  # the minima of day and time
    with pytest.raises(FinalError, match=r"both are side by side on (\S+)") as failed:
        prepare(store, tmp_path, write(tmp_path / "in", shift=400))
    [url] = re.findall(r"side by side on (\S+)/", str(failed.value))
    assert url != first
    text = Elements(open_store(url).get(PAGE).decode()).text
    assert f"Compared with {first}, of 1,000 records: 1 change" in text


def test_the_page_shows_what_was_rejected_and_where_all_of_it_is(tmp_path: Path) -> None:
    folder, store = tmp_path / "in", (tmp_path / "store").as_uri()
    folder.mkdir()
    lines = [f"{number},{number % 2}" for number in range(98)]
    (folder / "a.csv").write_text("\n".join(["x,label", *lines, "5,", "7,", ""]))
    (folder / "_SUCCESS").touch()
    source = {"kind": "csv", "url": folder.as_uri(), "types": {"x": "float32", "label": "int64"}}
    url = prepare(store, tmp_path, source, max_rejected=2)
    found = Elements(open_store(url).get(PAGE).decode())
    assert f"2 records rejected (2.0%), listed in {url}/quarantine/00000.jsonl" in found.text
    assert re.search(r"a\.csvline 1\d\d", found.text)
    assert "hidden files_SUCCESS; not read" in found.text

    (folder / "a.csv").write_text("\n".join(["x,label", *lines, ""]))
    other = prepare(store, tmp_path, source)
    assert "rejected" not in open_store(other).get(PAGE).decode()
