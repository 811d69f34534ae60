"""The order in which a training reads records, compared with tf.data's shuffle in equal memory.

The data set is 16 times as large as the memory, and sorted: each of 20 partitions has one class.
tf.data reads the same files, shuffled, with the settings of TensorFlow Datasets: an interleave of
16 files and 16 records, then a shuffle. Measured are the rank correlation of the records' places in
two epochs, as the mean absolute value over all pairs of epochs, and how many times too often the
most frequent class occurs in 256 records, on average.
"""

import hashlib
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, Shard
from aerotrain.data.records import Column, encode, framed
from aerotrain.training.input.batches import ready
from aerotrain.training.input.order import Order
from aerotrain.training.input.rows import layout_of
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shuffle_windows import batches_of, windows_from

CLASSES, SHARDS_EACH, WINDOWS, EPOCHS, BATCH = 20, 3, 16, 4, 256
SCHEMA = {"number": Feature("int64")}

#: The settings of TensorFlow Datasets.
CYCLE, BLOCK = 16, 16

Epoch = NDArray[np.int64]


def rows_of_orders(folder: Path, records: int) -> list[dict[str, Any]]:
    """A row for each way to shuffle about ``records`` records, which are written to ``folder``."""
    shards = written(folder / "store", records // (CLASSES * SHARDS_EACH))
    total = sum(shard.records for shard in shards)
    window = sum(shard.bytes for shard in shards) // WINDOWS
    files = [str(folder / "store" / shard.file) for shard in shards]
    generator = np.random.default_rng(0)
    ways: dict[str, Callable[[], Iterator[Epoch]]] = {
        "perfect shuffle": lambda: (generator.permutation(total) for _ in range(EPOCHS)),
        "aerotrain": lambda: read(folder, shards, window),
        "tf.data": lambda: read_by_tf_data(files, total // WINDOWS),
    }
    rows = []
    for name, way in ways.items():
        epochs = list(way())
        first, *later = (excess(each, total) for each in epochs)
        rows.append(
            {
                "order": name,
                "rank correlation": correlation(epochs),
                "class excess, first epoch": first,
                "class excess, later epochs": float(np.mean(later)),
            }
        )
    return rows


def written(folder: Path, records: int) -> list[Shard]:
    """The shards of a data set whose records are numbered, class after class."""
    folder.mkdir(parents=True)
    shards = []
    for number in range(CLASSES * SHARDS_EACH):
        # 8 bytes of each number are in use, so that all records have one length.
        numbers = 2**56 + np.arange(number * records, (number + 1) * records)
        content = bytes(framed(encode({"number": Column(SCHEMA["number"], numbers)})).content)
        file = f"train-{number // SHARDS_EACH:05d}-{number % SHARDS_EACH:03d}"
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        shards.append(Shard(file=file, records=records, bytes=len(content), sha256=digest))
    return shards


def read(folder: Path, shards: list[Shard], window: int) -> Iterator[Epoch]:
    """The epochs of a training's input pipeline with windows of ``window`` bytes."""
    cache = ShardCache(
        (folder / "store").as_uri(),
        Order(shards=shards, seed=0, window_bytes=window),
        folder / "scratch",
        indexed=layout_of(SCHEMA, shards) is None,
    )
    cache.start()
    try:
        layout = layout_of(SCHEMA, shards)
        windows = windows_from(f"{folder}/scratch/", layout.width if layout else None)
        batches = ready(batches_of(windows, BATCH), SCHEMA, lambda features: features["number"])
        yield from epochs_of(batches.as_numpy_iterator(), sum(each.records for each in shards))
    finally:
        cache.stop()


def read_by_tf_data(files: list[str], buffer: int) -> Iterator[Epoch]:
    """The epochs of tf.data with a shuffle buffer of ``buffer`` records."""
    parse = {"number": tf.io.FixedLenFeature([], tf.int64)}
    records = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files), seed=0)
        .interleave(tf.data.TFRecordDataset, cycle_length=CYCLE, block_length=BLOCK)
        .shuffle(buffer, seed=0)
        .batch(BATCH)
        .map(lambda batch: tf.io.parse_example(batch, parse)["number"])
    )
    for _ in range(EPOCHS):
        yield np.concatenate(list(records.as_numpy_iterator())) - 2**56


def epochs_of(batches: Iterator[Epoch], records: int) -> Iterator[Epoch]:
    """Epochs of ``records`` records each."""
    for _ in range(EPOCHS):
        epoch = [next(batches)]
        while sum(map(len, epoch)) < records:
            epoch.append(next(batches))
        yield np.concatenate(epoch) - 2**56


def correlation(epochs: list[Epoch]) -> float:
    """The mean absolute rank correlation of the places of records in two epochs."""
    places = [np.argsort(epoch) for epoch in epochs]
    pairs = combinations(places, 2)
    return float(np.mean([abs(np.corrcoef(one, other)[0, 1]) for one, other in pairs]))


def excess(epoch: Epoch, records: int) -> float:
    """How many times too often the most frequent class occurs in ``BATCH`` records."""
    classes = epoch * CLASSES // records
    batches = classes[: len(classes) // BATCH * BATCH].reshape(-1, BATCH)
    most = [np.bincount(batch, minlength=CLASSES).max() for batch in batches]
    return float(np.mean(most) * CLASSES / BATCH)
