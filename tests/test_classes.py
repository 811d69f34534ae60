"""The names of a classifier's classes, from an export to a prediction."""

from pathlib import Path

import numpy as np
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.serving.classes import Classes, check_classes, classes_in, classes_of, write_classes
from aerotrain.serving.versions import CLASSES

NAN = float("nan")


@pytest.mark.parametrize(
    ("names", "outputs", "predicted"),
    [
        (["no", "yes"], [[0.2], [0.7], [NAN]], ["no", "yes", None]),
        (["no", "yes"], [0.2, 0.7], ["no", "yes"]),
        (["no", "yes"], [[-3.0], [0.2]], ["no", "yes"]),  # logits
        (["no", "yes"], [[0.4, 0.6], [0.9, 0.1]], ["yes", "no"]),
        (["ä", "b", "c"], [[0.1, 0.7, 0.2], [NAN, 0, 1]], ["b", None]),
    ],
)
def test_a_prediction_has_the_name_of_its_class(
    tmp_path: Path, names: list[str], outputs: list[float], predicted: list[str | None]
) -> None:
    values = np.array(outputs, np.float32)
    labels = np.arange(len(values)) % len(names)
    found = classes_of(names, {"predictions": values}, {"predictions": labels}, labels)
    write_classes(tmp_path, found)
    found = classes_in((tmp_path / CLASSES).read_bytes())["predictions"]
    assert found.of(values).to_pylist() == predicted


@pytest.mark.parametrize(
    ("names", "outputs"),
    [
        (["a", "b", "c"], np.zeros((3, 1), np.float32)),
        (["a", "b", "c"], np.zeros((3, 4), np.float32)),
        (["a", "b", "c"], np.zeros((3, 5, 3), np.float32)),
        (["a", "b"], np.zeros((3, 1), np.int64)),
    ],
)
def test_an_output_that_does_not_predict_the_classes_has_none(
    tmp_path: Path, names: list[str], outputs: np.ndarray
) -> None:
    labels = np.zeros(len(outputs), np.int64)
    found = classes_of(names, {"predictions": outputs}, {"predictions": labels}, labels)
    write_classes(tmp_path, found)
    assert not (tmp_path / CLASSES).exists()


def test_only_outputs_whose_targets_are_the_label_predict_its_classes() -> None:
    labels = np.array([0, 1, 1, 0])
    targets = {
        "churn": labels[:, None],
        "one_hot": np.eye(2)[labels],
        "smoothed": 0.1 + 0.8 * labels,
        "price": np.array([3.5, 20.0, 0.2, 7.0]),
        "active": np.array([True, True, False, False]),
        "unknown": np.array(["a", "b", "b", "a"]),
    }
    outputs = {name: np.zeros((4, 1), np.float32) for name in [*targets, "without_target"]}
    outputs["one_hot"] = np.zeros((4, 2), np.float32)
    assert set(classes_of(["no", "yes"], outputs, targets, labels)) == {
        "churn",
        "one_hot",
        "smoothed",
    }


@pytest.mark.parametrize("names", [["yes", "no"], ["no", "maybe"]])
def test_a_model_of_other_classes_is_not_compared(tmp_path: Path, names: list[str]) -> None:
    check_classes("a version without names", tmp_path, names)
    write_classes(tmp_path, {"predictions": Classes(classes=["no", "yes"])})
    check_classes("a version of the same names", tmp_path, ("no", "yes"))
    check_classes("a version, and a label without names", tmp_path, ())
    with pytest.raises(
        FinalError, match="the baseline s3://a/serving/3 predicts the classes no, yes, and"
    ):
        check_classes("the baseline s3://a/serving/3", tmp_path, names)
