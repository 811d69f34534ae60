"""The speed of the input pipeline, compared with the same tensors in memory.

Read: batches of 28 × 28 pixels and a label, 838 bytes each in a file, in file order as in an
evaluation, and shuffled as in a training, over ``from_tensor_slices`` with the same batch, shuffle
and prefetch. The unit is examples per second of this process's CPU time, which excludes other
processes, over whole epochs, each of which fills a shuffle buffer once. All take turns in changing
order after an uncounted round, and ratios are medians over the rounds. Everything runs on one core,
and files are kept in memory.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.contract.job import Job
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import Dataset, Feature, Split
from aerotrain.store import MANIFEST, open_store
from aerotrain.training.input.batches import RecordFiles, every_record
from aerotrain.training.input.shards import TRAIN_SPLIT
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from benchmarks.report import (
    in_turns,
    median_ratio,
    print_origin,
    print_report,
)
from benchmarks.shards import write_shards
from benchmarks.workloads import MODELS

MEMORY = Path("/dev/shm")
BATCH = 128
SHARDS = 8

#: Examples that one round of reading takes, at least: many more than can have been prefetched.
READ = 250_000
SCHEMA = {"image": Feature("uint8", (28, 28)), "label": Feature("int64")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    quick = parser.parse_args().quick
    print_origin()
    records, readings = (10_000, 3) if quick else (100_000, 5)
    sys.path.insert(0, str(MODELS))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        data = Data.written(Path(name) / "read", records)
        rates = rates_of_reading(data, Path(name) / "scratch", readings)
    print_report(
        [{"": name, "examples/s": round(statistics.median(each))} for name, each in rates.items()],
        {
            "read_over_memory": median_ratio(rates["read"], rates["in memory"]),
            "read_shuffled_over_memory": median_ratio(
                rates["read, shuffled"], rates["in memory, shuffled"]
            ),
        },
    )


@dataclass(frozen=True)
class Data:
    """The same records as tensors, and as a data set of files."""

    tensors: dict[str, np.ndarray[Any, Any]]
    files: list[Path]
    dataset: Dataset
    url: str

    @classmethod
    def written(cls, folder: Path, records: int) -> "Data":
        generator = np.random.default_rng(0)
        tensors = {
            "image": generator.integers(0, 256, (records, 28, 28), np.uint8),
            "label": generator.integers(0, 10, records),
        }
        shards = write_shards(folder, SCHEMA, tensors, SHARDS)
        splits = {TRAIN_SPLIT: Split(shards=tuple(shards))}
        dataset = Dataset(fingerprint="input", source={}, schema=SCHEMA, splits=splits)
        open_store(folder.as_uri()).put(MANIFEST, dataset.to_json().encode())
        return cls(tensors, [folder / each.file for each in shards], dataset, folder.as_uri())

    @property
    def records(self) -> int:
        return len(self.tensors["label"])

    def in_memory(self, *, shuffled: bool) -> tf.data.Dataset:
        """Endless batches of the tensors."""
        examples = tf.data.Dataset.from_tensor_slices(self.tensors)
        if shuffled:
            examples = examples.shuffle(self.records, seed=0)
        return examples.repeat().batch(BATCH)

    def feed(self, scratch: Path) -> InputPipeline:
        """The input pipeline of a training on the data set."""
        arguments = {"model": "untransformed", "data": self.url, "batch_size": BATCH, "epochs": 1}
        job = Job(
            name="input",
            module="aerotrain.training.train",
            store=self.url,
            run="r",
            task="train",
            arguments=arguments,
        )
        return InputPipeline(
            job=job,
            arguments=TrainArguments.from_dict(arguments),
            dataset=self.dataset,
            code=UserCode.load("untransformed"),
            scratch=scratch,
        )


def rates_of_reading(data: Data, scratch: Path, rounds: int) -> dict[str, list[float]]:
    """Examples per second of CPU time, for each way to read in turn."""
    feed = data.feed(scratch)
    with feed.caching_shards():
        ordered = every_record(
            RecordFiles.of(data.files),
            SCHEMA,
            feed.code.transform,
            records=data.records,
            batch_size=BATCH,
        )
        ways = {
            "in memory": data.in_memory(shuffled=False).prefetch(tf.data.AUTOTUNE),
            "read": ordered.repeat(),
            "in memory, shuffled": data.in_memory(shuffled=True).prefetch(tf.data.AUTOTUNE),
            "read, shuffled": feed.local(0),
        }
        steps = tf.constant(-(-READ // data.records) * data.records // BATCH)

        def rate(take: Callable[..., tf.Tensor], batches: Any) -> float:
            begin = time.process_time()
            return int(take(batches, steps)) / (time.process_time() - begin)

        contestants = {name: partial(rate, taker(), iter(way)) for name, way in ways.items()}
        in_turns(contestants, 1)
        return in_turns(contestants, rounds)


def taker() -> Callable[..., tf.Tensor]:
    """A compiled function that takes some batches, and counts their examples."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def take(batches: Any, steps: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, taken: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return done + 1, taken + tf.shape(next(batches)["label"])[0]

        return tf.while_loop(lambda done, _: done < steps, body, (0, 0), parallel_iterations=1)[1]

    return take


if __name__ == "__main__":
    main()
