"""Exports in other formats: verified in their own runtimes, judged as the SavedModel, refused."""

import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.steps import ExportArguments, Format
from aerotrain.data.dataset import Feature, load_dataset
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.serving.formats import check_installed, compare, convert, predictor
from aerotrain.serving.servable import Servable
from aerotrain.serving.served import Served
from aerotrain.store import MANIFEST, fetch, open_store
from aerotrain.training.input.batches import RecordFiles, first_records, parse
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


def test_quantized_formats_have_a_known_difference(quantized):
    known = json.loads(open_store(quantized).get(MANIFEST))["about"]["formats"]
    assert list(known) == FORMATS
    for name, each in known.items():
        assert (each["file"], each["bytes"] > 0) == (Format(name).file, True)
        assert (each["numbers"], each["tolerance"]) == ("int8", 0.05)
        assert 0 < each["mean_difference"] < 0.05
        assert each["mean_difference"] < each["largest_difference"]
        assert each["same_class"] > 0.9
        assert each["records"] > 100


def test_a_gate_holds_for_the_format_that_it_names(digits, quantized, tested):
    judged = {"model": quantized, "data": digits.data, "model_format": "onnx"}
    replica = digits.replica("evaluate", "judged", **judged, thresholds={"accuracy": 0.8})
    found = evaluate.run(replica)
    parent, _, number = quantized.rpartition("/")
    fetch(open_store(parent), number, digits.folder / "quantized")
    images, labels = tested
    predict = predictor(Format.ONNX, digits.folder / "quantized" / "model.onnx")
    right = predict({"image": images})["predictions"].argmax(axis=1) == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    document = json.loads(open_store(replica.job.prefix).get("metrics.json"))
    assert document["candidate"]["format"] == "onnx"
    assert document["candidate"]["version"] == quantized
    replica = digits.replica("evaluate", "refused", **judged, thresholds={"accuracy": 1.0})
    with pytest.raises(FinalError, match="below the threshold of 1"):
        evaluate.run(replica)


def test_a_gate_for_a_format_that_the_version_does_not_have_is_refused(digits, trained, tmp_path):
    asked = {"data": digits.data, "model_format": "litert"}
    with pytest.raises(SpecError, match="judges an exported version: pass what export returned"):
        evaluate.run(digits.replica("evaluate", "trained", model=trained, **asked))
    schema = {"x": Feature("float32")}
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    Servable(model, lambda features: (features["x"][:, None], 0), schema).save(tmp_path)
    with pytest.raises(FinalError, match=r"has no litert: export it with formats=\['litert'\]"):
        Served("the version", tmp_path, schema, Format.LITERT)


def test_a_format_whose_package_is_missing_is_refused_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    check_installed([Format.LITERT])
    with pytest.raises(FinalError, match=r"needs the package onnxruntime.*aerotrain\[onnx\]"):
        check_installed([Format.ONNX])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"formats": ["lite-rt"]}, "got 'lite-rt', did you mean 'litert'"),
        ({"formats": ["savedmodel"], "quantize": "int8"}, "the SavedModel is not quantized"),
    ],
)
def test_formats_are_checked_before_anything_starts(given, message):
    with pytest.raises(SpecError, match=message):
        ExportArguments.from_dict({"model": "m", "data": "d", **given})


def test_onnx_predicts_from_columns_of_any_name_in_its_own_runtime(tmp_path):
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
    found = convert([Format.ONNX], saved, check, tolerance=None, calibration=None)
    names = ["Age", "Monthly_Spend", "a_b", "gr__e"]
    given = dict(zip(names, np.eye(4, dtype=np.float32), strict=True))
    expected = model(np.eye(4)).numpy()  # each record has 1 in one column
    predictions = predictor(Format.ONNX, saved / Format.ONNX.file)(given)["predictions"]
    np.testing.assert_allclose(predictions, expected, atol=1e-5)
    about = found["onnx"]
    assert (about["numbers"], about["tolerance"], about["same_class"]) == ("float", 1e-4, 1.0)


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
    assert (found["records"], found["same_class"]) == (2, 0.5)
    assert found["mean_difference"] == pytest.approx((0.1 + 0 + 0.6 + 0.6) / 4)
    assert found["largest_difference"] == pytest.approx(0.6)
    with pytest.raises(
        FinalError, match=r"'p', 'q' differ from .* more than the tolerance of 0.01"
    ):
        compare(expected, given, 0.01, quantized=False)
    with pytest.raises(FinalError, match="no output 'q', only p"):
        compare(expected, [{"p": given[0]["p"]}], 0.5, quantized=True)
