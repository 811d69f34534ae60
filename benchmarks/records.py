"""How fast records are written, compared with TensorFlow's writer, Beam's, and the machine.

Each writes the same records, 28 × 28 pixels and a label, 838 bytes each in a file, on one core.
Ours and TensorFlow's read them from Parquet or from an array and encode them. Beam receives encoded
records; the second pipeline of its process is timed. The machine's own speed is the time of copying
the bytes once, of their CRC-32C, and of the file.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from benchmarks.environments import with_beam
from benchmarks.report import print_report

PIXELS = 28 * 28

#: Files are kept in memory, so that the disk is not measured.
MEMORY = Path("/dev/shm")
WRITE_WITH_BEAM = Path(__file__).with_name("beam_writer.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    quick = parser.parse_args().quick
    keep_freed_memory()  # as a mapped task does, for all of them
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    records, rounds = (20_000, 3) if quick else (100_000, 7)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        sources = write_inputs(folder, records)
        contestants: dict[str, Callable[[], float]] = {}
        for kind in sources:
            contestants[f"ours, {kind}"] = lambda kind=kind: ours(sources[kind], folder)
            contestants[f"TFRecordWriter, {kind}"] = lambda kind=kind: theirs[kind](folder)
        contestants["copy + CRC"] = lambda: machine(folder)
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, run in contestants.items():
                rates[name].append(records / run())
        beam = beam_rate(folder, 5_000 if quick else 50_000)
    report({name: max(each) for name, each in rates.items()}, beam)  # other load only slows


def report(rates: dict[str, float], beam: float | str) -> None:
    """Print the measurements; Beam's figure only if Beam is available."""
    kinds = ("parquet", "npy")
    over = [rates[f"ours, {kind}"] / rates[f"TFRecordWriter, {kind}"] for kind in kinds]
    figures = {
        "write_over_tf_writer": min(over),
        "share_of_copy_and_crc": rates["ours, npy"] / rates["copy + CRC"],
    }
    if isinstance(beam, str):
        print(f"no figure write_over_beam: {beam}\n")
    else:
        rates["Beam's WriteToTFRecord, encoded"] = beam
        figures["write_over_beam"] = rates["ours, parquet"] / beam
    print_report(
        [{"writer": name, "records/s": round(rate)} for name, rate in rates.items()], figures
    )


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


def from_parquet(folder: Path) -> float:
    return with_tensorflow(folder, rows_of_parquet(folder))


def from_arrays(folder: Path) -> float:
    image, label = (np.load(folder / f"{name}.npy") for name in ("image", "label"))
    return with_tensorflow(folder, zip(map(bytes, image), label.tolist(), strict=True))


def rows_of_parquet(folder: Path) -> Iterator[tuple[bytes, int]]:
    with pq.ParquetFile(folder / "records.parquet") as file:
        for batch in file.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


theirs = {"parquet": from_parquet, "npy": from_arrays}


def with_tensorflow(folder: Path, rows: Iterator[tuple[bytes, int]]) -> float:
    """Seconds of TensorFlow's own way: one message per record, and its writer."""
    begin = time.monotonic()
    with tf.io.TFRecordWriter(str(folder / "theirs.tfrecord")) as writer:
        for image, label in rows:
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return time.monotonic() - begin


def machine(folder: Path) -> float:
    """The least seconds for writing those bytes: one copy, one checksum."""
    content = (folder / "ours.tfrecord").read_bytes()
    begin = time.monotonic()
    copied = bytes(bytearray(content))
    google_crc32c.value(copied)
    (folder / "copy.tfrecord").write_bytes(copied)
    return time.monotonic() - begin


def beam_rate(folder: Path, records: int) -> float | str:
    """Records a second of Beam, or a sentence that says why there is none."""
    python = with_beam(folder / "beam")
    if isinstance(python, str):
        return python
    words = [python, str(WRITE_WITH_BEAM), str(folder / "ours.tfrecord"), str(records)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return f"Beam failed: {done.stderr.strip().splitlines()[-1]}"
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
