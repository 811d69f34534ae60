"""How often the gate is wrong, and what it costs.

Wrong refusals and power are simulated: the baseline is right for nine of ten records, and the
candidate differs from it for one of twelve, as models do that differ by their seed only. It is as
good as the baseline, or a point worse. In addition, real models are trained with other seeds and
compared by the gate itself. The cost is that of evaluating a small network on TFRecords with a rule
for each of 20 slices, with the download of shards, in turns with Keras's ``evaluate`` of the same
records on this disk; and of a comparison, besides evaluating both models. ``predict`` is compared
with ``model.predict`` of the same records in memory, on one core, in a process of its own.
"""

import argparse
import io
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from aerotrain.contract.gate import Rule, RuleKind
from aerotrain.data.dataset import Feature, Shard
from aerotrain.evaluation.diagnostics import Diagnostics
from aerotrain.evaluation.gate import Gate
from aerotrain.evaluation.intervals import GROUPS, estimate, samples
from aerotrain.evaluation.records import BASELINE, CANDIDATE, Block, Predictor
from aerotrain.serving.servable import Servable
from aerotrain.serving.served import Served
from aerotrain.standalone import predict
from aerotrain.store import open_store, publish
from aerotrain.training.input.batches import RecordFiles, every_record, streamed
from benchmarks.report import in_turns, median_ratio, print_origin, print_report
from benchmarks.shards import write_shards

#: Records of one comparison, the level of its test, and the loss that is to be found.
RECORDS, LEVEL, LOSS = 10_000, 0.05, 0.01

#: Records of an evaluation. With fewer, what is measured is the start of it.
EVALUATED = 10**6

NUMBERS = 8
SCHEMA = {f"x{each}": Feature("float32") for each in range(NUMBERS)} | {
    "country": Feature("int64"),
    "label": Feature("int64"),
}
BATCH = 1024

PLAIN, PLAIN_BOTH = "Keras's evaluate", "Keras's evaluate, of two models"
MEMORY, PREDICT = "model.predict of an array in memory", "predict, from Parquet to Parquet"
GATE, COMPARED = "the gate, 20 slices", "the gate, 20 slices, two models compared"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer models, records and rounds")
    quick = parser.parse_args().quick
    print_origin()
    keras.utils.set_random_seed(0)
    simulated, models, compared, rounds = (300, 4, 100, 3) if quick else (1000, 40, 1000, 3)
    figures = {
        "false_refusals": refused(simulated, 0.0),
        "power": refused(simulated, LOSS),
        "real_false_refusals": refused_models(models, compared),
    }
    with tempfile.TemporaryDirectory() as name:
        shards = write_records(Path(name), EVALUATED)
        contestants = evaluations(Path(name), shards, EVALUATED)
        if quick:
            contestants = {each: contestants[each] for each in (PLAIN, GATE)}
        in_turns(contestants, 1)  # not counted: it traces
        seconds = in_turns(contestants, rounds)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds |= pool.apply(predictions_on_one_core, (rounds,))
    figures |= {
        "predict_over_memory": median_ratio(seconds[MEMORY], seconds[PREDICT]),
        "gate_over_evaluate": median_ratio(seconds[GATE], seconds[PLAIN]),
    }
    if not quick:
        ratio = median_ratio(seconds[COMPARED], seconds[PLAIN_BOTH])
        figures["compared_over_evaluate"] = ratio
    rows = [{"of": name, "s": round(min(each), 2)} for name, each in seconds.items()]
    rows += [{"of": name, "s": round(value, 4)} for name, value in figures.items()]
    print_report(rows, figures)


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


def write_records(folder: Path, count: int) -> list[Shard]:
    """Write ten shards into ``folder``, which is the store of the data."""
    x, y, country = drawn(count, seed=0)
    columns = {name: x[:, number] for number, name in enumerate(SCHEMA) if number < NUMBERS}
    return write_shards(folder, SCHEMA, {**columns, "country": country, "label": y}, 10)


def evaluations(
    folder: Path, shards: Sequence[Shard], records: int
) -> dict[str, Callable[[], float]]:
    """Keras's evaluation and the gate's, of one model and of two; each returns its seconds."""
    x, y, _ = drawn(4000, seed=100)
    model, other = trained(x, y, 1), trained(x, y, 2)
    Servable(other, transform, SCHEMA).save(folder / "baseline")
    served = Served("baseline", folder / "baseline", SCHEMA)
    bound = Rule(kind=RuleKind.AT_LEAST, metric="accuracy", bound=0.5, slices=["country"])
    no_worse = Rule(kind=RuleKind.NO_WORSE, metric="accuracy", slices=["country"])
    on_disk = RecordFiles.of([folder / shard.file for shard in shards])

    def plain(models: list[keras.Model]) -> float:
        begin = time.monotonic()
        for each in models:
            given = {"records": records, "batch_size": BATCH}
            each.evaluate(every_record(on_disk, SCHEMA, transform, **given), verbose=0)
        return time.monotonic() - begin

    def judging(rule: Rule, baseline: Served | None) -> Callable[[], float]:
        gate = Gate(model, [rule], SCHEMA, {}, {})
        predictor = Predictor(model, baseline, SCHEMA, transform, columns=["country"], group=None)

        def seconds() -> float:
            begin = time.monotonic()
            with streamed(folder.as_uri(), shards, folder) as files:
                blocks = Diagnostics().watched(predictor.blocks(files, records, BATCH))
                gate.judge(blocks, compared=baseline is not None, batch_size=BATCH)
            return time.monotonic() - begin

        return seconds

    return {
        PLAIN: partial(plain, [model]),
        GATE: judging(bound, None),
        PLAIN_BOTH: partial(plain, [model, other]),
        COMPARED: judging(no_worse, served),
    }


def predictions_on_one_core(rounds: int) -> dict[str, list[float]]:
    """The seconds of ``predict`` of a table, and of ``model.predict`` of the same records."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    x, _, _ = drawn(EVALUATED, seed=1)
    model = built()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = pa.table({"number": np.arange(len(x))} | dict(zip(SCHEMA, x.T, strict=False)))
        pq.write_table(table, folder / "table.parquet")
        Servable(model, transform, SCHEMA).save(folder / "saved")
        store = open_store((folder / "store").as_uri())
        publish(store, folder / "saved", "serving/1", {})
        source = {"kind": "parquet", "url": (folder / "table.parquet").as_uri()}
        given = {"model": "serving", "source": source, "keep": ["number"], "batch_size": BATCH}

        def by_steps() -> float:
            begin = time.monotonic()
            with redirect_stdout(io.StringIO()):
                url = predict(store.url, folder / "scratch", **given)
            seconds = time.monotonic() - begin
            whole = open_store(url.rpartition("/")[0])  # with the manifest: the next round predicts
            for stored in whole.list():
                whole.delete(stored.key)
            return seconds

        def in_memory() -> float:
            begin = time.monotonic()
            model.predict(x, batch_size=BATCH, verbose=0)
            return time.monotonic() - begin

        contestants = {MEMORY: in_memory, PREDICT: by_steps}
        in_turns(contestants, 1)  # not counted: it traces
        return in_turns(contestants, rounds)


if __name__ == "__main__":
    main()
