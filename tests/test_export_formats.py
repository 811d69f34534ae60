"""Exports in other formats: verified in their own runtimes, judged as the SavedModel, refused."""

import json
import sys
from dataclasses import replace

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.steps import ExportArguments, Format
from aerotrain.data.dataset import Feature, load_dataset
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.serving.formats.conversion import check_installed, convert
from aerotrain.serving.formats.converter import compare, runtime
from aerotrain.serving.servable import Servable
from aerotrain.store import MANIFEST, fetch, open_store
from aerotrain.training.input.batches import first_records, parse
from aerotrain.training.input.record_files import RecordFiles
from aerotrain.training.input.shards import download

pytestmark = pytest.mark.process

FORMATS = ["litert", "onnx"]


@pytest.fixture(scope="module")
def quantized(digits, trained):
    """The URL of a version of the digits in all formats, in integers of 8 bits."""
    arguments = {"model": trained, "data": digits.data, "formats": FORMATS, "quantize": "int8"}
    return export.run(digits.replica("export", "quantized", **arguments, records=None))


@pytest.fixture(scope="module")
def tested(digits):
    """The scans and labels of the test split."""
    dataset = load_dataset(digits.data)
    files = download(digits.data, dataset.splits["test"].shards, digits.folder)
    features = parse(first_records(RecordFiles.of(files), 10_000), dataset.schema)
    return features["image"].numpy(), features["label"].numpy()


def about(version):
    return json.loads(open_store(version).get(MANIFEST))["about"]["formats"]


def test_each_format_predicts_from_raw_columns_in_its_own_runtime(
    digits, trained, tested, tmp_path
):
    digits = replace(digits, folder=tmp_path)
    version = export.run(
        digits.replica("export", "float", model=trained, data=digits.data, formats=FORMATS)
    )
    parent, _, number = version.rpartition("/")
    fetch(open_store(parent), number, tmp_path / number)
    images, labels = tested
    predictions = {
        name: runtime(Format(name), tmp_path / number / Format(name).file).predict(
            {"image": images}
        )["predictions"]
        for name in FORMATS
    }
    assert np.abs(predictions["litert"] - predictions["onnx"]).max() < 1e-4
    assert (predictions["onnx"].argmax(axis=1) == labels).mean() > 0.8
    for name, known in about(version).items():
        assert known["file"] == Format(name).file
        assert known["bytes"] == (tmp_path / number / known["file"]).stat().st_size
        assert (known["numbers"], known["tolerance"], known["same_class"]) == ("float", 1e-4, 1.0)


def test_quantized_formats_are_smaller_and_have_a_known_difference(quantized):
    known = about(quantized)
    assert list(known) == FORMATS
    for each in known.values():
        assert (each["numbers"], each["tolerance"]) == ("int8", 0.05)
        assert 0 < each["mean_difference"] < 0.05
        assert each["mean_difference"] < each["largest_difference"]
        assert each["same_class"] > 0.9
        assert each["records"] > 100


def test_a_tolerance_that_a_quantized_model_does_not_meet_prevents_its_publication(
    digits, trained, tmp_path
):
    digits = replace(digits, folder=tmp_path)
    replica = digits.replica(
        "export",
        "strict",
        model=trained,
        data=digits.data,
        formats=["litert"],
        quantize="int8",
        format_tolerance=1e-6,
    )
    with pytest.raises(FinalError, match=r"'litert'.*differ from.*tolerance of 1e-06"):
        export.run(replica)
    assert [*open_store(digits.store).child("serving").list()] == []


def test_a_gate_holds_for_the_format_that_it_names(digits, quantized, tested):
    judged = {"model": quantized, "data": digits.data, "model_format": "onnx"}
    replica = digits.replica("evaluate", "judged", **judged, thresholds={"accuracy": 0.8})
    found = evaluate.run(replica)
    parent, _, number = quantized.rpartition("/")
    fetch(open_store(parent), number, digits.folder / "quantized")
    images, labels = tested
    model = runtime(Format.ONNX, digits.folder / "quantized" / "model.onnx")
    right = model.predict({"image": images})["predictions"].argmax(axis=1) == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    document = json.loads(open_store(replica.job.prefix).get("metrics.json"))
    assert document["candidate"]["format"] == "onnx"
    assert document["candidate"]["version"] == quantized
    replica = digits.replica("evaluate", "refused", **judged, thresholds={"accuracy": 1.0})
    with pytest.raises(FinalError, match="below the threshold of 1"):
        evaluate.run(replica)


def test_a_gate_for_a_format_that_the_version_does_not_have_is_refused(digits, trained):
    version = export.run(digits.replica("export", "plain", model=trained, data=digits.data))
    asked = {"data": digits.data, "model_format": "litert"}
    with pytest.raises(FinalError, match=r"has no litert: export it with formats=\['litert'\]"):
        evaluate.run(digits.replica("evaluate", "lacking", model=version, **asked))
    with pytest.raises(SpecError, match="judges an exported version: pass what export returned"):
        evaluate.run(digits.replica("evaluate", "trained", model=trained, **asked))


def test_a_format_whose_package_is_missing_is_refused_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    check_installed([Format.LITERT])
    with pytest.raises(FinalError, match=r"needs the package onnxruntime.*aerotrain\[onnx\]"):
        check_installed([Format.ONNX])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"formats": ["lite-rt"]}, "got 'lite-rt', did you mean 'litert'"),
        ({"formats": ["onnx"], "quantize": "int4"}, "quantize of export must be 'int8' or null"),
        ({"formats": ["savedmodel"], "quantize": "int8"}, "the SavedModel is not quantized"),
        ({"formats": ["onnx"], "format_tolerance": -1}, "must be a number of 0 or more or null"),
    ],
)
def test_formats_are_checked_before_anything_starts(given, message):
    with pytest.raises(SpecError, match=message):
        ExportArguments.from_dict({"model": "m", "data": "d", **given})


def test_columns_keep_their_names_in_every_format(tmp_path):
    schema = {name: Feature("float32", ()) for name in ("Monthly Spend", "größe", "a-b", "Age")}
    inputs = keras.Input((len(schema),))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))

    def transform(features):
        return tf.stack([features[name] for name in sorted(schema)], axis=1), 0

    servable = Servable(model, transform, schema)
    examples = tf.constant([example(name, schema) for name in schema])
    saved, check = tmp_path / "saved_model", tmp_path / "check"
    servable.save(saved)
    servable.save_check(examples, check)
    convert([*Format][1:], saved, check, tolerance=None, calibration=None)
    names = {"Monthly_Spend", "gr__e", "a_b", "Age"}
    session = onnxruntime.InferenceSession(str(tmp_path / "saved_model" / "model.onnx"))
    assert {each.name for each in session.get_inputs()} == names


def example(one, schema):
    """A serialized record that has 1 in one column, and 0 in the others."""
    values = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[float(name == one)]))
        for name in schema
    }
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()


def test_a_number_that_becomes_nan_is_told_from_a_difference():
    given = [{"p": np.array([[1.0, np.nan]])}]
    with pytest.raises(FinalError, match="'p' is NaN in 1 of 2 values that are numbers in the tr"):
        compare([{"p": np.ones((1, 2))}], given, 1e30, quantized=False)


def test_a_difference_is_measured_in_the_range_of_an_output():
    expected = [{"p": np.array([[0.0, 10.0], [10.0, 0.0]]), "q": np.array([1.0, 1.0])}]
    given = [{"p": np.array([[1.0, 10.0], [4.0, 6.0]]), "q": np.array([1.0, 1.5])}]
    found = compare(expected, given, 0.5, quantized=True)
    assert (found.records, found.same_class) == (2, 0.5)
    assert found.mean_difference == pytest.approx((0.1 + 0 + 0.6 + 0.6) / 4)
    assert found.largest_difference == pytest.approx(0.6)
    with pytest.raises(FinalError, match="'p', 'q' differ"):
        compare(expected, given, 0.01, quantized=False)
    with pytest.raises(FinalError, match="no output 'q', only p"):
        compare(expected, [{"p": given[0]["p"]}], 0.5, quantized=True)
