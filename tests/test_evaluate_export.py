"""From a trained model to a verified, evaluated and published one."""

import json
import logging
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PLAN
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.contract.steps import ExportArguments
from aerotrain.data.dataset import Feature, load_dataset
from aerotrain.data.records.columns import stacked
from aerotrain.data.records.encoding import encode
from aerotrain.evaluation import evaluate
from aerotrain.retention import make_plan
from aerotrain.serving import export
from aerotrain.serving.servable import Servable
from aerotrain.serving.signature import input_names
from aerotrain.serving.verify import read_part, verify, write_part
from aerotrain.serving.versions import claim_version
from aerotrain.standalone.cli import main
from aerotrain.store import MANIFEST, open_store
from aerotrain.training.input.batches import RecordFiles, batch_spec, first_records, parse
from aerotrain.training.input.shards import download
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run as train

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def scans(digits):
    """Every test record, serialized, and its features."""
    dataset = load_dataset(digits.data)
    files = download(digits.data, dataset.splits["test"].shards, digits.folder)
    serialized = first_records(RecordFiles.of(files), 10_000)
    return serialized, parse(serialized, dataset.schema)


@pytest.fixture(scope="module")
def predictions(digits, trained, scans, tmp_path_factory):
    """The trained model's predictions for every test record."""
    user = UserCode.load("small")
    spec = batch_spec(load_dataset(digits.data).schema, user.transform)
    model = ModelManifest.load(trained).restore(user, spec, tmp_path_factory.mktemp("model"))
    return model(user.transform(scans[1])[0], training=False).numpy()


def test_every_record_counts_once(digits, trained, scans, predictions):
    replica = digits.replica("evaluate", "by-32", model=trained, data=digits.data, batch_size=32)
    right = predictions.argmax(axis=1) == scans[1]["label"].numpy()
    assert evaluate.run(replica)["accuracy"] == pytest.approx(right.mean())
    document = json.loads(open_store(replica.job.prefix).get("metrics.json"))
    assert (document["split"], document["records"]) == ("test", len(right))
    assert document["passed"] is True
    assert document["metrics"]["accuracy"] == pytest.approx(right.mean())


def test_a_model_below_a_threshold_fails_the_evaluation_and_its_metrics_are_kept(digits, trained):
    thresholds = {"accuracy": 1.0}
    replica = digits.replica(
        "evaluate", "short", model=trained, data=digits.data, thresholds=thresholds
    )
    with pytest.raises(FinalError, match=r"accuracy is 0\.9\d+, below the threshold of 1"):
        evaluate.run(replica)
    document = json.loads(open_store(replica.job.prefix).get("metrics.json"))
    assert document["passed"] is False
    assert document["thresholds"] == thresholds
    assert document["metrics"]["accuracy"] > 0.8
    assert b"below the threshold of 1" in open_store(replica.job.prefix).get("card.html")
    low, high = document["intervals"]["accuracy"]
    assert 0.8 < low < document["metrics"]["accuracy"] < high <= 1


def test_a_model_is_compared_with_the_newest_version_that_is_exported(
    digits, trained, tmp_path, capsys
):
    digits = replace(digits, folder=tmp_path)  # a store in which nothing is exported
    weak = train(digits.replica("train", "weak", model="small", data=digits.data, epochs=1))
    rule = {"kind": "no_worse", "metric": "accuracy", "slices": ["label"], "least": 20}
    given = {"data": digits.data, "gate": [rule]}

    def evaluated(run, model, **arguments):
        replica = digits.replica("evaluate", run, model=model, **given, **arguments)
        found = evaluate.run(replica)
        return found, json.loads(open_store(replica.job.prefix).get("metrics.json"))

    _, first = evaluated("none-accepted", trained, first_run="accept")
    assert (first["baseline"], first["verdicts"]) == (None, [])
    assert "to compare with, so this rule was not applied: accuracy" in first["warnings"][-1]
    version = export.run(digits.replica("export", "compared", model=trained, data=digits.data))
    _, same = evaluated("same", trained, first_run="refuse")
    assert same["baseline"]["url"] == version
    assert same["baseline"]["metrics"] == pytest.approx(same["metrics"])
    assert len(same["verdicts"]) == 11
    assert {each["verdict"] for each in same["verdicts"]} <= {"pass", "too few records"}
    skipped, document = evaluated("skipped", weak, first_run="refuse", on_fail="skip")
    assert re.search(
        r"accuracy is 0\.\d+, and 0\.9\d+ of the baseline: worse by", skipped["skipped"]
    )
    assert f"skipped: {skipped['skipped']}\n" in capsys.readouterr().out
    assert document["passed"] is False
    with pytest.raises(FinalError, match=r"the baseline file:.*/7 cannot be loaded: "):
        evaluated("no-version", trained, baseline=f"{version.rpartition('/')[0]}/7")


def test_inputs_of_an_exported_model_have_names_that_a_signature_accepts(tmp_path, caplog):
    columns = ("Monthly Spend", "Monthly_Spend", "größe", "a-b", "x:y", "_z", "Age", "age")
    columns += ("class", "c\\d", "e/f>g", "address.city", "2nd")
    schema = {name: Feature("float32", ()) for name in columns}
    names = input_names(schema)
    assert names == {
        **{name: name for name in ("Age", "Monthly_Spend")},
        "a-b": "a_b",
        "e/f>g": "e_f_g",
        "2nd": "x2nd",
        "age": "age_1",
        "Monthly Spend": "Monthly_Spend_1",
        "_z": "x_z",
        "größe": "gr__e",
        "x:y": "x_y",
        "class": "class_",
        "c\\d": "c_d",
        "address.city": "address_city",
    }
    inputs = keras.Input((len(schema),))
    model = keras.Model(inputs, keras.ops.sum(inputs, axis=1))
    weights = dict(zip(sorted(schema), 10.0 ** np.arange(len(schema)), strict=True))

    def transform(features):
        return tf.stack([features[name] * weights[name] for name in sorted(schema)], axis=1), 0

    servable = Servable(model, transform, schema)
    servable.save(tmp_path)
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == set(names.values())
    for name, weight in weights.items():
        given = {names[each]: tf.constant([float(each == name)]) for each in schema}
        assert signature(**given)["predictions"].numpy() == pytest.approx([weight])


def test_records_are_grouped_by_single_values_only(digits, trained):
    for group, reason in (("image", "has values of shape"), ("lable", "did you mean 'label'")):
        replica = digits.replica("evaluate", group, model=trained, data=digits.data, group=group)
        with pytest.raises(FinalError, match=reason):
            evaluate.run(replica)


#: A user's program that has TensorFlow and the model, but neither Keras nor this project.
USE = """
import sys
for name in ("keras", "tf_keras", "aerotrain"):
    sys.modules[name] = None
import numpy as np, tensorflow as tf
signatures = tf.saved_model.load(sys.argv[1]).signatures
images = tf.io.parse_tensor(open("images", "rb").read(), tf.uint8)
examples = tf.io.parse_tensor(open("examples", "rb").read(), tf.string)
np.savez(
    "given.npz",
    tensors=signatures["serving_default"](image=images)["predictions"],
    examples=signatures["serialized_examples"](examples=examples)["predictions"],
)
"""


@pytest.fixture(scope="module")
def died(digits, trained):
    """The version of an attempt of the export that was killed."""
    job = digits.replica("export", "exported", model=trained, data=digits.data).job
    serving = open_store(digits.store).child("serving")
    description = export.description(job, ExportArguments.from_dict(job.arguments))
    version = claim_version(serving, description)
    serving.put(f"{version}/variables/variables.index", b"half of it")
    return version


@pytest.fixture(scope="module")
def exported(digits, trained, died):
    """The URL of the exported model."""
    return export.run(digits.replica("export", "exported", model=trained, data=digits.data))


def test_an_exported_model_needs_no_keras_no_label_and_not_this_project(
    exported, scans, predictions, tmp_path
):
    serialized, features = scans
    (tmp_path / "images").write_bytes(tf.io.serialize_tensor(features["image"]).numpy())
    unlabelled = [without_label(each) for each in serialized.numpy()]
    (tmp_path / "examples").write_bytes(tf.io.serialize_tensor(unlabelled).numpy())
    words = [sys.executable, "-I", "-c", USE, exported.removeprefix("file://")]
    subprocess.run(words, cwd=tmp_path, check=True)
    given = np.load(tmp_path / "given.npz")
    np.testing.assert_allclose(given["tensors"], predictions, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given["examples"], predictions, rtol=1e-5, atol=1e-5)


def without_label(serialized):
    example = tf.train.Example.FromString(serialized)
    del example.features.feature["label"]
    return example.SerializeToString()


def test_a_retried_export_finds_the_published_model_and_does_not_change_it(
    digits, trained, exported
):
    before = {each.key: each.etag for each in open_store(exported.rpartition("/")[0]).list()}
    again = export.run(digits.replica("export", "exported", model=trained, data=digits.data))
    assert again == exported
    after = {each.key: each.etag for each in open_store(exported.rpartition("/")[0]).list()}
    assert after == before
    manifest = json.loads(open_store(exported).get("manifest.json"))
    assert {"saved_model.pb", "variables/variables.index"} <= manifest["files"].keys()
    assert manifest["about"] == {"data": digits.data, "model": trained, "tolerance": 1e-5}


def test_an_export_has_the_model_in_keras_own_format(exported, scans, predictions, tmp_path):
    file = tmp_path / export.KERAS_FILE
    open_store(exported).download(export.KERAS_FILE, file)
    loaded = keras.saving.load_model(file)
    assert not loaded.compiled
    inputs = UserCode.load("small").transform(scans[1])[0]
    np.testing.assert_allclose(loaded(inputs, training=False), predictions, rtol=1e-5, atol=1e-5)


def test_a_model_that_keras_cannot_load_again_has_no_such_file(tmp_path, capsys):
    class Scaled(keras.layers.Layer):
        def __init__(self, by):  # and no get_config
            super().__init__()
            self.by = by

        def call(self, x):
            return x * self.by

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), Scaled(3)])
    export.save_keras_file(model, tmp_path / "model.keras")
    assert not list(tmp_path.iterdir())
    assert "the export has no model.keras, because Keras cannot load it" in capsys.readouterr().out


def test_what_a_version_was_made_of_is_printed_and_is_what_retention_keeps(
    digits, trained, exported, capsys, tmp_path
):
    number = exported.rpartition("/")[2]
    words = ["origin", number, "--store", f"{digits.store}/serving"]
    with pytest.raises(SystemExit):
        main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["training"]["model"]) == (exported, trained)
    assert document["training"]["recipe"]["replicas"][0]["role"] == "chief"
    assert document["data"]["url"] == digits.data
    with pytest.raises(SystemExit):
        main(words)
    said = capsys.readouterr().out.splitlines()
    assert {"  module: small", f"  url: {digits.data}"} <= set(said)
    for wrong in (["3"], ["flats", "--store", "file:///x"]):
        with pytest.raises(SystemExit):
            main(["origin", *wrong])
        assert "is no URL of a version: give one, such as" in capsys.readouterr().out
    store = open_store(tmp_path.as_uri())  # with copies of the documents, and what is newer
    documents = (
        f"{exported}/{MANIFEST}",
        trained,
        *(f"{digits.data}/{n}" for n in (PLAN, MANIFEST)),
    )
    keys = [f"store/{each.partition('/store/')[2]}" for each in documents]
    for key, url in zip(keys, documents, strict=True):
        store.put(key, Path(url.removeprefix("file://")).read_bytes())
    for key in ("runs/newer/train/job.json", f"datasets/{'f' * 20}/{MANIFEST}"):
        store.put(f"store/{key}", b"{}")
    least = RetentionPolicy(keep_days=0, keep_runs=1)
    version, run, data = ("/".join(key.split("/")[:3]) for key in keys[:3])
    kept = make_plan(store, least, time.time() + 9 * 86400).kept
    assert kept[run] == kept[data] == f"needed by {version}"


def test_a_retry_of_an_export_that_was_killed_uses_another_version(exported, died):
    folder, _, version = exported.rpartition("/")
    assert int(version) == died + 1
    left = [each.key for each in open_store(folder).list(str(died))]
    assert left == [f"{died}/variables/variables.index"]


def test_a_retrained_model_is_exported_as_another_version(digits, trained, tmp_path):
    folder, _, key = trained.rpartition("/")
    document = json.loads(open_store(folder).get(key))
    store = open_store(tmp_path.as_uri())
    url = f"{store.url}/model.json"
    job = digits.replica("export", "again", model=url, data=digits.data).job

    def described(weights, **changed):
        store.put("weights/manifest.json", weights)
        model = {**document, "checkpoint": f"{store.url}/weights", **changed}
        store.put("model.json", json.dumps(model).encode())
        return export.description(job, ExportArguments.from_dict(job.arguments))

    first = described(b"first")
    assert described(b"first") == first
    assert described(b"second") != first
    assert described(b"first", step=document["step"] + 1) != first


class Noisy(keras.layers.Layer):
    """Adds what ``noise`` makes of a shape, when it predicts, too."""

    def __init__(self, noise, seeds=None):
        super().__init__()
        self.noise, self.seeds = noise, seeds

    def call(self, x):
        return x + self.noise(keras.ops.shape(x))


def noisy(noise, seeds=None):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8)(inputs), training=True)
    return Servable(
        keras.Model(inputs, Noisy(noise, seeds)(hidden)),
        lambda features: (features["x"], features["label"]),
        {"x": Feature(dtype="float32", shape=(4,)), "label": Feature(dtype="int64", shape=())},
    )


def examples(count):
    schema = {"x": Feature("float32", (4,)), "label": Feature("int64")}
    rows = [{"x": np.full(4, n, np.float32), "label": np.int64(n)} for n in range(1, count + 1)]
    return tf.constant(encode(stacked(rows, schema)).to_pylist())


def test_a_model_that_draws_numbers_from_keras_seeds_is_verified_with_the_same_seeds(tmp_path):
    seeds = keras.random.SeedGenerator(3)
    servable = noisy(lambda shape: keras.random.normal(shape, seed=seeds), seeds)
    servable.save(tmp_path / "saved")
    servable.save_check(examples(5), tmp_path / "check")
    export.verify(tmp_path / "saved", tmp_path / "check")


def test_an_export_whose_predictions_differ_from_call_to_call_is_rejected_with_a_way_out(tmp_path):
    with pytest.raises(FinalError, match=r"predictions \(predictions\).*with a SeedGenerator"):
        noisy(tf.random.normal).save_check(examples(5), tmp_path / "check")


def test_all_records_of_the_split_are_compared_where_that_is_asked_for(
    digits, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(export, "_CHECKED_AT_ONCE", 100)
    arguments = ExportArguments(model=trained, data=digits.data, records=None, keras_file=False)
    saved, check = tmp_path / "saved", tmp_path / "check"
    export.write(digits.replica("export", "all-records"), arguments, saved, check)
    first, *_, last = parts = sorted(check.iterdir())
    assert len(parts) == -(-load_dataset(digits.data).splits["test"].records // 100)
    assert verify(saved, check) == []
    write_part(last, **{**read_part(last), "outputs": read_part(first)["outputs"]})
    assert verify(saved, check) == [
        f"{signature}'s output 'predictions' differs from the trained model's"
        for signature in ("serving_default", "serialized_examples")
    ]


def test_records_beyond_a_bound_of_disk_are_compared_and_removed_before_the_next_are_read(
    digits, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(export, "_CHECKED_AT_ONCE", 200)
    monkeypatch.setattr(export, "_CHECK_BYTES", 1)
    arguments = ExportArguments(model=trained, data=digits.data, records=400, keras_file=False)
    replica = digits.replica("export", "bounded-records")
    export.write(replica, replace(arguments, split="train"), tmp_path / "saved", tmp_path / "check")
    assert [part.name for part in (tmp_path / "check").iterdir()] == ["000000"]
    assert not list(replica.scratch.rglob("00000?"))
    assert capsys.readouterr().out.count("both signatures give the same predictions") == 2
