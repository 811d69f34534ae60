"""How often the gate is wrong, and what it costs.

Wrong refusals and power are simulated: the baseline is right for nine of ten records, and the
candidate differs from it for one of twelve, as models do that differ by their seed only. It is as
good as the baseline, or a point worse. In addition, real models are trained with other seeds and
compared by the gate itself. The cost is that of evaluating a small network on TFRecords with a rule
for each of 20 slices, with the download of shards, in turns with Keras's ``evaluate`` of the same
records on this disk; and of a comparison, besides evaluating both models. ``predict`` is compared
with ``model.predict`` of the same records in memory, on one core, in a process of its own.
"""

import multiprocessing
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from aerotrain.contract.gate import Rule, RuleKind
from aerotrain.data.dataset import Feature
from aerotrain.evaluation.diagnostics import Diagnostics
from aerotrain.evaluation.gate import Gate
from aerotrain.evaluation.intervals import GROUPS, estimate, samples
from aerotrain.evaluation.records import BASELINE, CANDIDATE, Block, Predictor
from aerotrain.serving.servable import Servable
from aerotrain.serving.served import Served
from aerotrain.standalone import predict
from aerotrain.store import open_store, publish
from aerotrain.training.input.batches import RecordFiles, every_record, streamed
from benchmarks.report import Report, in_turns, ratios, run, seconds, use_one_core
from benchmarks.workloads import write_shards

#: Records of one comparison, the level of its test, and the loss that is to be found.
RECORDS, LEVEL, LOSS = 10_000, 0.05, 0.01

#: Records of an evaluation. With fewer, what is measured is the start of it.
EVALUATED = 10**6
ROUNDS = 3

NUMBERS = 8
SCHEMA = {f"x{each}": Feature("float32") for each in range(NUMBERS)} | {
    "country": Feature("int64"),
    "label": Feature("int64"),
}
BATCH = 1024

PLAIN, PLAIN_BOTH = "Keras's evaluate", "Keras's evaluate, of two models"
MEMORY, PREDICT = "model.predict of an array in memory", "predict, from Parquet to Parquet"
GATE, COMPARED = "the gate, 20 slices", "the gate, 20 slices, two models compared"


def measure(given: Namespace, folder: Path) -> Report:
    """The shares of refusals, and the seconds of evaluations and predictions."""
    keras.utils.set_random_seed(0)
    simulated, models, compared = (300, 2, 20) if given.quick else (1000, 40, 1000)
    records = EVALUATED // 10 if given.quick else EVALUATED
    shares = {
        "false_refusals": refused(simulated, 0.0),
        "power": refused(simulated, LOSS),
        "real_false_refusals": refused_models(models, compared),
    }
    taken = in_turns(evaluations(folder, records), ROUNDS, warm=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        taken |= pool.apply(predictions_on_one_core, (folder, records))
    figures = {
        **shares,
        "predict_over_memory": ratios(taken[MEMORY], taken[PREDICT]),
        "gate_over_evaluate": ratios(taken[GATE], taken[PLAIN]),
        "compared_over_evaluate": ratios(taken[COMPARED], taken[PLAIN_BOTH]),
    }
    rows = [{"of": name, "s": round(min(each), 2)} for name, each in taken.items()]
    return Report(rows, figures)


def refused(comparisons: int, loss: float) -> float:
    """The share of simulated candidates that are refused; they are worse by ``loss``."""
    random = np.random.default_rng(1)
    draws = np.concatenate([np.ones((1, GROUPS)), samples()])
    count = 0
    for _ in range(comparisons):
        group = random.integers(0, GROUPS, RECORDS)
        # The candidate turns right answers of the baseline into wrong ones, and others back.
        baseline = random.random(RECORDS) < 0.9
        lost = baseline & (random.random(RECORDS) < (0.04 + loss) / 0.9)
        won = ~baseline & (random.random(RECORDS) < 0.04 / 0.1)
        change = np.bincount(group, weights=won.astype(float) - lost, minlength=GROUPS)
        sampled = (draws @ change) / (draws @ np.bincount(group, minlength=GROUPS))
        found = estimate(float(sampled[0]), sampled[1:], GROUPS)
        count += found.probability_below(0.0) < LEVEL
    return count / comparisons


def refused_models(models: int, comparisons: int) -> float:
    """The share of comparisons of real models that the gate refuses, of two that are as good.

    Models that are trained with other seeds do differ in quality. Their predictions of each record
    are swapped at random, so that two remain that differ for as many records, and by chance alone.
    """
    x, y, _ = drawn(4000, seed=100)
    baseline = trained(x, y, seed=0)
    gate = Gate(baseline, [Rule(kind=RuleKind.NO_WORSE, metric="accuracy")], SCHEMA, {}, {})
    random = np.random.default_rng(2)
    count = 0
    for seed in range(1, models + 1):
        candidate = trained(x, y, seed=seed)
        for number in range(comparisons // models):
            new, label, country = drawn(RECORDS, seed=seed * 1000 + number)
            both = candidate(new), baseline(new)
            is_swapped = random.random((RECORDS, 1)) < 0.5
            block = Block(
                features={"country": country},
                groups=random.integers(0, GROUPS, RECORDS),
                y=tf.constant(label),
                weight=None,
                added_loss=tf.zeros(RECORDS),
                predictions={
                    CANDIDATE: tf.where(is_swapped, *both[::-1]),
                    BASELINE: tf.where(is_swapped, *both),
                },
            )
            count += bool(gate.judge([block], compared=True, batch_size=32).failures)
    return count / comparisons


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, labels of which a tenth is noise, and countries."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, NUMBERS)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.int64)
    y ^= random.random(count) < 0.1
    return x, y, random.integers(0, 20, count)


def trained(x: np.ndarray, y: np.ndarray, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = built()
    model.fit(x, y, epochs=3, batch_size=64, verbose=0)
    return model


def built() -> keras.Model:
    inputs = keras.Input((NUMBERS,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    hidden = keras.layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    metrics = ["accuracy", keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=metrics)
    model.compute_metrics(None, tf.zeros([1, 1]), tf.zeros([1, 1]))
    model.reset_metrics()
    return model


def transform(features: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.stack([features[f"x{each}"] for each in range(NUMBERS)], axis=1), features["label"]


def evaluations(folder: Path, count: int) -> dict[str, Callable[[], float]]:
    """Keras's evaluation and the gate's, of one model and of two; each returns its seconds.

    ``folder`` gets ten shards of ``count`` records, and is the store of the data.
    """
    x, y, country = drawn(count, seed=0)
    columns = {name: x[:, number] for number, name in enumerate(SCHEMA) if number < NUMBERS}
    shards = write_shards(folder, SCHEMA, {**columns, "country": country, "label": y}, 10)
    x, y, _ = drawn(4000, seed=100)
    model, other = trained(x, y, 1), trained(x, y, 2)
    Servable(other, transform, SCHEMA).save(folder / "baseline")
    served = Served("baseline", folder / "baseline", SCHEMA)
    bound = Rule(kind=RuleKind.AT_LEAST, metric="accuracy", bound=0.5, slices=["country"])
    no_worse = Rule(kind=RuleKind.NO_WORSE, metric="accuracy", slices=["country"])
    on_disk = RecordFiles.of([folder / shard.file for shard in shards])

    def plain(*models: keras.Model) -> None:
        for each in models:
            batches = every_record(on_disk, SCHEMA, transform, records=count, batch_size=BATCH)
            each.evaluate(batches, verbose=0)

    def judge(gate: Gate, predictor: Predictor, compared: bool) -> None:
        with streamed(folder.as_uri(), shards, folder) as files:
            blocks = Diagnostics().watched(predictor.blocks(files, count, BATCH))
            gate.judge(blocks, compared=compared, batch_size=BATCH)

    def judging(rule: Rule, baseline: Served | None) -> Callable[[], float]:
        gate = Gate(model, [rule], SCHEMA, {}, {})
        predictor = Predictor(model, baseline, SCHEMA, transform, columns=["country"], group=None)
        return partial(seconds, judge, gate, predictor, baseline is not None)

    return {
        PLAIN: partial(seconds, plain, model),
        GATE: judging(bound, None),
        PLAIN_BOTH: partial(seconds, plain, model, other),
        COMPARED: judging(no_worse, served),
    }


def predictions_on_one_core(folder: Path, records: int) -> dict[str, list[float]]:
    """The seconds of ``predict`` of a table, and of ``model.predict`` of the same records."""
    use_one_core()
    x, _, _ = drawn(records, seed=1)
    model = built()
    table = pa.table({"number": np.arange(len(x))} | dict(zip(SCHEMA, x.T, strict=False)))
    pq.write_table(table, folder / "table.parquet")
    Servable(model, transform, SCHEMA).save(folder / "saved")
    store = open_store((folder / "predicted").as_uri())
    publish(store, folder / "saved", "serving/1", {})
    source = {"kind": "parquet", "url": (folder / "table.parquet").as_uri()}
    given = {"model": "serving", "source": source, "keep": ["number"], "batch_size": BATCH}

    def by_steps() -> float:
        urls: list[str] = []
        taken = seconds(lambda: urls.append(predict(store.url, folder / "scratch", **given)))
        whole = open_store(urls[0].rpartition("/")[0])
        for stored in whole.list():  # with the manifest: the next round predicts again
            whole.delete(stored.key)
        return taken

    in_memory = partial(seconds, model.predict, x, batch_size=BATCH, verbose=0)
    return in_turns({MEMORY: in_memory, PREDICT: by_steps}, ROUNDS, warm=True)


if __name__ == "__main__":
    run(measure, __doc__)
