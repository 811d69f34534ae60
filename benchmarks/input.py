"""The speed of the input pipeline, compared with the same tensors in memory.

Read: batches of 28 × 28 pixels and a label, 838 bytes each in a file, in file order as in an
evaluation, and shuffled as in a training, over ``from_tensor_slices`` with the same batch, shuffle
and prefetch. The unit is examples per second of this process's CPU time, which excludes other
processes, over whole epochs, each of which fills a shuffle buffer once. Trained: a convolutional
network, for the default number of epochs of a training, whose shards are downloaded from an S3
server meanwhile, over the same from memory. It is timed from the build of the model to the last
step. All take turns in changing order after an uncounted round, and ratios are medians over the
rounds. Everything but the S3 server runs on one core, and files are kept in memory. ``orders.py``
compares the order of records.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.contract.job import Job
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import Dataset, Feature, Shard, Split
from aerotrain.data.records import Column, encode, framed
from aerotrain.store import MANIFEST, open_store
from aerotrain.training.input.batches import batch_spec, every_record
from aerotrain.training.input.record_files import RecordFiles
from aerotrain.training.input.shards import TRAIN_SPLIT
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from aerotrain.training.step_runner import LocalStepRunner
from aerotrain.training.strategies import ENGINES
from benchmarks.orders import rows_of_orders
from benchmarks.report import (
    in_turns,
    median_ratio,
    print_origin,
    print_report,
    print_table,
)
from benchmarks.workloads import MODELS
from devtools.s3_server import s3_server

MEMORY = Path("/dev/shm")
BATCH = 128
SHARDS = 8
EPOCHS = TrainArguments(model="", data="").epochs

#: Examples that one round of reading takes, at least: many more than can have been prefetched.
READ = 250_000
BUCKET = "input"
SCHEMA = {"image": Feature("uint8", (28, 28)), "label": Feature("int64")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and trainings")
    quick = parser.parse_args().quick
    print_origin()
    records, readings = (10_000, 3) if quick else (100_000, 5)
    trained_records, trainings = (1_280, 2) if quick else (10_000, 6)
    sys.path.insert(0, str(MODELS))
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name,
        s3_server(Path(name) / "s3") as server,
    ):
        os.environ.update(server.environment)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the server has its own by now
        server.make_bucket(BUCKET)
        data = Data.written(Path(name) / "read", records)
        read = rates_of_reading(data, Path(name) / "scratch", readings)
        data = Data.written(Path(name) / "trained", trained_records)
        trained = rates_of_training(data, Path(name) / "scratch", trainings)
        orders = rows_of_orders(Path(name) / "orders", records)
    rates = {**read, **trained}
    ratios = {
        "read_over_memory": ("read", "in memory"),
        "read_shuffled_over_memory": ("read, shuffled", "in memory, shuffled"),
        "s3_training_over_memory": ("training from S3", "training from memory"),
    }
    print_table(orders)
    print()
    print_report(
        [{"": name, "examples/s": round(statistics.median(each))} for name, each in rates.items()],
        {
            **{
                name: median_ratio(rates[ours], rates[theirs])
                for name, (ours, theirs) in ratios.items()
            },
            "rank_correlation": orders[1]["rank correlation"],
            "tf_data_rank_correlation": orders[2]["rank correlation"],
        },
    )


@dataclass(frozen=True)
class Data:
    """The same records as tensors, as files of this machine, and as a data set in S3."""

    tensors: dict[str, np.ndarray[Any, Any]]
    files: list[Path]
    dataset: Dataset
    urls: dict[str, str]

    @classmethod
    def written(cls, folder: Path, records: int) -> "Data":
        generator = np.random.default_rng(0)
        tensors = {
            "image": generator.integers(0, 256, (records, 28, 28), np.uint8),
            "label": generator.integers(0, 10, records),
        }
        urls = {"file": folder.as_uri(), "s3": f"s3://{BUCKET}/{folder.name}"}
        stores = [open_store(url) for url in urls.values()]
        shards, edges = [], [records * each // SHARDS for each in range(SHARDS + 1)]
        for number, (first, last) in enumerate(pairwise(edges)):
            columns = {
                each: Column(SCHEMA[each], values[first:last]) for each, values in tensors.items()
            }
            content = bytes(framed(encode(columns)).content)
            digest = hashlib.sha256(content).hexdigest()
            shards.append(
                Shard(
                    file=f"train-{number}",
                    records=last - first,
                    bytes=len(content),
                    sha256=digest,
                )
            )
            for store in stores:
                store.put(shards[-1].file, content)
        split = Split(shards=tuple(shards))
        dataset = Dataset(
            fingerprint="input", source={}, schema=SCHEMA, splits={TRAIN_SPLIT: split}
        )
        for store in stores:
            store.put(MANIFEST, dataset.to_json().encode())
        return cls(tensors, [folder / each.file for each in shards], dataset, urls)

    @property
    def records(self) -> int:
        return len(self.tensors["label"])

    def in_memory(self, *, shuffled: bool) -> tf.data.Dataset:
        """Endless batches of the tensors."""
        examples = tf.data.Dataset.from_tensor_slices(self.tensors)
        if shuffled:
            examples = examples.shuffle(self.records, seed=0)
        return examples.repeat().batch(BATCH)

    def feed(self, url: str, scratch: Path, model: str, epochs: int) -> InputPipeline:
        """The input pipeline of a training on the data set at ``url``."""
        arguments = {"model": model, "data": url, "batch_size": BATCH, "epochs": epochs}
        job = Job(
            name="input",
            module="aerotrain.train",
            store=url,
            run="r",
            task="train",
            arguments=arguments,
        )
        return InputPipeline(
            job=job,
            arguments=TrainArguments.of(arguments),
            dataset=self.dataset,
            code=UserCode.load(model),
            scratch=scratch,
        )


def rates_of_reading(data: Data, scratch: Path, rounds: int) -> dict[str, list[float]]:
    """Examples per second of CPU time, for each way to read in turn."""
    feed = data.feed(data.urls["file"], scratch, "untransformed", 1)
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


def rates_of_training(data: Data, disk: Path, rounds: int) -> dict[str, list[float]]:
    """Examples a second of whole trainings; each from S3 begins with an empty disk."""

    def rate(scratch: Path | None, epochs: int) -> float:
        begin = time.monotonic()
        train(data, scratch, epochs)
        seconds = time.monotonic() - begin
        if scratch:
            shutil.rmtree(scratch)
        return epochs * data.records / seconds

    ways = {"training from memory": None, "training from S3": disk}
    in_turns({name: partial(rate, way, 1) for name, way in ways.items()}, 1)
    return in_turns({name: partial(rate, way, EPOCHS) for name, way in ways.items()}, rounds)


def train(data: Data, scratch: Path | None, epochs: int) -> None:
    """Train a new model, from the store if there is a ``scratch``, else from memory."""
    feed = data.feed(data.urls["s3"], scratch or Path(), "fashion", epochs)
    engine = ENGINES["one_device"]
    distribution = engine.build(feed.arguments)
    spec = batch_spec(SCHEMA, feed.code.transform)
    with feed.caching_shards():
        if scratch:
            batches = feed.local(0)
        else:
            batches = data.in_memory(shuffled=True).map(feed.code.transform)
            batches = batches.prefetch(tf.data.AUTOTUNE)
        with distribution.scope():
            model = feed.code.build({"convolutions": True}, spec)
            step = engine.step(model, tf.Variable(0, dtype=tf.int64), spec)
        step_runner = LocalStepRunner(
            distribution, step, batches, feed.arguments.steps_of_execution
        )
        for _ in step_runner.run(feed.schedule.steps):
            pass


if __name__ == "__main__":
    main()
