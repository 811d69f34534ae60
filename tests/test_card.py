"""What the card of a model shows besides verdicts: errors, calibration, warnings."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from aerotrain.evaluation import evaluate
from aerotrain.evaluation.card import card, charts
from aerotrain.evaluation.diagnostics import Diagnostics, leaking_columns
from aerotrain.store import open_store

pytestmark = pytest.mark.process

RANDOM = np.random.default_rng(0)

#: What ``card.json`` holds of an evaluation that has found nothing.
EMPTY = {
    "records": 3,
    "split": "test",
    "metrics": {},
    "intervals": {},
    "by_batches": {},
    "baseline": None,
    "trivial": {},
    "importance": None,
    "data": {"records": 20, "rejected": 0},
    "verdicts": [],
    "failures": [],
    "warnings": [],
    "passed": True,
    "candidate": {},
    "outputs": {},
}


def seen(y, predictions, names=(), blocks=2):
    """What is found of records that come in some blocks."""
    found, first = Diagnostics(names), 0
    label = y["a"] if isinstance(y, dict) else y
    for part in np.array_split(np.arange(len(label)), blocks):
        pick = lambda values, rows=part: values[rows]  # noqa: E731
        block = SimpleNamespace(
            y=tf.nest.map_structure(pick, y) if isinstance(y, dict) else y[part],
            predictions={"candidate": tf.nest.map_structure(pick, predictions)},
            features={"label": label[part].reshape(-1)},
            groups=part,
            first=first,
        )
        list(found.watched([block]))
        first += len(part)
    return found


def shown_of(output):
    return "".join(charts(output))


def test_probabilities_of_a_binary_output_are_counted_by_threshold_and_calibrated():
    p = RANDOM.random((20_000, 1))
    y = (RANDOM.random((20_000, 1)) < p).astype(int)
    found = seen(y, p, ["stays", "leaves"], blocks=7).outputs["predictions"]
    guess = p[:, 0] >= 0.5
    assert found["confusion"] == [
        [int((~guess & (y[:, 0] == label)).sum()), int((guess & (y[:, 0] == label)).sum())]
        for label in (0, 1)
    ]
    (at,) = (each for each in found["thresholds"] if each["threshold"] == 0.8)
    above = p[:, 0] >= 0.8
    assert at["precision"] == pytest.approx(y[above].mean())
    assert at["recall"] == pytest.approx(y[above].sum() / y.sum())
    assert found["calibration"]["expected_calibration_error"] < 0.02
    overconfident = seen(y, np.round(p)).outputs["predictions"]["calibration"]
    assert overconfident["expected_calibration_error"] == pytest.approx(0.25, abs=0.02)


def test_the_names_of_the_label_are_those_of_its_output_alone():
    y = {"a": np.arange(100) % 2, "b": np.arange(100) // 50}
    outputs = seen(y, {name: RANDOM.random((100, 1)) for name in y}, ["no", "yes"]).outputs
    shown = {name: each["classes"] for name, each in outputs.items()}
    assert shown == {"a": ["no", "yes"], "b": ["0", "1"]}


def test_logits_show_the_same_as_their_probabilities():
    logits = RANDOM.normal(size=(500, 3)) * 3
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = RANDOM.integers(0, 3, 500)
    _check_same(seen(y, logits), seen(y, p))
    _check_same(seen(np.eye(3)[y], p), seen(y, p))
    binary = RANDOM.normal(size=(500, 1)) * 4
    _check_same(seen(y % 2, binary), seen(y % 2, 1 / (1 + np.exp(-binary))))


def _check_same(one, other):
    one, other = one.outputs["predictions"], other.outputs["predictions"]
    assert one["confusion"] == other["confusion"]
    errors = [each["calibration"]["expected_calibration_error"] for each in (one, other)]
    assert errors[0] == pytest.approx(errors[1])


def test_a_number_has_residuals():
    y = RANDOM.normal(size=(5000, 1)) * 10
    predicted = y + RANDOM.normal(size=y.shape)
    output = seen(y, predicted, blocks=5).outputs["predictions"]
    assert len(output["sample"]) == 2000
    assert output["residual_quantiles"]["0.95"] == pytest.approx(1.64, abs=0.2)


@pytest.mark.parametrize(
    ("y", "predicted", "warning"),
    [
        (np.arange(100) % 2, np.full((100, 1), 0.3), "never predicts classes .*: 1 \\(50\\)"),
        (np.arange(100) % 2, np.full((100, 1), 0.3), "is the same for all records"),
        (np.arange(90) % 3, np.eye(3)[np.arange(90) % 2], r"never predicts .*: 2 \(30\)"),
        (np.arange(90) % 3, np.full((90, 3), [0.3, 0.6, 0.1]), "is the same for all records"),
        (RANDOM.normal(size=50), np.full((50, 1), 2.5), "is the same for all records"),
    ],
)
def test_predictions_that_are_constant_or_lack_a_class_are_warned_of(y, predicted, warning):
    assert any(re.search(warning, each) for each in seen(y, predicted).warnings())
    assert seen(y, RANDOM.random(predicted.shape)).warnings() == []


@pytest.mark.parametrize(
    ("y", "predicted"),
    [
        ((RANDOM.random(1000) < 0.002).astype(int), RANDOM.uniform(0.001, 0.004, (1000, 1))),
        (np.zeros(90, int), np.array([[0.5, 0.3, 0.2]]) + RANDOM.random((90, 1)) * [[0.01, 0, 0]]),
    ],
)
def test_small_probabilities_that_differ_are_not_called_the_same(y, predicted):
    assert seen(y, predicted, blocks=5).warnings() == []


def test_outputs_that_have_no_picture_are_left_out():
    y = {"a": RANDOM.random((20, 5)), "b": RANDOM.integers(0, 2, (20, 1))}
    predicted = {"a": RANDOM.random((20, 5)), "b": RANDOM.random((20, 1)), "c": np.zeros((20, 2))}
    block = SimpleNamespace(y=y, predictions={"candidate": predicted}, groups=range(20), first=0)
    found = Diagnostics()
    list(found.watched([block]))
    assert list(found.outputs) == ["b"]


def test_a_column_that_gives_the_label_away_is_named_and_one_that_helps_is_not():
    y = RANDOM.integers(0, 4, 4000)
    columns = {
        "copy": y * 7 + 3,
        "code": np.array([b"w", b"x", b"y", b"z"], object)[y],
        "shifted": y + RANDOM.uniform(0, 0.9, 4000),
        "helpful": np.where(RANDOM.random(4000) < 0.8, y, 0),
        "id": np.arange(4000),
        "name": np.array([f"n{each}".encode() for each in range(4000)], object),
    }
    named = [each.split("'")[1] for each in leaking_columns(columns, y)]
    assert named == ["copy", "code", "shifted"]
    rare = (RANDOM.random(4000) < 0.005).astype(int)  # nearly all are of one class
    assert leaking_columns({"noise": RANDOM.random(4000)}, rare) == []
    price = RANDOM.normal(size=(4000, 1)) * 100
    given = {"net": price[:, 0] * 0.8, "area": price[:, 0] + RANDOM.normal(size=4000) * 50}
    assert [each.split("'")[1] for each in leaking_columns(given, price)] == ["net"]


def test_each_class_has_its_precision_recall_and_f1():
    y = np.repeat([0, 1, 2], [6, 3, 1])
    guesses = np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 0])
    output = seen(y, np.eye(4)[guesses]).outputs["predictions"]
    page = shown_of(output)
    assert "<td>0</td><td>0.600</td><td>0.500</td><td>0.545</td><td>6</td>" in page
    assert "<td>1</td><td>0.400</td><td>0.667</td><td>0.500</td><td>3</td>" in page
    assert "<td>2</td><td>–</td><td>0.000</td><td>0.000</td><td>1</td>" in page
    assert "<td>3</td><td>–</td><td>–</td><td>–</td><td>0</td>" in page
    assert "3<small>50%</small>" in page


def test_long_lists_say_how_long_they_are():
    numbers = seen(RANDOM.normal(size=(5000, 1)), RANDOM.normal(size=(5000, 1)))
    assert "A random sample of 2,000 of 5,000 records" in shown_of(numbers.outputs["predictions"])


def test_the_card_of_a_training_shows_its_pictures_and_nothing_from_outside(digits, trained):
    replica = digits.replica("evaluate", "pictured", model=trained, data=digits.data)
    evaluate.run(replica)
    store = open_store(replica.job.prefix)
    data = json.loads(store.get("card.json"))
    records = data["records"]
    assert sum(map(sum, data["outputs"]["predictions"]["confusion"])) == records
    page = store.get("card.html").decode()
    assert "Calibration" in page
    assert not re.findall("https?:|src=", page)


def test_names_and_texts_of_a_card_are_no_markup():
    hostile = "<script>alert(1)</script>"
    document = {
        **EMPTY,
        "warnings": [hostile],
        "outputs": {
            hostile: seen(np.arange(60) % 3, RANDOM.random((60, 3)), [hostile, "b", "c"]).outputs[
                "predictions"
            ]
        },
    }
    page = card(document, hostile)
    assert "<script" not in page
