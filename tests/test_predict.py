"""Predictions of an exported model for every record of a source, as Parquet."""

import json
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.preparing import PredictArguments
from aerotrain.data.dataset import Feature
from aerotrain.prediction import finalize, partition, plan
from aerotrain.replica import Replica
from aerotrain.serving.servable import Servable
from aerotrain.standalone import CHIEF
from aerotrain.store import open_store, publish

pytestmark = pytest.mark.process

SCHEMA = {
    "town": Feature("string"),
    "rooms": Feature("int64"),
    "area": Feature("float32"),
    "price": Feature("float32"),
}
TOWNS = ("Bergen", "Graz", "Lyon")


def transform(features):
    numbers = features["area"] + tf.cast(features["rooms"], tf.float32)
    return {"town": features["town"], "numbers": numbers}, features["price"]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    town, numbers = keras.Input((), name="town", dtype="string"), keras.Input((), name="numbers")
    known = keras.layers.StringLookup(vocabulary=list(TOWNS))(town)
    embedded = keras.layers.Embedding(4, 3)(known)
    joined = keras.layers.Concatenate()([embedded, keras.layers.Reshape((1,))(numbers)])
    outputs = {
        "price": keras.layers.Dense(1, name="price")(joined),
        "classes": keras.layers.Dense(3, activation="softmax", name="classes")(joined),
    }
    return keras.Model({"town": town, "numbers": numbers}, outputs)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    Servable(model, transform, SCHEMA).save(folder / "saved")
    store = open_store((folder / "store").as_uri())
    publish(store.child("flats/serving"), folder / "saved", "3", {})
    return store


@pytest.fixture
def step(exported, tmp_path):
    """Runs a step of a pipeline in this process; each time in a new scratch folder."""
    count = 0

    def run(module, **arguments):
        nonlocal count
        count += 1
        job = Job(
            name="test",
            module=module.__name__,
            store=f"{exported.url}/flats",
            run=f"run-{count}",
            task="predict",
            arguments=arguments,
        )
        scratch = tmp_path / f"scratch-{count}"
        scratch.mkdir()
        return module.run(Replica(job=job, name=CHIEF, attempt="1", scratch=scratch))

    return run


@pytest.fixture
def predict(step):
    def run(model="serving", **arguments):
        planned = step(plan, model=model, **arguments)
        for each in planned["partitions"]:
            step(partition, **each)
        url = step(finalize, output=planned["output"])
        assert url == f"{planned['output']}/data"
        return open_store(planned["output"])

    return run


@pytest.fixture
def written(tmp_path):
    """Writes a file of flats, and returns it as a source."""

    def write(name, content):
        file = tmp_path / name
        if isinstance(content, str):
            file.write_text(content)
        else:
            pq.write_table(pa.table(content), file)
        return {"kind": file.suffix[1:], "url": file.as_uri()}

    return write


@pytest.fixture
def csv(tmp_path):
    """A table of 1,000 flats in four files; some have no area, and none has a price."""
    random = np.random.default_rng(0)
    table = pa.table(
        {
            "flat": np.arange(1000),
            "town": random.choice(TOWNS, 1000),
            "rooms": random.integers(1, 7, 1000),
            "area": pa.array(
                random.uniform(20, 200, 1000).round(1), mask=np.arange(1000) % 50 == 0
            ),
            "seller": [None if n % 3 else f"agent {n}" for n in range(1000)],
        }
    )
    folder = tmp_path / "table"
    folder.mkdir()
    for number in range(4):
        rows = table.slice(250 * number, 250)
        pyarrow.csv.write_csv(rows, folder / f"{number}.csv")
    return table, {"kind": "csv", "url": folder.as_uri()}


def read(store):
    files = [each.key for each in store.list() if each.key.endswith(".parquet")]
    return pa.concat_tables([pq.read_table(pa.BufferReader(store.get(f))) for f in sorted(files)])


def test_each_record_of_a_table_without_labels_has_one_row_with_what_is_kept(model, predict, csv):
    table, source = csv
    store = predict(source=source, keep=["flat", "seller"], part_bytes=20_000, batch_size=96)
    rows = read(store).to_pydict()
    assert rows["flat"] == list(range(1000))
    assert rows["seller"] == table["seller"].to_pylist()
    assert [each.rpartition("/")[2] for each in rows["source_file"][::250]] == [
        f"{n}.csv" for n in range(4)
    ]
    assert len({*zip(rows["source_file"], rows["source_offset"], strict=True)}) == 1000
    numbers = table["rooms"].to_numpy() + table["area"].to_numpy()  # null is NaN
    x = {"town": tf.constant(table["town"].to_pylist()), "numbers": tf.constant(numbers, "float32")}
    expected = model(x)
    np.testing.assert_allclose(rows["price"], expected["price"][:, 0], rtol=1e-5)
    np.testing.assert_allclose(rows["classes"], expected["classes"], rtol=1e-4, atol=1e-6)
    folder = f"{store.url}/data".removeprefix("file://")  # which other programs read as a whole
    assert pq.read_table(folder)["flat"].to_pylist() == rows["flat"]
    manifest = json.loads(store.get("manifest.json"))
    assert (manifest["records"], manifest["rejected"]) == (1000, 0)
    assert len(manifest["files"]) > 1
    assert manifest["model"].endswith("flats/serving/3")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lists", [[1], [1, 2], []]),
        ("maps", pa.array([[("a", 1)], [], []], pa.map_(pa.string(), pa.int64()))),
        ("null", pa.nulls(3)),
    ],
)
def test_a_column_that_no_record_can_hold_is_no_reason_not_to_predict(
    predict, written, name, values
):
    flats = {"town": ["Graz"] * 3, "rooms": [1, 2, 3], "area": [5.0] * 3}
    source = written("flats.parquet", {name: values, **flats})
    assert read(predict(source=source, keep=["rooms"]))["rooms"].to_pylist() == [1, 2, 3]


def test_columns_in_doubt_are_no_reason_not_to_predict(predict, written):
    # Towns that look like numbers are texts, as the model takes them.
    source = written("flats.csv", "town,rooms,area,size,empty\n" + '0151,3,50,"1,1",\n' * 3)
    assert read(predict(source=source, keep=["town"]))["town"].to_pylist() == ["0151"] * 3
    with pytest.raises(SpecError, match=r"keep names .*'size' cannot be read.*in doubt"):
        predict(source=source, keep=["size"])


def test_a_partition_that_is_predicted_again_is_the_same_to_the_byte(step, predict, csv):
    store = predict(source=csv[1], keep=["flat"], part_bytes=20_000)
    before = {each.key: store.get(each.key) for each in store.list()}
    for key in ("manifest.json", "parts/00001.json", "data/part-00001.parquet"):
        store.delete(key)
    with pytest.raises(FinalError, match=r"1 of . partitions of .* are not written: 1;"):
        step(finalize, output=store.url)
    again = predict(source=csv[1], keep=["flat"], part_bytes=20_000)
    assert {each.key: again.get(each.key) for each in again.list()} == before


def test_a_changed_file_is_predicted_again_and_the_others_are_copied(predict, csv, capsys):
    predict(source=csv[1], keep=["flat"], part_bytes=5_000)  # each file is a partition
    file = Path(csv[1]["url"].removeprefix("file://")) / "1.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    rows = read(predict(source=csv[1], keep=["flat"], part_bytes=5_000))
    assert rows["flat"].to_pylist() == [n for n in range(1000) if n != 499]
    said = capsys.readouterr().out
    assert said.count("is copied from an earlier output: 250 records") == 3
    assert said.count("partition 1 is written: 249 records") == 1


def test_predictions_that_exist_are_taken_over_and_those_of_other_options_are_others(
    predict, step, csv
):
    given = {"source": csv[1], "keep": ["flat"]}
    store = predict(**given)
    assert step(plan, model="serving", **given) == {"output": store.url, "partitions": []}
    assert predict(**given).url == store.url
    assert predict(**given | {"keep": ["town"]}).url != store.url


def test_a_record_without_a_value_that_the_model_needs_is_rejected_or_filled(predict, written):
    source = written("flats.csv", "town,rooms,area\nGraz,3,50\nLyon,,40\nBergen,2,30\n")
    with pytest.raises(FinalError, match=r"column 'rooms' is missing.*give one in 'fill'"):
        predict(source=source)
    store = predict(source=source, max_rejected=1)
    assert read(store)["source_offset"].to_pylist() == [16, 35]
    assert json.loads(store.get("manifest.json"))["rejected"] == 1
    assert json.loads(store.get("quarantine/00000.jsonl"))["offset"] == 26
    assert len(read(predict(source=source, fill={"rooms": 3}))) == 3


def test_records_of_a_module_keep_their_keys(predict, tmp_path, monkeypatch):
    (tmp_path / "asking.py").write_text(
        "import numpy as np\n"
        "def list_parts():\n    return [{'town': 'Graz'}, {'town': 'Lyon'}]\n"
        "def read_part(part):\n"
        "    for n in range(3):\n"
        "        yield f\"{part['town']}-{n}\", {'town': part['town'], 'rooms': n, 'area': 5.0}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = read(predict(source={"kind": "python", "module": "asking"}, keep=["rooms"]))
    keys = [f"{town}-{n}" for town in ("Graz", "Lyon") for n in range(3)]
    assert rows["source_key"].to_pylist() == keys
    assert rows["rooms"].to_pylist() == [0, 1, 2] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": ["flaat"]}, "keep names a column 'flaat'.*did you mean 'flat'"),
        ({"columns": ["flat", "town", "rooms"]}, "needs the input 'area', and the data has no"),
        ({"model": "file:///nothing/7"}, "file:///nothing/7 is no complete version"),
        ({"dag_id": "houses"}, "no exported version in .*/houses; export a model first"),
        ({"rename": {"flat": "price"}, "keep": ["price"]}, "as an output of predictions is called"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_predicted(
    step, exported, csv, arguments, message
):
    options = {"columns", "rename", "types"}
    source = csv[1] | {n: v for n, v in arguments.items() if n in options}
    rest = {n: v for n, v in arguments.items() if n not in options}
    before = [each.key for each in exported.list()]
    with pytest.raises(FinalError, match=message):
        step(plan, **{"model": "serving", "source": source, **rest})
    assert [each.key for each in exported.list()] == before


def test_a_table_whose_column_has_another_type_than_the_model_takes_is_refused(step, written):
    source = written("flats.parquet", {"town": ["Graz"], "rooms": [3], "area": ["large"]})
    with pytest.raises(FinalError, match=r"column 'area' cannot be cast to float32"):
        step(plan, model="serving", source=source)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": "flat"}, "keep of predict must be a list of columns, got 'flat'"),
        ({"keep": ["flat", "flat"]}, "names a column twice"),
        ({"batch_size": 0}, "batch_size of predict must be a whole number of 1"),
        ({"source": {"url": "s3://x/y"}}, "the source names no kind"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    given = {"model": "serving", "source": {"kind": "csv", "url": "file:///x"}}
    with pytest.raises(SpecError, match=message):
        PredictArguments.from_dict(given | wrong)
