"""How fast records are written, compared with TensorFlow's writer and the machine.

Each writes the same records, 28 × 28 pixels and a label, 838 bytes each in a file, on one core, in
turns, after an uncounted round. Both read them from Parquet or from an array and encode them.
The machine's own speed is that of copying a file of the same bytes with their CRC-32C, in pieces
that stay in the cache.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.prepare.partition import keep_freed_memory
from aerotrain.data.records import encoded_frames
from aerotrain.data.sources import open_source
from benchmarks.report import in_turns, median_ratio, print_origin, print_report

PIXELS = 28 * 28

#: Bytes that the machine's own copy reads at once.
PIECE = 2**18

#: Files are kept in memory, so that the disk is not measured.
MEMORY = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    quick = parser.parse_args().quick
    print_origin()
    keep_freed_memory()  # as a mapped task does, for all of them
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    records, rounds = (20_000, 2) if quick else (50_000, 7)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        sources = write_inputs(folder, records)
        contestants: dict[str, Callable[[], float]] = {}
        for kind in sources:
            contestants[f"ours, {kind}"] = partial(ours, sources[kind], folder)
            contestants[f"TFRecordWriter, {kind}"] = partial(with_tensorflow, ROWS[kind], folder)
        contestants["copy + CRC"] = partial(machine, folder)
        in_turns(contestants, 1)  # not counted: the first ones also load modules
        seconds = in_turns(contestants, rounds)
    report({name: [records / each for each in taken] for name, taken in seconds.items()})


def report(rates: Mapping[str, Sequence[float]]) -> None:
    """Print the records per second of each round."""
    kinds = ("parquet", "npy")
    over = [
        median_ratio(rates[f"ours, {kind}"], rates[f"TFRecordWriter, {kind}"]) for kind in kinds
    ]
    figures = {
        "write_over_tf_writer": min(over),
        "share_of_copy_and_crc": median_ratio(rates["ours, npy"], rates["copy + CRC"]),
    }
    rows = [
        {"writer": name, "records/s": round(statistics.median(each))}
        for name, each in rates.items()
    ]
    print_report(rows, figures)


def write_inputs(folder: Path, records: int) -> dict[str, dict[str, object]]:
    """Write the same records as Parquet and as arrays; returns the sources that read them."""
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (records, PIXELS), np.uint8)
    label = random.integers(0, 10, records)
    np.save(folder / "image.npy", image)
    np.save(folder / "label.npy", label)
    binary = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(PIXELS), records, [None, pa.py_buffer(image)]
    )
    table = pa.table({"image": binary.cast(pa.binary()), "label": label})
    pq.write_table(table, folder / "records.parquet", compression="snappy", row_group_size=20_000)
    url = folder.as_uri()
    features = {name: f"{url}/{name}.npy" for name in ("image", "label")}
    return {
        "parquet": {"kind": "parquet", "url": f"{url}/records.parquet"},
        "npy": {"kind": "npy", "features": features},
    }


def ours(description: dict[str, object], folder: Path) -> float:
    """Seconds for reading a source, encoding its records and writing them."""
    rules = PlanArguments(source=description)
    source = open_source(description)
    schema = source.schema()  # part of the plan, once for all partitions
    begin = time.monotonic()
    with (folder / "ours.tfrecord").open("wb") as file:
        for fragment in source.fragments():
            for batch in source.read(fragment.description, schema):
                file.write(encoded_frames(cast_to_schema(batch, schema, rules).columns).content)
    return time.monotonic() - begin


def rows_of_arrays(folder: Path) -> Iterator[tuple[bytes, int]]:
    image, label = (np.load(folder / f"{name}.npy") for name in ("image", "label"))
    yield from zip(map(bytes, image), label.tolist(), strict=True)


def rows_of_parquet(folder: Path) -> Iterator[tuple[bytes, int]]:
    with pq.ParquetFile(folder / "records.parquet") as file:
        for batch in file.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


ROWS = {"parquet": rows_of_parquet, "npy": rows_of_arrays}


def with_tensorflow(rows: Callable[[Path], Iterator[tuple[bytes, int]]], folder: Path) -> float:
    """Seconds of TensorFlow's own way: one message per record, and its writer."""
    begin = time.monotonic()
    with tf.io.TFRecordWriter(str(folder / "theirs.tfrecord")) as writer:
        for image, label in rows(folder):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return time.monotonic() - begin


def machine(folder: Path) -> float:
    """Seconds for copying a file of these records with their CRC-32C."""
    begin = time.monotonic()
    with (folder / "ours.tfrecord").open("rb") as read, (folder / "copy").open("wb") as written:
        while piece := read.read(PIECE):
            google_crc32c.value(piece)
            written.write(piece)
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
