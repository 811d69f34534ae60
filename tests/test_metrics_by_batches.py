"""Losses and metrics of whole batches in an evaluation: as in Keras's ``evaluate``."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from benchmarks import keras_table

from aerotrain.contract.errors import FinalError
from aerotrain.contract.gate import Rule
from aerotrain.data.dataset import Feature
from aerotrain.evaluation.gate import Gate
from aerotrain.evaluation.records import BASELINE, CANDIDATE

pytestmark = pytest.mark.process

BATCH = 8


def block_of(model, x, y):
    block = keras_table.block_of(model, x, y)
    both = {**block.predictions, BASELINE: block.predictions[CANDIDATE]}
    return replace(block, features={"country": np.full(len(x), b"DE")}, predictions=both)


def judged(model, blocks, *rules):
    gate = Gate(model, rules, {"country": Feature("string")}, {}, {})
    return gate.judge(blocks, compared=True, batch_size=BATCH)


def of_keras(model, data):
    batches = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    return model.evaluate(batches, return_dict=True, verbose=0)


def f1(y, y_pred):
    right = tf.reduce_sum(y * tf.round(y_pred))
    return 2 * right / (tf.reduce_sum(y) + tf.reduce_sum(tf.round(y_pred)) + 1e-7)


def largest_error(y, y_pred):
    return tf.reduce_max(tf.abs(y - y_pred))


def r2(y, y_pred):
    total = tf.reduce_sum((y - tf.reduce_mean(y)) ** 2) + 1e-7
    return 1 - tf.reduce_sum((y - y_pred) ** 2) / total


def correlation(y, y_pred):
    ours, theirs = y - tf.reduce_mean(y), y_pred - tf.reduce_mean(y_pred)
    return tf.reduce_sum(ours * theirs) / tf.norm(ours) / tf.norm(theirs)


class Largest(keras.metrics.Metric):
    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.largest = self.add_variable((), initializer="zeros", name="largest")

    def update_state(self, y, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))

    def result(self):
        return self.largest


def contrastive(y, y_pred):
    others = tf.matmul(y_pred, y_pred, transpose_b=True)
    return tf.reduce_mean(tf.reduce_logsumexp(others, axis=1) - tf.linalg.diag_part(others))


OF_BATCHES = ("f1", "largest_error", "r2", "correlation", "pearson_correlation", "largest", "loss")


@pytest.fixture(scope="module")
def measured():
    """A model whose metrics and loss are of batches, its data, and their values by Keras."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    functions = [f1, largest_error, r2, correlation, Largest()]
    pearson = keras.metrics.PearsonCorrelation(axis=0, name="pearson_correlation")
    model.compile("sgd", contrastive, metrics=[*functions, pearson, "accuracy"])
    draw = np.random.default_rng(4)
    x = tf.constant(draw.normal(size=(76, 3)), tf.float32)
    y = tf.cast(draw.integers(0, 2, (76, 1)), tf.float32)
    return model, (x, y), of_keras(model, (x, y))


def test_metrics_of_batches_are_those_of_evaluate_and_have_no_interval(measured):
    model, (x, y), expected = measured
    blocks = [block_of(model, x[:64], y[:64]), block_of(model, x[64:], y[64:])]
    found = judged(model, blocks)
    assert found.metrics == pytest.approx(expected, rel=1e-5)
    assert found.baseline == pytest.approx(expected, rel=1e-5)
    assert sorted(found.by_batches) == sorted(OF_BATCHES)
    assert set(found.intervals) == {"accuracy"}


def test_a_metric_of_batches_is_found_where_a_class_is_rare(measured):
    """The first hundreds of records have none of it, and a score of 0 in all batches."""
    model, (x, y), _ = measured
    often = tf.tile(y, [12, 1])
    seldom = np.zeros_like(often)
    seldom[-50:] = often[-50:] * 0.9 + 0.05
    block = block_of(model, tf.tile(x, [12, 1]), often)
    predictions = dict.fromkeys((CANDIDATE, BASELINE), often)
    found = judged(model, [replace(block, y=tf.round(seldom), predictions=predictions)])
    assert "f1" in found.by_batches


@pytest.mark.parametrize("metric", ["f1", "loss"])
def test_a_bound_is_compared_with_the_value_of_batches(measured, metric):
    model, data, expected = measured
    rules = [
        Rule(kind="at_most", metric=metric, bound=expected[metric] + sign * 1e-3)
        for sign in (1, -1)
    ]
    found = judged(model, [block_of(model, *data)], *rules)
    assert [each.verdict for each in found.verdicts] == ["pass", "fail"]


@pytest.mark.parametrize("values", [{"kind": "no_worse", "better": "higher"}, {"slices": True}])
def test_a_rule_that_needs_values_of_records_refuses_a_metric_of_batches(measured, values):
    if values.pop("slices", None):
        values = {"kind": "at_least", "bound": 0.1, "slices": ["country"]}
    rule = Rule(metric="f1", **values)
    with pytest.raises(FinalError, match=r"'f1' of a batch is not made of those of its records"):
        judged(measured[0], [block_of(measured[0], *measured[1])], rule)
