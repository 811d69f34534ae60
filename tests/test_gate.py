"""The gate: rules for metrics of a model, by slice and compared with a baseline."""

import re
from dataclasses import asdict, replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.gate import Rule
from aerotrain.contract.steps import EvaluateArguments
from aerotrain.data.dataset import Feature
from aerotrain.data.records.columns import stacked
from aerotrain.data.records.framing import encoded_frames
from aerotrain.evaluation import evaluate
from aerotrain.evaluation.card import card
from aerotrain.evaluation.diagnostics import copied, leaking_columns
from aerotrain.evaluation.gate import (
    Gate,
    Outcome,
    check_rules,
)
from aerotrain.evaluation.intervals import GROUPS, Estimate, estimate, holm, samples
from aerotrain.evaluation.records import (
    BASELINE,
    CANDIDATE,
    TRIVIAL,
    Block,
    Predictor,
    content_of,
)
from aerotrain.evaluation.slices import slicing_of
from aerotrain.evaluation.trivial import with_trivial
from aerotrain.evaluation.verdicts import shown, unjudged
from aerotrain.training.input.batches import RecordFiles

pytestmark = pytest.mark.process

SCHEMA = {
    "country": Feature("string"),
    "age": Feature("int64"),
    "income": Feature("float32"),
    "pixels": Feature("uint8", (8, 8)),
    "label": Feature("int64"),
}
STATISTICS = {
    "label": {"names": ["no", "yes"]},
    "age": {"quantiles": {"0": 10.0, "0.5": 40.0, "1": 90.0}},
}


@pytest.fixture(scope="module")
def model():
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy", "mae"])
    model.build((None, 1))
    model.compute_metrics(None, tf.zeros([1, 1]), tf.zeros([1, 1]))
    return model


def records(count, *, wrong, worse_in=None, seed=0):
    """Records of which the baseline predicts a tenth wrongly, and the candidate also ``wrong``."""
    random = np.random.default_rng(seed)
    country = random.choice([b"DE", b"FR", b"IT"], count)
    y = random.integers(0, 2, (count, 1))
    spoiled = random.random((count, 1)) < 0.1
    also = random.random((count, 1)) < wrong
    if worse_in is not None:
        also &= (country == worse_in)[:, None]
    noise = random.uniform(0, 0.4, (count, 1))

    def predicted(flipped):
        return tf.constant(np.abs((y ^ flipped) - noise), tf.float32)

    return Block(
        features={
            "country": country,
            "age": random.integers(10, 90, count),
            "label": y[:, 0],
        },
        groups=random.integers(0, GROUPS, count),
        y=tf.constant(y),
        weight=None,
        added_loss=tf.zeros(count),
        predictions={CANDIDATE: predicted(spoiled ^ also), BASELINE: predicted(spoiled)},
    )


def judged(model, rules, *blocks, functions=None):
    gate = Gate(model, rules, SCHEMA, STATISTICS, functions or {})
    return gate.judge(blocks, compared=True, batch_size=32)


def document_of(outcome):
    """What ``card.json`` has of it."""
    return {
        "records": outcome.records,
        "split": "test",
        "metrics": outcome.metrics,
        "intervals": outcome.intervals,
        "by_batches": dict.fromkeys(outcome.by_batches, 32),
        "baseline": {"url": "s3://a/serving/1", "metrics": outcome.baseline},
        "trivial": outcome.trivial,
        "importance": None,
        "data": {"records": 5000, "rejected": 50},
        "verdicts": [each.to_dict() for each in outcome.verdicts],
        "failures": outcome.failures,
        "warnings": [],
        "passed": not outcome.failures,
        "candidate": {"run": "a", "hparams": {"units": 64}},
        "outputs": {},
    }


def no_worse(metric, **values):
    return Rule(kind="no_worse", metric=metric, **values)


def test_the_metrics_over_all_records_are_those_of_keras(model):
    block = records(3000, wrong=0.05)
    rules = [Rule(kind="at_least", metric=name, bound=0.1) for name in ("f1_score", "auc")]
    outcome = judged(model, rules, block)
    for metric in (keras.metrics.BinaryAccuracy(), keras.metrics.AUC(), keras.metrics.F1Score()):
        metric.update_state(tf.cast(block.y, tf.float32), block.predictions[CANDIDATE])
        name = {"binary_accuracy": "accuracy"}.get(metric.name, metric.name)
        assert outcome.metrics[name.rstrip("_0123456789")] == pytest.approx(
            float(np.mean(metric.result())), abs=1e-5
        )
    loss = keras.losses.BinaryCrossentropy()(block.y, block.predictions[CANDIDATE])
    assert outcome.metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    low, high = outcome.intervals["accuracy"]
    exact = 1.96 * np.sqrt(outcome.metrics["accuracy"] * (1 - outcome.metrics["accuracy"]) / 3000)
    assert (high - low) / 2 == pytest.approx(exact, rel=0.15)


def test_the_metrics_of_a_slice_are_those_of_keras(model):
    block = records(3000, wrong=0.05)
    crossed = ["country", {"column": "age", "buckets": [40]}]
    rules = [
        Rule(kind="at_least", metric="auc", bound=0.1, slices=["country"]),
        Rule(kind="at_least", metric="f1_score", bound=0.1, slices=["country"]),
        Rule(kind="at_most", metric="loss", bound=9.0, slices=["country", crossed]),
        Rule(kind="at_least", metric="accuracy", bound=0.1, slices=[crossed]),
    ]
    outcome = judged(model, rules, block)
    computed = {
        "auc": keras.metrics.AUC(),
        "f1_score": keras.metrics.F1Score(),
        "loss": keras.metrics.BinaryCrossentropy(),
        "accuracy": keras.metrics.BinaryAccuracy(),
    }
    countries = [f"country={each}" for each in ("DE", "FR", "IT")]
    ages = [f"{each}, age{age}" for each in countries for age in ("<40", ">=40")]
    found = [(each.metric, each.slice) for each in outcome.verdicts]
    expected = {"auc": countries, "f1_score": countries, "loss": countries + ages, "accuracy": ages}
    assert found == [
        (metric, slice_)
        for metric, slices in expected.items()
        for slice_ in ("all records", *slices)
    ]
    for each in outcome.verdicts:
        rows = np.ones(3000, bool)
        for part in filter(None, each.slice.removeprefix("all records").split(", ")):
            if part.startswith("country"):
                rows &= block.features["country"] == part.split("=")[1].encode()
            else:
                rows &= (block.features["age"] < 40) == (part == "age<40")
        metric = computed[each.metric]
        metric.reset_state()
        metric.update_state(tf.cast(block.y[rows], tf.float32), block.predictions[CANDIDATE][rows])
        assert each.records == rows.sum()
        assert each.value == pytest.approx(float(np.mean(metric.result())), abs=1e-5), each.slice


def test_the_interval_of_a_rate_ends_at_1_and_that_of_a_loss_does_not(model):
    block = records(60, wrong=0.0)
    right = tf.cast(block.y, tf.float32)
    wrong = tf.concat([1 - right[:1], right[1:]], axis=0)
    block = replace(block, predictions={CANDIDATE: wrong, BASELINE: right})
    intervals = judged(model, [], block).intervals
    assert intervals["accuracy"][1] == 1.0
    assert 0.9 < intervals["accuracy"][0] < 1.0
    assert intervals["mae"][0] < 0.0
    better = replace(block, predictions={CANDIDATE: right, BASELINE: 1 - wrong})
    [verdict] = judged(model, [no_worse("accuracy", least=2)], better).verdicts
    assert verdict.difference[1] == 1.0
    assert 0.9 < verdict.difference[0] < 1.0


def test_a_model_that_is_worse_in_one_country_is_refused_with_its_name(model):
    rules = [no_worse("accuracy", slices=["country"]), no_worse("mae", by=1.0)]
    outcome = judged(model, rules, records(6000, wrong=0.1, worse_in=b"IT"))
    assert [(each.slice, each.verdict) for each in outcome.verdicts[1:]] == [
        ("country=DE", "pass"),
        ("country=FR", "pass"),
        ("country=IT", "fail"),
        ("all records", "pass"),
    ]
    [*_, failure] = outcome.failures
    assert failure.startswith("accuracy of country=IT is 0.")
    assert "of the baseline: worse by 0.0" in failure


def test_a_loss_that_chance_explains_is_accepted_and_many_slices_give_it_more_chances(model):
    """The probability of such a loss is 0.08 in the first block, and 0.02 in the second."""
    rules = [no_worse("accuracy"), no_worse("accuracy", slices=["country"])]
    for seed, alone in ((0, "pass"), (3, "fail")):
        block = records(3000, wrong=0.004, seed=seed)
        verdict, *by_country = judged(model, rules, block).verdicts
        assert (verdict.verdict, verdict.probability < 0.05) == (alone, alone == "fail")
        assert [each.verdict for each in by_country] == ["pass"] * 4
        assert by_country[0].probability > 3 * verdict.probability


def test_a_difference_of_rounding_is_no_loss(model):
    """As of a model and its export: every prediction is worse, by the last bits of a float32."""
    block = records(3000, wrong=0)
    away = np.where(block.y, -2e-7, 2e-7).astype(np.float32)
    block.predictions[CANDIDATE] = block.predictions[BASELINE] + away
    outcome = judged(model, [no_worse("loss", slices=["country"]), no_worse("mae")], block)
    assert outcome.metrics["loss"] > outcome.baseline["loss"]
    assert outcome.failures == []
    block.predictions[CANDIDATE] = block.predictions[BASELINE] + 1000 * away
    assert len(judged(model, [no_worse("loss"), no_worse("mae")], block).failures) == 2


def test_blocks_of_records_add_up(model):
    ages = {"column": "age", "buckets": [18, 65]}
    rules = [no_worse("mae", slices=["country", ages, ["label", {**ages, "buckets": 2}]])]
    parts = [records(800, wrong=0.1, seed=seed) for seed in (1, 2)]
    whole = Block(
        features={k: np.concatenate([p.features[k] for p in parts]) for k in parts[0].features},
        groups=np.concatenate([each.groups for each in parts]),
        y=tf.concat([each.y for each in parts], 0),
        weight=None,
        added_loss=tf.zeros(1600),
        predictions={
            k: tf.concat([p.predictions[k] for p in parts], 0) for k in (CANDIDATE, BASELINE)
        },
    )
    one, two = judged(model, rules, whole), judged(model, rules, *parts)
    for a, b in zip(one.verdicts, two.verdicts, strict=True):
        assert (a.slice, a.records, a.verdict) == (b.slice, b.records, b.verdict)
        np.testing.assert_allclose([*a.difference, a.value], [*b.difference, b.value], atol=1e-5)
    assert [each.slice for each in one.verdicts][4:7] == ["age<18", "18<=age<65", "age>=65"]
    assert [each.slice for each in one.verdicts][7:9] == ["label=no, age<40", "label=no, age>=40"]


def test_a_slice_of_too_few_records_is_judged_as_the_rule_says(model):
    rules = [
        no_worse("accuracy", slices=["country"], least=700, too_few=each)
        for each in ("accept", "refuse")
    ]
    verdicts = [each.verdict for each in judged(model, rules, records(2000, wrong=0.3)).verdicts]
    assert verdicts == ["fail", *["too few records"] * 3, *["fail"] * 4]


@pytest.mark.parametrize(
    ("count", "groups", "said"),
    [(79, 79, "by 79 records \\("), (3999, 5, "by 3,999 records in 5 groups")],
)
def test_a_model_of_which_too_few_records_show_nothing_is_refused_unless_it_is_accepted(
    model, count, groups, said
):
    block = replace(records(count, wrong=0.9), groups=np.arange(count) % groups)
    rules = [no_worse("accuracy"), no_worse("accuracy", too_few="accept")]
    outcome = judged(model, rules, block)
    refused, accepted = outcome.verdicts
    assert refused.verdict == "fail"
    assert re.search(f"{said}.*accept it by too_few", refused.reason)
    [warning] = unjudged(outcome.verdicts)
    assert "accuracy no worse was not applied, as too_few accepts: " in warning
    page = card(document_of(replace(outcome, verdicts=[accepted])), "a run")
    assert "<h1>a run: accepted, and not judged: too few records</h1>" in page


def two_classes(count, skill, seed=0):
    """Records of which 70 % are of the class 0, and a model that knows the share ``skill``."""
    random = np.random.default_rng(seed)
    y = (random.random((count, 1)) < 0.3).astype(np.int64)
    guesses = (random.random((count, 1)) < 0.3) & (random.random((count, 1)) < skill / 2)
    p = np.where(random.random((count, 1)) < skill, 0.2 + 0.6 * y, 0.2 + 0.6 * guesses)
    return Block(
        features={"country": random.choice([b"DE", b"FR"], count)},
        groups=np.arange(count) % GROUPS,
        y=tf.constant(y),
        weight=None,
        added_loss=tf.zeros(count),
        predictions={CANDIDATE: tf.constant(p, tf.float32)},
    )


BETTER = Rule(kind="better_than_trivial", metric="accuracy", least=10)


def better(model, block, rule=BETTER):
    gate = Gate(model, [rule], SCHEMA, STATISTICS, {})
    train = tf.constant(np.arange(1000)[:, None] % 10 < 3, tf.int64)
    return gate.judge(with_trivial([block], train), compared=False, batch_size=32)


def test_a_model_that_is_better_than_the_most_frequent_class_passes_and_one_by_chance_does_not(
    model,
):
    skilled, blind = (better(model, two_classes(400, skill)) for skill in (0.6, 0.0))
    assert (skilled.failures, skilled.verdicts[0].verdict) == ([], "pass")
    majority = 1 - np.asarray(two_classes(400, 0.6).y).mean()
    assert skilled.trivial["accuracy"] == pytest.approx(majority)
    [reason] = blind.failures
    assert re.search(r"400 records do not show that the model is better \(p = 1\.00\)", reason)
    [few] = better(model, two_classes(9, 0.6)).failures
    assert "cannot be judged by 9 records" in few
    page = card({**document_of(skilled), "baseline": None}, "a run")
    assert "<th>trivial</th>" in page
    assert "of 100 runs accept a gain of" in page
    assert "50 records rejected (" in page


def test_a_model_without_skill_is_rarely_called_better(model):
    """It differs from the best constant in 60 records, and is right by chance in half of them."""
    p = np.where(np.arange(300)[:, None] < 60, 0.8, 0.2)
    passed = 0
    for seed in range(60):
        y = np.random.default_rng(seed).random((300, 1)) < np.where(p > 0.5, 0.5, 0.2)
        block = replace(
            two_classes(300, 0.0),
            y=tf.constant(y.astype(int)),
            predictions={CANDIDATE: tf.constant(p, tf.float32)},
        )
        passed += better(model, block).failures == []
    assert passed <= 8


@pytest.mark.parametrize(
    ("y", "predictions", "expected"),
    [
        (np.arange(100) % 4 // 3, np.full((100, 1), 0.4), [0.25]),
        (np.arange(100) % 4 // 3, np.full((100, 1), -2.0), [np.log(1 / 3)]),
        (np.arange(100) % 4, np.full((100, 5), 0.2), [0.25] * 4 + [0]),
        (np.eye(4)[np.arange(100) % 4], np.full((100, 4), 3.0), [np.log(0.25)] * 4),
        (np.arange(100.0) * 7, np.zeros((100, 1)), [346.5]),
        (np.arange(200.0).reshape(100, 2), np.zeros((100, 2)), [99, 100]),
        (np.arange(100.0), np.zeros((100, 3)), None),
    ],
    ids=["two", "logit", "classes", "logits", "number", "numbers", "unlike"],
)
def test_the_trivial_model_predicts_the_shares_of_classes_or_the_mean(y, predictions, expected):
    block = replace(two_classes(100, 0.0), predictions={CANDIDATE: tf.constant(predictions)})
    [found] = with_trivial([block], tf.constant(y))
    if expected is None:
        assert TRIVIAL not in found.predictions
        return
    np.testing.assert_allclose(found.predictions[TRIVIAL][17], expected, atol=1e-6)
    assert found.predictions[TRIVIAL].shape == predictions.shape


def test_a_detectable_loss_is_refused_in_80_of_100_runs():
    draw = np.random.default_rng(0)
    runs = [draw.normal(size=GROUPS) for _ in range(2000)]
    gains = [Estimate(x.mean(), x.std(ddof=1) / np.sqrt(GROUPS), GROUPS - 1) for x in runs]
    loss = np.mean([each.detectable(0.05) for each in gains])
    worse = [replace(each, value=each.value - loss) for each in gains]
    for estimates, share in ((gains, 0.05), (worse, 0.8)):
        refused = np.mean([each.probability_below(0) < 0.05 for each in estimates])
        assert refused == pytest.approx(share, abs=0.03)


def wrong_refusals(different, copies, *, together):
    """The share of models that are as good as the baseline and are refused, with copied records."""
    draw = np.random.default_rng(0)
    draws = np.concatenate([np.ones((1, GROUPS)), samples()])
    wrong = []
    for _ in range(500):
        gains = np.repeat(draw.choice([-1, 0, 1], different, p=[0.1, 0.8, 0.1]), copies)
        places = np.repeat(np.arange(different), copies)
        groups = (places if together else draw.permutation(len(gains))) % GROUPS
        counts = np.bincount(groups, minlength=GROUPS)
        sums = draws @ np.bincount(groups, weights=gains, minlength=GROUPS)
        sampled = sums / np.maximum(draws @ counts, 1)
        found = estimate(float(sampled[0]), sampled[1:], np.count_nonzero(counts))
        wrong.append(found.probability_below(0) < 0.05)
    return np.mean(wrong)


@pytest.mark.parametrize(("different", "copies"), [(400, 5), (10, 100), (50, 20)])
def test_records_that_depend_on_each_other_refuse_no_more_models_if_they_are_one_group(
    different, copies
):
    assert wrong_refusals(different, copies, together=True) < 0.08
    assert wrong_refusals(different, copies, together=False) > 0.2


def test_a_metric_that_has_no_value_in_a_slice_is_not_passed(model):
    block = records(2000, wrong=0)
    broken = np.where(block.features["country"][:, None] == b"IT", np.nan, 1.0)
    block.predictions[CANDIDATE] *= tf.constant(broken, tf.float32)
    rule = Rule(kind="at_most", metric="mae", bound=0.9, slices=["country"])
    outcome = judged(model, [rule], block)
    failed = {each.slice: each.reason for each in outcome.verdicts if each.verdict == "fail"}
    assert list(failed) == ["all records", "country=IT"]
    assert "mae of country=IT is nan, no finite number" in failed["country=IT"]


def test_a_bound_does_not_refuse_a_slice_that_has_no_value_for_any_model():
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
    own = ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Recall(name="recall")]
    model.compile("sgd", "binary_crossentropy", metrics=own, weighted_metrics=["accuracy"])
    model.build((None, 1))
    model.compute_metrics(None, tf.zeros([1, 1]), tf.zeros([1, 1]), tf.ones([1]))
    block = records(2000, wrong=0.0)
    block = replace(block, weight=tf.cast(block.y[:, 0], tf.float32))  # the class 0 has none
    names = ("auc", "recall", "f1_score", "weighted_accuracy")
    rules = [Rule(kind="at_least", metric=name, bound=0.5, slices=["label"]) for name in names]
    rules.append(Rule(kind="at_least", metric="accuracy", bound=0.5, slices=["label"]))
    verdicts = judged(model, rules, block).verdicts
    assert [each.verdict for each in verdicts if each.slice == "all records"] == ["pass"] * 5
    few = ["too few records"] * 4
    assert [each.verdict for each in verdicts if each.slice == "label=no"] == [*few, "pass"]
    # All records are judged, also by a rule that accepts slices which cannot be.
    block = replace(block, y=0 * block.y, weight=0 * block.weight)
    whole = [e for e in judged(model, rules[:4], block).verdicts if e.slice == "all records"]
    for name, each in zip(names, whole, strict=True):
        assert each.verdict == "fail"
        assert f"{name} cannot be judged by 2,000 records" in each.reason


@pytest.mark.parametrize(
    "function",
    [lambda y_true, y_pred: y_true - y_pred, lambda y_true, y_pred: tf.reduce_mean(y_pred)],
    ids=["every pair of records", "one number for all"],
)
def test_a_function_that_returns_no_number_for_each_record_is_refused(model, function):
    block = records(500, wrong=0.1)
    block = replace(block, y=tf.cast(block.y[:, 0], tf.float32))
    rule = Rule(kind="at_most", metric="error", bound=1.0)
    with pytest.raises(FinalError, match=r"(?s)'error' returns .* a number for each record"):
        judged(model, [rule], block, functions={"error": function})


def test_a_reason_has_digits_that_tell_the_value_from_the_bound():
    assert shown(0.94998, 0.95) == "0.94998"
    assert shown(3.35e-7, 1e-7) == "0.0000003"
    assert shown(0.5) == "0.5000"
    assert shown(0.0) == "0.0000"
    assert shown(float("nan")) == "nan"


def test_a_function_of_the_module_is_a_metric(model):
    def cost(y_true, y_pred, weight):
        assert weight is None
        return 5.0 * tf.cast(tf.cast(y_pred > 0.5, y_true.dtype) != y_true, tf.float32)

    rule = no_worse("cost", better="lower")
    outcome = judged(model, [rule], records(4000, wrong=0.05), functions={"cost": cost})
    assert outcome.metrics["cost"] == pytest.approx(5 * (1 - outcome.metrics["accuracy"]))
    assert [each.verdict for each in outcome.verdicts] == ["fail"]


def test_metrics_of_outputs_are_known_by_the_names_of_these():
    inputs = keras.Input((1,))
    outputs = {name: keras.layers.Dense(1, "sigmoid", name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    own = {"a": ["accuracy", keras.metrics.AUC(name="auc")], "b": ["accuracy", "mae"]}
    model.compile("sgd", dict.fromkeys(own, "binary_crossentropy"), metrics=own)
    block = records(2000, wrong=0.05)
    both = {name: {"a": each, "b": each} for name, each in block.predictions.items()}
    block = replace(block, y={"a": block.y, "b": block.y}, predictions=both)
    model.compute_loss(None, block.y, both[CANDIDATE])
    model.compute_metrics(None, block.y, both[CANDIDATE])
    names = ("a_accuracy", "a_auc", "b_accuracy", "b_mae", "a_loss", "loss")
    rules = [no_worse(name, by=0.5, slices=["label"]) for name in names]
    found = judged(model, rules, block).verdicts
    undefined = {(each.metric, each.slice) for each in found if each.verdict == "too few records"}
    assert undefined == {("a_auc", "label=no"), ("a_auc", "label=yes")}
    assert {each.metric: each.bound for each in found} == {
        **dict.fromkeys(names[:3], -0.5),
        **dict.fromkeys(names[3:], 0.5),
    }


def test_records_of_one_user_count_as_one(model):
    """Each user's 50 records are alike, so that 40 users are few, and 2,000 records are not."""
    few = records(40, wrong=0.1, seed=3)

    def repeated(block, groups):
        return Block(
            features={name: np.repeat(each, 50) for name, each in block.features.items()},
            groups=groups,
            y=tf.repeat(block.y, 50, axis=0),
            weight=None,
            added_loss=tf.zeros(2000),
            predictions={k: tf.repeat(v, 50, axis=0) for k, v in block.predictions.items()},
        )

    alone = np.random.default_rng(0).integers(0, GROUPS, 2000)
    width = {}
    for name, groups in (("alone", alone), ("user", np.repeat(few.groups, 50))):
        low, high = judged(model, [], repeated(few, groups)).intervals["accuracy"]
        width[name] = high - low
    assert width["user"] == pytest.approx(width["alone"] * np.sqrt(50), rel=0.35)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"metric": "acuracy"}, "'acuracy' is not a metric of the model, did you mean 'accuracy'"),
        ({"metric": "auc", "slices": ["contry"]}, "no column 'contry' to make slices of, did you"),
        ({"metric": "auc", "slices": ["income"]}, r'ranges, such as bucket\("income", 4\)'),
        ({"metric": "auc", "slices": ["pixels"]}, "slices need single values"),
        ({"metric": "auc", "slices": [{"column": "country", "buckets": 3}]}, "has text, which"),
        ({"metric": "cost"}, "whether more or less of 'cost' is better"),
        ({"metric": "acc"}, r'metrics=\["acc"\], or name .* such as binary_accuracy'),
        ({"metric": "mean"}, "'mean' is a metric of values, not of targets and predictions"),
        ({"metric": "mean_io_u"}, "Keras needs more than its name: compile the model with it"),
    ],
)
def test_a_rule_that_names_what_does_not_exist_is_refused(model, rule, message):
    compiled = ["loss", "accuracy", "auc", "mae"]
    with pytest.raises(FinalError, match=message):
        check_rules(model, [no_worse(**rule)], compiled, SCHEMA, {"cost": lambda y, p: y})


def test_too_many_values_of_a_column_are_refused(model):
    block = records(300, wrong=0.1)
    block.features["country"] = np.array([str(each).encode() for each in range(300)])
    with pytest.raises(FinalError, match="country has more than 200 values in the split"):
        judged(model, [no_worse("auc", slices=["country"])], block)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gate": [{"kind": "atleast", "metric": "a"}]}, "did you mean 'at_least'"),
        ({"gate": [{"kind": "no_worse", "metric": "auc"}]}, 'first_run="accept" or'),
        ({"thresholds": {"accuracy": 95}}, "accuracy is between 0 and 1; for 95 %, give 0.95"),
        (
            {"gate": [{"kind": "at_least", "metric": "auc", "bound": 0.9, "by": 0.1}]},
            "has no 'by': it is of no_worse",
        ),
    ],
)
def test_a_gate_that_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        EvaluateArguments(model="m", data="d", **arguments)


@pytest.mark.parametrize(("leakage", "refused"), [("refuse", True), ("accept", False)])
def test_a_column_that_gives_the_label_away_refuses_a_model_if_asked_for(leakage, refused):
    y = np.random.default_rng(0).integers(0, 2, 1000)
    [leak] = leaking_columns({"copy": y + 7}, y)
    assert leak.startswith("the column 'copy' alone predicts 100.0% of the labels")
    arguments = EvaluateArguments(model="m", data="d", leakage=leakage)
    outcome = Outcome(records=1000, metrics={}, warnings=["constant"], leaks=[leak])
    failures, warnings = evaluate.reasons(arguments, outcome, None)
    assert [failures, warnings] == ([[leak], ["constant"]] if refused else [[], ["constant", leak]])


def test_a_first_model_is_refused_if_it_is_to_be_compared():
    given = {"model": "m", "data": "d", "gate": [asdict(no_worse("auc"))]}
    for first_run, refused in (("refuse", True), ("accept", False)):
        arguments = EvaluateArguments.from_dict({**given, "first_run": first_run})
        outcome = Outcome(records=9, metrics={})
        failures, warnings = evaluate.reasons(arguments, outcome, None)
        [sentence] = failures if refused else warnings
        assert sentence.startswith("there is no exported version to compare with")


@pytest.mark.parametrize("form", ["dict", "list"])
def test_a_rule_names_one_of_several_outputs_and_its_weights_are_used(form):
    inputs = keras.Input((1,))
    outputs = [keras.layers.Dense(1, name=f"dense_{name}")(inputs) for name in ("price", "area")]
    names = ["price", "area"] if form == "dict" else ["dense_price", "dense_area"]

    def shaped(values):
        return dict(zip(names, values, strict=True)) if form == "dict" else list(values)

    model = keras.Model(inputs, shaped(outputs))
    model.compile("sgd", shaped(["mse", "mse"]))
    random = np.random.default_rng(0)
    y, weight = random.normal(size=(2, 300, 1)), random.uniform(size=(2, 300))
    block = Block(
        features={},
        groups=np.arange(300) % GROUPS,
        y=shaped(tf.constant(y, tf.float32)),
        weight=shaped(tf.constant(weight, tf.float32)),
        added_loss=tf.zeros(300),
        predictions={CANDIDATE: shaped([tf.zeros([300, 1])] * 2)},
    )
    model.compute_loss(None, block.y, block.predictions[CANDIDATE], block.weight)
    rule = {"kind": "at_most", "metric": "mean_absolute_error", "bound": 9.0}
    gate = Gate(model, [Rule(**rule, output=names[1])], {}, {}, {})
    found = gate.judge([block], compared=False, batch_size=32).metrics[
        f"{names[1]}_mean_absolute_error"
    ]
    assert found == pytest.approx(np.average(np.abs(y[1, :, 0]), weights=weight[1]), rel=1e-5)
    with pytest.raises(FinalError, match=f'one of the outputs .*output="{names[0]}"'):
        Gate(model, [Rule(**rule)], {}, {}, {})


def predicted(model, folder, rows, schema, transform):
    """A predictor of records whose feature ``a`` has the numbers ``rows``, and its blocks."""
    predictor = Predictor(model, None, schema, transform, columns=[], group=None)
    return predictor, predictor.blocks(written(folder, rows), len(rows), batch_size=64)


def written(folder, rows):
    """A file of records whose feature ``a`` has these numbers."""
    schema = {"a": Feature(rows.dtype.name, rows.shape[1:] if rows.shape[1:] != (1,) else ())}
    values = [{"a": row if schema["a"].shape else row[0]} for row in rows]
    (folder / "records").write_bytes(encoded_frames(stacked(values, schema)).content)
    return RecordFiles.of([folder / "records"])


class ReadsInputs(keras.Sequential):
    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(x - y_pred))


def test_a_loss_of_the_model_that_reads_the_inputs_is_that_of_keras(tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 1)).astype("float32")
    model = ReadsInputs([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd")
    whole = model.evaluate(x, x, batch_size=300, verbose=0)
    _, blocks = predicted(
        model,
        tmp_path,
        x,
        {"a": Feature("float32")},
        lambda features: (features["a"][:, None], features["a"][:, None]),
    )
    outcome = Gate(model, [], {}, {}, {}).judge(blocks, compared=False, batch_size=32)
    assert outcome.metrics == {"loss": pytest.approx(whole, rel=1e-5)}


@pytest.mark.parametrize(
    ("different", "repeats", "zeros", "copies"),
    [(200, 5, 0, 0.8), (300, 1, 0, 0.0), (20, 15, 0, 0.0), (300, 5, 300, 0.0)],
)
def test_copies_of_records_are_one_group_and_records_of_few_values_are_not(
    tmp_path, caplog, different, repeats, zeros, copies
):
    numbers = np.concatenate([np.tile(np.arange(different), repeats), np.zeros(zeros, np.int64)])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    predictor, blocks = predicted(
        model,
        tmp_path,
        numbers[:, None],
        {"a": Feature("int64")},
        lambda x: (x["a"][:, None], x["a"] % 2),
    )
    groups = np.concatenate([block.groups for block in blocks])
    assert predictor.copies == pytest.approx(copies)
    assert len(predictor.chosen(numbers)[1]) == different
    together = all(len(set(groups[numbers == each])) == 1 for each in range(different))
    assert together == bool(copies) or repeats == 1
    assert "AutoGraph" not in caplog.text, "it warns of what it cannot read"


def test_different_records_have_different_contents():
    numbers = np.stack(np.meshgrid(np.arange(-40, 40), np.arange(-40, 40)), -1).reshape(-1, 2)
    words = tf.strings.as_string(tf.constant(numbers[:, 0]))
    for given in (numbers, numbers * 0.25, (words, tf.constant(numbers[:, 1]))):
        contents = content_of(tf.nest.map_structure(tf.constant, given))
        assert len(np.unique(contents)) == len(numbers)
    assert content_of((words, tf.RaggedTensor.from_row_lengths(words, [1] * 6400))) is None


def test_records_of_the_training_in_another_split_are_warned_of():
    train = np.arange(5000)
    [warning] = copied("test", train, np.arange(4900, 6000))
    assert warning.startswith("2.0% of 5,000 records of the training are also in the split 'test'")
    assert not [*copied("test", train, np.arange(4990, 6000))]
    few = np.arange(5000) % 30  # of few values, of which equal ones are independent
    assert not [*copied("test", few, few)]


def test_padding_that_the_model_masks_is_not_measured(tmp_path):
    random = np.random.default_rng(0)
    words = random.integers(1, 5, (300, 6)) * (np.arange(6) < random.integers(1, 7, (300, 1)))
    y = random.integers(0, 2, (300, 6))
    inputs = keras.Input((6,), dtype="int64")
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(embedded))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    whole = model.evaluate(words, y, batch_size=300, verbose=0, return_dict=True)
    _, blocks = predicted(
        model,
        tmp_path,
        np.concatenate([words, y], axis=1),
        {"a": Feature("int64", (12,))},
        lambda features: (features["a"][:, :6], features["a"][:, 6:]),
    )
    outcome = Gate(model, [], {}, {}, {}).judge(blocks, compared=False, batch_size=32)
    assert outcome.metrics["accuracy"] == pytest.approx(whole["accuracy"], rel=1e-5)


def test_boundaries_that_are_close_have_names_that_differ():
    starts = {"column": "age", "buckets": [1_700_000_000, 1_700_000_060]}
    slicing = slicing_of(starts, SCHEMA, {})
    found = slicing.numbers({"age": np.array([0, 1_700_000_001, 1_800_000_000])}, 3)
    assert [slicing.names[each] for each in found] == [
        "age<1700000000",
        "1700000000<=age<1700000060",
        "age>=1700000060",
    ]
    tenths = {"column": "age", "buckets": [0.1, 0.10000001]}
    slicing = slicing_of(tenths, SCHEMA, {})
    slicing.numbers({"age": np.array([0.0, 0.100000001, 1.0])}, 3)
    assert slicing.names == ["age<0.1", "0.1<=age<0.10000001", "age>=0.10000001"]


def test_slices_of_dates_have_dates_as_names():
    quantiles = {"0": 18_000.0, "0.5": 18_262.5, "1": 19_000.0}
    statistics = {"age": {"since_1970": "days", "quantiles": quantiles}}
    values = {"age": np.array([18_262, 18_263])}
    halves = slicing_of({"column": "age", "buckets": 2}, SCHEMA, statistics)
    assert halves.numbers(values, 2).tolist() == [0, 1]
    assert halves.names == ["age<2020-01-02", "age>=2020-01-02"]
    days = slicing_of("age", SCHEMA, statistics)
    days.numbers(values, 2)
    assert days.names == ["age=2020-01-01", "age=2020-01-02"]
    statistics["age"]["since_1970"] = "microseconds"  # all of one second
    close = slicing_of({"column": "age", "buckets": [1, 2]}, SCHEMA, statistics)
    close.numbers(values, 2)
    assert close.names == ["age>=2"]


def test_holm_adjusts_each_probability_by_those_that_are_left():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_card_shows_each_verdict_and_no_markup_of_names(model):
    block = records(4000, wrong=0.1, worse_in=b"IT")
    hostile = np.where(block.features["country"] == b"IT", b"<script>alert(1)</script>", b"DE")
    block.features["country"] = hostile
    rules = [
        no_worse("accuracy", by=0.01, slices=["country"]),
        Rule(kind="at_most", metric="mae", bound=0.9, slices=["label"], least=10**6),
    ]
    outcome = judged(model, rules, block)
    page = card(document_of(outcome), "run <1>")
    assert "<script" not in page
    assert "country=&lt;script&gt;" in page
    assert 'run &lt;1&gt;: <span class="warn">refused</span>' in page
    assert page.count("<svg") == len(outcome.verdicts) == 6
    assert page.count('class="fail"') == len(outcome.failures)
    assert "2 slices: 2 too few records" in page
    assert "<td>&lt;0.001</td>" in page  # the probability of the loss in Italy
