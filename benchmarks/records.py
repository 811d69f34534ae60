"""How fast records are written, compared with TensorFlow's writer and the machine.

Each writes the same records, 28 × 28 pixels and a label, 838 bytes each in a file, on one core, in
turns, after an uncounted round. Both read them from Parquet or from an array and encode them.
The machine's own speed is that of copying a file of the same bytes with their CRC-32C, in pieces
that stay in the cache. A file of records needs the CRC-32C of each: the same copy with these is the
limit of a writer that calls `google_crc32c`.
"""

import statistics
import struct
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.prepare.partition import keep_freed_memory
from aerotrain.data.records.framing import encoded_frames
from aerotrain.data.sources import open_source
from aerotrain.data.sources.source import Source
from benchmarks.report import Report, in_turns, ratios, run, seconds, use_one_core

PIXELS = 28 * 28

#: Bytes that the machine's own copy reads at once.
PIECE = 2**18


def measure(given: Namespace, folder: Path) -> Report:
    """Records per second of each writer, for each kind of source."""
    keep_freed_memory()  # as a mapped task does, for all of them
    use_one_core()
    records, rounds = (20_000, 2) if given.quick else (50_000, 7)
    contestants: dict[str, Callable[[], float]] = {}
    for kind, description in write_inputs(folder, records).items():
        source = open_source(description)
        write = partial(write_ours, source, source.schema(), PlanArguments(source=description))
        contestants[f"ours, {kind}"] = partial(seconds, write, folder)
        contestants[f"TFRecordWriter, {kind}"] = partial(seconds, write_theirs, ROWS[kind], folder)
    contestants["copy + CRC"] = partial(seconds, copy, folder)
    contestants["copy + CRC of each"] = partial(seconds, copy_each, folder, records)
    taken = in_turns(contestants, rounds, warm=True)
    rates = {name: [records / each for each in times] for name, times in taken.items()}
    over = {kind: ratios(rates[f"ours, {kind}"], rates[f"TFRecordWriter, {kind}"]) for kind in ROWS}
    return Report(
        [
            {"writer": name, "records/s": round(statistics.median(each))}
            for name, each in rates.items()
        ],
        {
            "write_over_tf_writer": over["parquet"],
            "write_arrays_over_tf_writer": over["npy"],
            "share_of_copy_and_crc": ratios(rates["ours, npy"], rates["copy + CRC"]),
            "most_share_of_copy_and_crc": ratios(rates["copy + CRC of each"], rates["copy + CRC"]),
        },
    )


def write_inputs(folder: Path, records: int) -> dict[str, dict[str, Any]]:
    """Write the same records as Parquet and as arrays; returns the sources that read them."""
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (records, PIXELS), np.uint8)
    label = random.integers(0, 10, records)
    np.save(folder / "image.npy", image)
    np.save(folder / "label.npy", label)
    buffers = [None, pa.py_buffer(image)]
    binary = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PIXELS), records, buffers)
    table = pa.table({"image": binary.cast(pa.binary()), "label": label})
    pq.write_table(table, folder / "records.parquet", compression="snappy", row_group_size=20_000)
    url = folder.as_uri()
    features = {name: f"{url}/{name}.npy" for name in ("image", "label")}
    return {
        "parquet": {"kind": "parquet", "url": f"{url}/records.parquet"},
        "npy": {"kind": "npy", "features": features},
    }


def write_ours(source: Source, schema: Any, rules: PlanArguments, folder: Path) -> None:
    """Read a source, encode its records, and write them."""
    with (folder / "ours.tfrecord").open("wb") as file:
        for fragment in source.fragments():
            for batch in source.read(fragment.description, schema):
                file.write(encoded_frames(cast_to_schema(batch, schema, rules).columns).content)


def rows_of_arrays(folder: Path) -> Iterator[tuple[bytes, int]]:
    image, label = (np.load(folder / f"{name}.npy") for name in ("image", "label"))
    yield from zip(map(bytes, image), label.tolist(), strict=True)


def rows_of_parquet(folder: Path) -> Iterator[tuple[bytes, int]]:
    with pq.ParquetFile(folder / "records.parquet") as file:
        for batch in file.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


Rows = Callable[[Path], Iterator[tuple[bytes, int]]]

ROWS: Mapping[str, Rows] = {"parquet": rows_of_parquet, "npy": rows_of_arrays}


def write_theirs(rows: Rows, folder: Path) -> None:
    """TensorFlow's own way: one message per record, and its writer."""
    with tf.io.TFRecordWriter(str(folder / "theirs.tfrecord")) as writer:
        for image, label in rows(folder):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def copy(folder: Path) -> None:
    """Copy a file of these records with their CRC-32C."""
    with (folder / "ours.tfrecord").open("rb") as read, (folder / "copy").open("wb") as written:
        while piece := read.read(PIECE):
            google_crc32c.value(piece)
            written.write(piece)


def copy_each(folder: Path, records: int) -> None:
    """Copy the same file with the CRC-32C of each record, which begins after 12 bytes of its frame.

    The CRC-32C follows in 4 bytes.
    """
    path = folder / "ours.tfrecord"
    size = path.stat().st_size // records
    frame = struct.Struct(f"12x{size - 16}s4x")
    with path.open("rb") as read, (folder / "copy").open("wb") as written:
        while piece := read.read(PIECE // size * size):
            deque(starmap(google_crc32c.value, frame.iter_unpack(piece)), maxlen=0)
            written.write(piece)


if __name__ == "__main__":
    run(measure, __doc__, in_memory=True)
