"""The page of the statistics: what it shows of each column, alone and next to the last data set."""

import re
from base64 import b64decode
from collections.abc import Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PAGE
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Shard, Split, load_statistics
from aerotrain.data.hashing import hashes_of
from aerotrain.data.partitions import Rejections
from aerotrain.data.records.columns import Columns, column_of
from aerotrain.data.sources.batch import Rejected
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.page import DataComparison, Described, page
from aerotrain.data.statistics.pictures import CLASSES, OF_CLASS
from aerotrain.pages.axis import BINS, Axis
from aerotrain.pages.html import thumbnail
from aerotrain.standalone import prepare
from aerotrain.standalone.cli import main
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


def described(times: Any = None, **values: Any) -> Described:
    columns = {name: column_of(name, each) for name, each in values.items()}
    records = len(next(iter(columns.values())))
    statistics = gathered(columns, [np.arange(records)], times=times or {})
    return Described(
        url="file:///store/datasets/1a2b",
        summary=statistics.summary(),
        pictures=statistics.pictures(),
    )


def compared(before: Described, now: Described) -> str:
    return page(now, {}, comparison=DataComparison.of(before, now, RULES))


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


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 4)])
def test_pixels_become_a_png_with_the_same_pixels(shape: tuple[int, ...]) -> None:
    [image] = images(1, shape)
    shown = np.asarray(Image.open(BytesIO(b64decode(thumbnail(image) or ""))))
    assert (shown == image.reshape(shown.shape)).all()


@pytest.mark.parametrize("shape", [(480, 640, 3), (4000, 5), (49, 48), (28, 28, 1)])
def test_large_pictures_are_reduced(shape: tuple[int, ...]) -> None:
    found = Image.open(BytesIO(b64decode(thumbnail(np.full(shape, 100, np.uint8)) or "")))
    assert max(found.size) <= 48
    assert (np.asarray(found) == 100).all()


def test_the_page_has_pictures_of_each_class() -> None:
    found = page(described(image=images(400, (8, 8)), label=np.arange(400) % 3), {})
    sources = [each for each in Elements(found).addresses if each.startswith("data:image/png")]
    assert len(set(sources)) == 3 * OF_CLASS
    assert b64decode(sources[0].partition(",")[2]).startswith(b"\x89PNG")


def test_classes_are_shown_by_their_names_instead_of_numbers_with_a_mean() -> None:
    statistics = described(image=images(40, (8, 8)), label=np.arange(40) % 2)
    statistics.summary["label"]["names"] = ["ca<t", "dog"]
    split = Split(shards=(Shard(file="a", records=40, bytes=9, sha256=""),), classes={0: 20, 1: 20})
    found = page(statistics, {"train": split})
    table, picture, bars = (found.index(each) for each in ("<th>", 'class="sheet"', 'class="bars"'))
    for place in (table, picture, bars):
        assert "ca&lt;t</bdi>" in found[place : place + 1000]
    assert "class 1" not in found
    assert ">mean<" not in found.partition('id="column-1"')[2]


@pytest.mark.parametrize(
    "labels", [[n % 20 for n in range(300)], [f"c{n % 12:02}" for n in range(300)]]
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
    one = gathered(columns, [rows]).pictures()
    assert gathered(columns, np.array_split(rows[::-1], 7)).pictures() == one
    assert gathered(columns, np.array_split(rows, 10)[::-1]).pictures() == one
    assert [len(one["pixels"]), len(one["file"])] == [CLASSES] * 2
    assert all(len(contents) == OF_CLASS for _, contents in one["pixels"])


def file_of(pixels: Any, kind: str = "PNG") -> bytes:
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def test_encoded_pictures_are_shown_and_other_bytes_are_not() -> None:
    photo = file_of(images(1, (200, 200, 3))[0], "JPEG")
    small = file_of(images(1, (8, 8))[0])
    damaged, svg = b"\xff\xd8\xff\xe0 some", b"<svg onload='alert(1)'/>"
    sent = pa.array([small, photo, damaged, svg, b"no\0text"] * 2, pa.binary())
    statistics = described(image=sent)
    [(label, contents)] = statistics.pictures["image"]
    assert label is None
    assert {Image.open(BytesIO(b64decode(each))).size for each in contents} == {(8, 8), (48, 48)}
    found = Elements(page(statistics, {}))
    assert {each[:15] for each in found.addresses} == {"data:image/png;"}
    assert "svg onload" not in found.text


def test_a_page_of_many_pictures_is_bounded() -> None:
    columns = {f"image-{n}": images(100, (48, 48, 3)) for n in range(4)}
    now = described(**columns, label=np.arange(100) % 10)
    before = described(**columns, label=np.arange(100) % 10)
    assert len(compared(before, now)) < 350_000


def test_dark_pictures_are_shown_brighter() -> None:
    found = page(described(image=images(50, (8, 8)) // 16), {})
    assert "--light:17" in found
    assert "the greatest value is 15" in found


HOSTILE = (
    "</style><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\u202e\0\ud800" + "x" * 300
)


def test_names_and_values_are_never_markup() -> None:
    now = described(**{HOSTILE: np.arange(9)}, text=pa.array(["<b onclick=x>"] * 9))
    other = described(**{HOSTILE: np.arange(9) + 100}, text=pa.array(["\"'><i>"] * 9))
    found = compared(other, now)
    elements = Elements(found)
    assert not {"script", "b onclick", "i onclick"} & elements.tags
    assert not elements.handlers
    assert all(each.startswith("#column-") for each in elements.addresses)
    assert "<script>alert(1)</script>" in elements.text
    assert "default-src 'none'" in found
    assert found.encode()


def test_long_names_break_at_their_parts() -> None:
    name = "a_column_of_the_export_of/customers%20of.the_north"
    found = page(described(**{name: np.arange(9)}), {})
    assert "a_<wbr>column_<wbr>of_<wbr>the_<wbr>export" in found
    assert "of/<wbr>customers%20<wbr>of.<wbr>the" in found
    assert name in Elements(found).text
    short = page(described(x=np.arange(9.0) - 3.25, short_name=np.arange(9)), {})
    assert "<wbr>" not in short.partition("<section")[2]


def test_missing_texts_are_no_distinct_value_and_are_shown_as_missing() -> None:
    words = pa.array(["North", "South", "", "North"] * 30)
    columns = {"region": column_of("region", words)}
    statistics = Statistics()
    hashes = hashes_of([f"key-{number}" for number in range(120)])
    statistics.add(columns, {"region": 30}, hashes)
    summary = statistics.summary()
    assert (summary["region"]["distinct"], summary["region"]["missing"]) == (2, 30)
    text = Elements(page(Described(url="file:///x", summary=summary), {})).text
    assert "missing30 (25.0%)distinct2" in text
    assert "(missing)30 (25.0%)" in text
    assert "(empty)" not in text

    # Here the source has an empty text, too, which is a value.
    statistics = Statistics()
    statistics.add(columns, {"region": 29}, hashes)
    summary = statistics.summary()
    assert summary["region"]["distinct"] == 3
    assert "(empty)30 (25.0%)" in Elements(page(Described(url="", summary=summary), {})).text


def test_a_key_of_one_length_has_no_histogram() -> None:
    keys = pa.array([f"C{number:06}" for number in range(500)])
    assert "<svg" not in page(described(key=keys), {})
    longer = pa.array([f"C{number:09}" for number in range(500)])
    assert "<svg" in compared(described(key=longer), described(key=keys)), "the length has changed"


def test_texts_are_shown_with_their_lengths() -> None:
    long = "a review of many words, " * 10
    found = Elements(page(described(text=pa.array([long, long * 2] * 10)), {}))
    assert long in found.text
    assert "length in bytes" in found.text


def test_dates_are_shown_as_dates() -> None:
    days, times = np.arange(18_000, 19_000).astype(np.int32), np.arange(10**6) * 10**9
    found = page(
        described(
            {"day": "days", "time": "microseconds", "took": ""},
            day=days,
            time=times[:1000],
            took=np.arange(1000) * 77,
        ),
        {},
    )
    text = Elements(found).text
    for shown in ("2019-04-14", "2022-01-07", "1970-01-01", "1970-01-12 13:30:00", "76,923"):
        assert shown in text
    assert "18,000" not in text


@pytest.mark.parametrize(
    ("least", "greatest", "labels"),
    [
        ("2012-10-15", "2021-12-31", ["2014", "2016", "2018", "2020"]),
        ("2021-01-05", "2021-05-20", ["2021-02", "2021-03", "2021-04", "2021-05"]),
        ("2021-02-05", "2021-02-11", ["2021-02-05", "2021-02-07", "2021-02-09", "2021-02-11"]),
    ],
)
def test_an_axis_of_dates_has_round_dates(least: str, greatest: str, labels: list[str]) -> None:
    first, last = (int(np.datetime64(each).astype(int)) for each in (least, greatest))
    axis = Axis(least=first, greatest=last, since_1970="days")
    assert [text for _, text in axis.labels()] == labels


def test_a_date_far_away_does_not_hide_the_others() -> None:
    days = np.append(np.arange(18_000, 19_000), [2_932_896] * 50).astype(np.int32)
    [column] = described({"day": "days"}, day=days).summary.values()
    axis = Axis.of([column])
    assert axis is not None
    assert axis.is_cut
    assert sum(share > 0.02 for share in axis.shares(column)) > 8


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).lognormal(3, 2, 5000),
        np.append(np.zeros(2000), np.random.default_rng(0).lognormal(8, 2, 3000)),
        np.random.default_rng(0).standard_t(1, 5000),
        np.minimum(np.random.default_rng(0).zipf(1.7, 5000), 10**6),
    ],
    ids=["lognormal", "many zeros", "in both directions", "zipf"],
)
def test_a_long_tail_has_a_logarithmic_axis(values: Any) -> None:
    [column] = described(x=values).summary.values()
    axis = Axis.of([column])
    assert axis is not None
    assert axis.linear_to
    shares = axis.shares(column)
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 0.6
    assert len(axis.labels()) >= 3
    assert "logarithmic axis" in page(described(x=values), {})


def test_numbers_without_a_long_tail_have_a_linear_axis() -> None:
    random = np.random.default_rng(0)
    for values in (random.normal(5, 2, 9999), random.gamma(2, 3, 9999), np.arange(9999.0)):
        [column] = described(x=values).summary.values()
        axis = Axis.of([column])
        assert axis is not None
        assert not axis.linear_to
        assert axis.shares(column) == [count / 4096 for count in column["histogram"]]


@pytest.mark.parametrize("span", [17, 46, 500])
def test_every_bar_of_integers_has_as_many_of_them(span: int) -> None:
    values = np.tile(np.arange(span), 3)[: 3 * span].astype(np.uint8 if span < 256 else np.int16)
    [column] = described(x=values.reshape(-1, 1)).summary.values()
    axis = Axis.of([column])
    assert axis is not None
    assert axis.bins <= BINS
    shares = axis.shares(column)[:-1]  # the last one may have fewer
    assert shares == pytest.approx([axis.integers / span] * len(shares), rel=0.25)


def test_integers_have_whole_labels_and_years_no_comma() -> None:
    [column] = described(x=np.arange(1950, 2020)).summary.values()
    axis = Axis.of([column])
    assert axis is not None
    assert [text for _, text in axis.labels()] == ["1960", "1980", "2000", "2020"]
    assert "9" in [text for _, text in Axis(least=7.5, greatest=9.5, integers=1).labels()]


def test_labels_of_an_axis_do_not_overlap() -> None:
    axis = Axis(least=-1e6, greatest=1e6, linear_to=10.0)
    places = [place for place, _ in axis.labels()]
    assert "0" in [text for _, text in axis.labels()]
    assert np.diff(places).min() > 0.07


def test_rare_categories_are_counted_as_others() -> None:
    words = [f"common-{n}" for n in range(12) for _ in range(50)] + [f"rare-{n}" for n in range(40)]
    found = Elements(page(described(word=pa.array(words)), {}))
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
    found = compared(one, other)
    text = Elements(found).text
    assert "4 changes" in text
    assert re.search(r"movedfloat64drift of 0\.\d\d: median", text)
    assert "samefloat64no drift, compared as numbers" in text
    assert "gonefloat64column missing" in text
    assert "Ulm75.0% was 50.0%" in text
    assert "Bonn0.0% was 50.0%" in text
    assert found.count("<path") == 2  # the outlines of what was before


def test_columns_of_other_types_are_not_drawn_over_each_other() -> None:
    found = compared(described(x=pa.array(["a", "b"] * 9)), described(x=np.arange(18.0)))
    assert "type: string of shape () → float64 of shape ()" in Elements(found).text
    assert "<path" not in found


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
    assert "Compared with" not in open_store(first).get(PAGE).decode()
    with pytest.raises(FinalError, match=r"both are side by side on (\S+)") as failed:
        prepare(store, tmp_path, write(tmp_path / "in", shift=400))
    [url] = re.findall(r"side by side on (\S+)/", str(failed.value))
    assert url != first
    text = Elements(open_store(url).get(PAGE).decode()).text
    assert f"Compared with {first}, of 1,000 records: 1 change" in text


def test_the_page_and_the_comparison_show_what_was_rejected_and_where_all_of_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = tmp_path / "in", (tmp_path / "store").as_uri()
    folder.mkdir()
    lines = [f"{number},{number % 2}" for number in range(98)]
    (folder / "a.csv").write_text("\n".join(["x,label", *lines, "5,", "7,", ""]))
    (folder / "_SUCCESS").touch()
    source = {"kind": "csv", "url": folder.as_uri(), "types": {"x": "float32", "label": "int64"}}
    url = prepare(store, tmp_path, source, max_rejected=2)
    found = Elements(open_store(url).get(PAGE).decode())
    assert f"2 records were rejected (2.0%); {url}/quarantine/00000.jsonl has them" in found.text
    assert re.search(r"a\.csvline 1\d\d", found.text)
    assert "hidden files_SUCCESS; not read" in found.text

    (folder / "a.csv").write_text("\n".join(["x,label", *lines, ""]))
    other = prepare(store, tmp_path, source)
    assert "rejected" not in open_store(other).get(PAGE).decode()
    output = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["compare", other, url, "-o", str(output)])
    assert ended.value.code == 0
    compared = Elements(output.read_text()).text
    assert "2 records were rejected" in compared
    assert f"Compared with {other}, of 98 records: no change" in compared
    with pytest.raises(SystemExit) as ended:
        main(["compare", other, store, "-o", str(output)])
    assert ended.value.code
    assert "there is no finished data set at" in capsys.readouterr().out


def test_many_rejected_records_are_cut_and_counted() -> None:
    rejected = [Rejected("file:///x.csv", number, "line", "no number") for number in range(10)]
    now = described(x=np.arange(988.0))
    rejections = Rejections(count=12, first=rejected, url="file:///store/quarantine/")
    text = Elements(page(now, {}, rejections=rejections)).text
    assert "12 records were rejected (1.2%); file:///store/quarantine/ has them" in text
    assert text.count("no number") == 10


def test_dates_and_timestamps_of_a_source_are_shown_as_dates(tmp_path: Path) -> None:
    url = prepare((tmp_path / "store").as_uri(), tmp_path, write(tmp_path / "in"))
    shown = open_store(url).get(PAGE).decode()
    assert shown.count("<td>2019-04-14</td>") == 2  # the minima of both columns
    summary = load_statistics(url)
    units = [summary[name]["since_1970"] for name in ("day", "time", "took")]
    assert units == ["days", "microseconds", ""]
