"""Reproduction: what a version was made of is named, trained again to equal bits, and compared."""

import json
import time
from pathlib import Path

import pytest

from aerotrain.contract.retention import RetentionPolicy
from aerotrain.retention.plan import make_plan
from aerotrain.standalone import prepare
from aerotrain.standalone.cli import main
from aerotrain.store import open_store
from support.training_fixtures import start_python

MODULE = """
import keras

def transform(features):
    return features["x"], features["label"]

def build_model(hparams):
    layers = [keras.layers.Reshape((1,)), keras.layers.Dense(hparams["units"]),
              keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(hparams["learning_rate"]), loss, metrics=["accuracy"])
    return model
"""


def aerotrain(folder: Path, *words: str) -> str:
    with start_python(["-m", "aerotrain", *words], folder) as process:
        said = process.communicate(timeout=240)[0]
    assert process.returncode == 0, said
    return said


@pytest.mark.process
def test_a_version_is_trained_again_to_equal_bits_and_a_changed_source_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, code = tmp_path / "table.csv", tmp_path / "models"
    rows = [f"{number},{number % 7 / 7},{number % 2}" for number in range(300)]
    table.write_text("\n".join(["id,x,label", *rows]))
    code.mkdir()
    (code / "line.py").write_text(MODULE)
    place = (tmp_path / "store/line").as_uri()
    where = ["--code", str(code), "--store", place, "--run", "first"]
    source = {"kind": "csv", "url": table.as_uri()}
    data = prepare(place, tmp_path / "scratch", source, key=["id"])
    options = ["--model", "line", "--data", data, "--epochs", "2", "--seed", "5", "--deterministic"]
    hparams = ["--hparams", '{"units": 3}', "--learning-rate", "0.01"]
    aerotrain(tmp_path, "train", *where, *options, *hparams)
    model = f"{place}/runs/first/train/model.json"
    aerotrain(tmp_path, "export", *where, "--model", model, "--data", data)

    said = aerotrain(tmp_path, "reproduce", "1", "--store", f"{place}/serving", "--run")
    for line in ("    deterministic: true", "    seed: 5", "    url: " + table.as_uri()):
        assert line in said.splitlines()
    assert "- nothing has changed" in said
    assert "variables are equal to the last bit" in said

    # Retention finds by the same documents what the version was made of.
    plan = make_plan(
        open_store((tmp_path / "store").as_uri()),
        RetentionPolicy(keep_days=0, keep_runs=1),
        time.time() + 9 * 86400,
    )
    assert plan.kept["line/runs/first"] == "needed by line/serving/1"
    assert plan.kept[f"line/datasets/{data.rpartition('/')[2]}"]

    table.write_text("\n".join(["id,x,label", *rows, "300,0.5,1"]))
    (code / "line.py").write_text(MODULE + "CHANGED = True\n")
    capsys.readouterr()
    words = ["reproduce", f"{place}/serving/1", "--json"]
    with pytest.raises(SystemExit):
        main(words)
    document = json.loads(capsys.readouterr().out)
    source_changed, code_changed = document["changes"]
    assert source_changed.startswith("the source has changed: 0 of its 1 partitions are as they")
    assert code_changed == f"of the modules in {code}, line.py changed"
    assert document["training"]["hparams"]["units"] == 3
    assert document["training"]["replicas"] == {"chief": 1}


@pytest.mark.process
def test_weights_that_differ_are_counted_with_the_greatest_difference() -> None:
    from aerotrain.reproduction.retraining import result

    said = result(3, {"dense/bias": 0.25, "dense/kernel": 0.5})
    assert said == "2 of 5 variables differ, by at most 0.5, in dense/kernel"


@pytest.mark.process
@pytest.mark.parametrize(
    ("strategy", "deterministic", "words"),
    [
        ("one_device", True, []),
        ("mirrored", False, ["deterministic was not set"]),
        ("parameter_server", False, ["workers do not wait for each other"]),
    ],
)
def test_why_another_training_differs_depends_on_the_strategy(
    strategy: str, deterministic: bool, words: list[str]
) -> None:
    from aerotrain.reproduction.origin import why_different

    said = list(why_different(strategy, deterministic=deterministic))
    assert [any(word in each for each in said) for word in words] == [True] * len(said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["3"], "'3' is no URL of a version: give one, such as"),
        (["flats", "--store", "file:///x"], "'flats' is no URL of a version"),
    ],
)
def test_what_names_no_version_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", *words])
    assert f"error: {message}" in capsys.readouterr().out
