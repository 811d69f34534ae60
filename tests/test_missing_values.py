"""A word for a missing value means it in each kind of column, wherever a user meets the table.

These are what ``aerotrain new`` says, the data set and its statistics, their page, and requests to
a served model.
"""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.layout import PAGE
from aerotrain.data.dataset import load_dataset, load_statistics
from aerotrain.scaffold.command import run
from aerotrain.serving.rest import BadRequestError
from aerotrain.standalone import prepare
from aerotrain.standalone.cli import parse
from aerotrain.store import open_store

pytestmark = pytest.mark.process

#: The word, and the number of records.
WORD, COUNT = "k.A.", 600

SAYS = ["Kunde rief an", "Bitte um Angebot", "Alles in Ordnung"]


@dataclass(frozen=True)
class Kind:
    """A column: its values, how often one is the word, and what requests have.

    ``value`` is a valid one, ``raw`` one as the table has it; ``refused`` is what an answer says of
    the latter, if it is not as good as an empty text.
    """

    of: Callable[[int], Any]
    every: int
    value: Any
    raw: str
    refused: str = ""

    @property
    def missing(self) -> int:
        return len(range(3, COUNT, self.every))


NUMBER, DAY = "send a number such as 1234.5, without quotes", "the days since 1970-01-01"
COLUMNS: Mapping[str, Kind] = {
    "Betrag": Kind(lambda n: f"{1 + n % 9}.{n:03d},50 €", 40, 1234.5, "1.234,50 €", NUMBER),
    "Quote": Kind(lambda n: f"{n % 97},5", 30, 12.5, "12,5", NUMBER),
    "Stand": Kind(lambda n: f"{n % 89},5", 9, 12.5, WORD, NUMBER),  # the word is often there
    "Seit": Kind(lambda n: f"{1 + n % 28:02d}.11.2025", 35, 20_000, "01.11.2025", DAY),
    "Typ": Kind(lambda n: ["Privat", "Firma", "Verein"][n % 3], 7, "Firma", WORD),
    "Notiz": Kind(lambda n: f"{SAYS[n % 3]} zum Vertrag {n % 50}", 11, SAYS[0], WORD),
}
TEXTS = [name for name, kind in COLUMNS.items() if isinstance(kind.value, str)]


@dataclass(frozen=True)
class Table:
    """What ``new`` says of each column, the data set that its DAG prepares, and its module."""

    said: Mapping[str, str]
    rules: Mapping[str, Any]
    folder: Path
    data: str


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    from airflow.dag_processing.dagbag import DagBag

    folder = tmp_path_factory.mktemp("kunden")
    with (folder / "kunden.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow([*COLUMNS, "treu"])
        for n in range(COUNT):
            values = [WORD if n % each.every == 3 else each.of(n) for each in COLUMNS.values()]
            writer.writerow([*values, "nein" if n % 10 == 5 else "ja"])
        file.write("zu;kurz\n")
    words = ["new", "kunden", "--from", str(folder / "kunden.csv"), "--to", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(words)))
        run(parse([*words, "--label", "treu"]), None)
    said = dict(line.strip().split("  ", 1) for line in lines if line.startswith("  "))
    job = DagBag(str(folder / "kunden.py")).dags["kunden"].get_task("prepare.plan").job
    rules = {n: each for n, each in job["arguments"].items() if n not in ("shards", "allow_drift")}
    data = prepare((folder / "store").as_uri(), folder / "scratch", **rules)
    return Table(said, rules, folder, data)


@pytest.mark.parametrize("name", COLUMNS)
def test_new_the_data_set_and_its_page_count_the_same_missing_values(
    table: Table, name: str
) -> None:
    kind = COLUMNS[name]
    assert f"{kind.missing} missing" in table.said[name]
    assert WORD not in table.said[name]
    assert table.said["(missing)"].endswith(repr(WORD))
    column = load_statistics(table.data)[name]
    assert column["missing"] == kind.missing
    known = {kind.of(n) for n in range(COUNT) if n % kind.every != 3}
    assert column["distinct"] == len(known)  # the date that fills is one of them
    assert column["min"] > 0
    page = open_store(table.data).get(PAGE).decode()
    [section] = re.findall(rf'<h2 class="name">[^/]*>{name}<.*?</section>', page)
    assert f"{kind.missing} (" in section
    assert WORD not in section
    assert ">nan<" not in section.lower()
    assert '<bdi dir="auto"></bdi>' not in section


def test_as_many_records_are_rejected_as_new_says_and_the_page_says_how_numbers_are_read(
    table: Table,
) -> None:
    assert table.said["(rejected)"].startswith("1 record, the first at line 602 of kunden.csv: ")
    assert load_dataset(table.data).rejected == 1
    page = open_store(table.data).get(PAGE).decode()
    assert "&#x27;,&#x27; in numbers without a form" in page
    assert "types&#x27; declares: 1.234,56" in page


@pytest.mark.parametrize("fill", [{}, {"town": ""}, {"town": "Ulm"}])
def test_an_empty_text_is_as_missing_as_none_and_each_is_counted_once(
    tmp_path: Path, fill: Mapping[str, str]
) -> None:
    towns = ["", None, "Bonn", "Ulm"] * 50
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"town": towns, "n": range(200)}), tmp_path / "in" / "x.parquet")
    source = {"kind": "parquet", "url": (tmp_path / "in").as_uri()}
    data = prepare((tmp_path / "store").as_uri(), tmp_path, source=source, fill=fill, key=["n"])
    column = load_statistics(data)["town"]
    assert (column["missing"], column["distinct"]) == (100, 2)


@pytest.fixture(scope="module")
def predict(table: Table) -> Callable[..., float]:
    """Asks the exported model for a record with other values than usual ones."""
    from aerotrain.serving import export
    from aerotrain.serving.development import Loaded
    from aerotrain.training import train
    from support.training_fixtures import Pipeline

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(table.folder / "models"))
        pipeline = Pipeline(table.folder, data=table.data)
        wanted = {"model": "kunden", "data": table.data, "epochs": 3}
        wanted["hparams"] = {"learning_rate": 1e-3}
        model = train.run(pipeline.replica("train", "r", **wanted))
        version = export.run(pipeline.replica("export", "r", model=model, data=table.data))
    loaded = Loaded.of(Path(version.removeprefix("file://")))

    def predict(**values: Any) -> float:
        usual = {name: kind.value for name, kind in COLUMNS.items()}
        [[found]] = loaded.predict({"instances": [{**usual, **values}]})["predictions"]
        return float(found)

    return predict


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_missing_in_the_table_is_missing_in_a_request_or_refused_with_what_to_send(
    predict: Callable[..., float], name: str
) -> None:
    kind = COLUMNS[name]
    if name in TEXTS:
        assert predict(**{name: WORD}) == predict(**{name: ""})
        assert predict(**{name: WORD}) != predict(**{name: "Ausland"})
        return
    for raw in {WORD, kind.raw, ""}:
        with pytest.raises(BadRequestError) as refused:
            predict(**{name: raw})
        assert f"the input {name!r} of record 0" in str(refused.value)
        assert f'"{raw}" is not of the type' in str(refused.value)
        assert kind.refused in str(refused.value)
    missing = 20_000 if name == "Seit" else float("nan")
    assert 0 <= predict(**{name: missing}) <= 1
