"""What the card of a model shows besides verdicts: errors, calibration, worst records, warnings."""

import hashlib
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from aerotrain.data.dataset import Feature, Shard
from aerotrain.data.records.columns import Column, stacked
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import encoded_frames
from aerotrain.evaluation import evaluate
from aerotrain.evaluation.card import card, charts
from aerotrain.evaluation.diagnostics import Diagnostics
from aerotrain.evaluation.examined import described, records_at
from aerotrain.evaluation.leakage import leaking_columns
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
    "verdicts": [],
    "failures": [],
    "warnings": [],
    "passed": True,
    "candidate": {},
    "outputs": {},
    "worst": {},
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
            first=first,
        )
        assert list(found.watched([block])) == [block]
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


def test_the_worst_records_are_those_of_all_blocks_with_what_was_predicted():
    y, p = np.zeros(100, int), np.full((100, 2), [0.9, 0.1])
    p[[17, 80]] = [[0.2, 0.8], [0.05, 0.95]]
    (worst, second, third, *_) = seen(y, p, ["cat", "dog"]).worst["predictions"]
    assert (worst.place, worst.target, worst.predicted) == (80, "cat", "dog: 95.0%")
    assert (second.place, third.place) == (17, 0)


def test_a_number_has_residuals_and_its_worst_records():
    y = RANDOM.normal(size=(5000, 1)) * 10
    predicted = y + RANDOM.normal(size=y.shape)
    predicted[4321] = y[4321] + 50
    found = seen(y, predicted, blocks=5)
    output = found.outputs["predictions"]
    assert len(output["sample"]) == 2000
    assert output["residual_quantiles"]["0.95"] == pytest.approx(1.64, abs=0.2)
    assert found.worst["predictions"][0].place == 4321


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
    blocks = SimpleNamespace(y=y, predictions={"candidate": predicted}, first=0)
    found = Diagnostics()
    list(found.watched([blocks]))
    assert list(found.outputs) == ["b"]


def test_long_names_of_slices_that_differ_in_their_last_column_are_told_apart():
    number = {"value": 0.5, "interval": (0.4, 0.6), "difference": None, "records": 200}
    number["detectable"] = None
    verdicts = [
        {"rule": "auc at least 0.4", "bound": 0.4, "verdict": "pass", "slice": name, **number}
        for name in (f"town=L{'o' * 300}ng, plan={plan}" for plan in ("basic", "pro"))
    ]
    page = card({**EMPTY, "verdicts": verdicts}, "a run")
    assert [page.count(f"ng, plan={plan}</bdi>") for plan in ("basic", "pro")] == [1, 1]
    assert "o" * 130 not in page


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


def test_records_are_found_by_their_places_in_several_shards(tmp_path):
    shards = []
    for number, count in enumerate([3, 0, 4, 5]):
        values = Column(Feature("int64"), np.arange(count) + 10 * number)
        content = encoded_frames({"n": values}).content if count else b""
        sha256 = hashlib.sha256(content).hexdigest()
        file = f"{number}.tfrecord"
        shards.append(Shard(file=file, records=count, bytes=len(content), sha256=sha256))
        if number != 2:  # it has no record that is shown, so it is not downloaded
            (tmp_path / file).write_bytes(content)
    found = records_at(tmp_path.as_uri(), shards, {1, 7, 11}, tmp_path)
    schema = {"n": Feature("int64")}
    shown = {place: described(record, schema, {}) for place, record in found.items()}
    assert shown == {1: {"n": "1"}, 7: {"n": "30"}, 11: {"n": "34"}}


def test_dates_of_a_record_are_shown_as_dates():
    schema = {"day": Feature("int32"), "at": Feature("int64", (2,)), "n": Feature("int64")}
    at = np.array([0, 1_600_000_000 * 10**6])
    [record] = encode(stacked([{"day": np.int32(19_000), "at": at, "n": np.int64(7)}], schema))
    shown = described(record.as_py(), schema, {}, {"day": "days", "at": "microseconds", "n": ""})
    assert shown == {"day": "2022-01-08", "at": "1970-01-01, 2020-09-13 12:26:40", "n": "7"}


def test_dots_of_a_picture_are_within_its_frame():
    y = RANDOM.permutation(np.arange(1000) % 2)
    page = shown_of(seen(y, y[:, None] * 1.0).outputs["predictions"])
    [(begin, side)] = re.findall(r'viewBox="(\S+) \S+ (\S+) \S+" role="img"><title>Cali', page)
    least, greatest = float(begin), float(begin) + float(side)
    dots = re.findall(r'<circle cx="(\S+)" cy="(\S+)" r="(\S+)"', page)
    assert len(dots) == 2
    for x, y, radius in ([float(each) for each in dot] for dot in dots):
        assert all(least < each - radius < each + radius < greatest for each in (x, y))


def test_each_picture_has_a_scale_on_both_axes():
    y = RANDOM.permutation(np.arange(1000) % 2)
    numbers = RANDOM.normal(size=(500, 1))
    page = shown_of(seen(y, y[:, None] * 1.0).outputs["predictions"])
    page += shown_of(seen(numbers, numbers).outputs["predictions"])
    upwards = re.findall(r'class="up-name">(.*?)</div><div class="up">(.*?)</div>', page)
    across = re.findall(r'class="across">(.*?)</div><div class="across-name">(.*?)</div>', page)
    shares = "<span>0</span><span>0.5</span><span>1</span>"
    assert upwards[:2] == [("observed share", shares), ("share", shares)]
    assert across[:2] == [(shares, "predicted probability"), (shares, "threshold of 1")]
    assert (upwards[2][0], across[2][1]) == ("prediction", "target")
    assert upwards[2][1] == across[2][0]  # the least and the greatest number


def test_each_table_scrolls_in_its_own_box():
    numbers = RANDOM.normal(size=(5000, 1))
    many = seen(RANDOM.integers(0, 60, 9000), RANDOM.random((9000, 60)))
    outputs = [each.outputs["predictions"] for each in (seen(numbers, -numbers), many)]
    page = card(
        {**EMPTY, "metrics": {"a": 1.0}, "outputs": dict(zip("ab", outputs, strict=True))}, "run"
    )
    assert page.count("<table") == len(re.findall(r'<div class="table[^>]*><table', page)) == 4


def test_long_lists_say_how_long_they_are():
    numbers = seen(RANDOM.normal(size=(5000, 1)), RANDOM.normal(size=(5000, 1)))
    assert "A random sample of 2,000 of 5,000 records" in shown_of(numbers.outputs["predictions"])
    many = seen(RANDOM.integers(0, 60, 9000), RANDOM.random((9000, 60)))
    assert "The 30 most frequent confusions" in shown_of(many.outputs["predictions"])
    page = card({**EMPTY, "failures": [f"reason {each}" for each in range(100)]}, "run")
    assert "<summary>88 more of 100</summary>" in page
    assert all(f"reason {each}<" in page for each in range(100))


def test_the_card_of_a_training_shows_its_pictures_and_nothing_from_outside(digits, trained):
    replica = digits.replica("evaluate", "pictured", model=trained, data=digits.data)
    evaluate.run(replica)
    store = open_store(replica.job.prefix)
    data = json.loads(store.get("card.json"))
    records = data["records"]
    assert sum(map(sum, data["outputs"]["predictions"]["confusion"])) == records
    worst = data["worst"]["predictions"]
    assert [each["error"] for each in worst] == sorted((e["error"] for e in worst), reverse=True)
    assert all(each["features"]["image"]["picture"].startswith("iVBOR") for each in worst)
    assert all(each["features"]["label"] == each["target"] for each in worst)
    page = store.get("card.html").decode()
    assert page.count("<img") == len(worst) == 10
    assert "Calibration" in page
    assert set(re.findall(r'src="(\w+:)', page)) == {"data:"}


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
        "worst": {
            hostile: [
                {"target": hostile, "predicted": hostile, "features": {hostile: "data:image/png;"}}
            ]
        },
    }
    page = card(document, hostile)
    assert "<script" not in page
    assert "<img" not in page
