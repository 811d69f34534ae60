"""The speed of the input pipeline, compared with the same tensors in memory.

Read: batches of 28 × 28 pixels and a label, 838 bytes each in a file, in file order as in an
evaluation, and shuffled as in a training, over ``from_tensor_slices`` with the same batch, shuffle
and prefetch. The unit is examples per second of this process's CPU time, which excludes other
processes, over whole epochs, each of which fills a shuffle buffer once. All take turns in changing
order after an uncounted round, and ratios are medians over the rounds. Everything runs on one core,
and files are kept in memory.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, Dataset, Feature, Split
from aerotrain.store import MANIFEST, open_store
from aerotrain.training.input.batches import RecordFiles, every_record
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from benchmarks.report import Report, in_turns, ratios, run, use_one_core
from benchmarks.workloads import Jobs, write_shards

BATCH, SHARDS = 128, 8

#: Examples that one round of reading takes, at least: many more than can have been prefetched.
READ = 250_000
SCHEMA = {"image": Feature("uint8", (28, 28)), "label": Feature("int64")}


def measure(given: Namespace, folder: Path) -> Report:
    """Examples per second of CPU time, for each way to read in turn."""
    use_one_core()
    records, rounds = (10_000, 3) if given.quick else (100_000, 5)
    generator = np.random.default_rng(0)
    tensors = {
        "image": generator.integers(0, 256, (records, 28, 28), np.uint8),
        "label": generator.integers(0, 10, records),
    }
    feed = feed_of(tensors, folder)
    files = RecordFiles.of(sorted(folder.glob("data/train-*")))
    steps = tf.constant(-(-READ // records) * records // BATCH)

    def rate(take: Callable[..., tf.Tensor], batches: Any) -> float:
        begin = time.process_time()
        return int(take(batches, steps)) / (time.process_time() - begin)

    with feed.caching_shards():
        options = {"records": records, "batch_size": BATCH}
        in_memory = tf.data.Dataset.from_tensor_slices(tensors)
        ways = {
            "in memory": endless(in_memory),
            "read": every_record(files, SCHEMA, feed.code.transform, **options).repeat(),
            "in memory, shuffled": endless(in_memory.shuffle(records, seed=0)),
            "read, shuffled": feed.local(0),
        }
        contestants = {name: partial(rate, taker(), iter(way)) for name, way in ways.items()}
        rates = in_turns(contestants, rounds, warm=True)
    return Report(
        [{"": name, "examples/s": round(statistics.median(each))} for name, each in rates.items()],
        {
            "read_over_memory": ratios(rates["read"], rates["in memory"]),
            "read_shuffled_over_memory": ratios(
                rates["read, shuffled"], rates["in memory, shuffled"]
            ),
        },
    )


def endless(examples: tf.data.Dataset) -> tf.data.Dataset:
    return examples.repeat().batch(BATCH).prefetch(tf.data.AUTOTUNE)


def feed_of(tensors: dict[str, np.ndarray[Any, Any]], folder: Path) -> InputPipeline:
    """The input pipeline of a training on a data set of these records."""
    data = folder / "data"
    splits = {TRAIN_SPLIT: Split(shards=tuple(write_shards(data, SCHEMA, tensors, SHARDS)))}
    dataset = Dataset(fingerprint="input", source={}, schema=SCHEMA, splits=splits)
    open_store(data.as_uri()).put(MANIFEST, dataset.to_json().encode())
    arguments = {
        "model": "untransformed",
        "data": data.as_uri(),
        "batch_size": BATCH,
        "epochs": 1,
    }
    return InputPipeline(
        job=Jobs(folder).train("one_device", arguments),
        arguments=TrainArguments.from_dict(arguments),
        dataset=dataset,
        code=UserCode.load("untransformed"),
        scratch=folder / "scratch",
    )


def taker() -> Callable[..., tf.Tensor]:
    """A compiled function that takes some batches, and counts their examples."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def take(batches: Any, steps: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, taken: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return done + 1, taken + tf.shape(next(batches)["label"])[0]

        return tf.while_loop(lambda done, _: done < steps, body, (0, 0), parallel_iterations=1)[1]

    return take


if __name__ == "__main__":
    run(measure, __doc__, in_memory=True)
