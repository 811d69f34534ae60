"""Records a second that Beam writes: run in Beam's own environment, with a file and a number.

The first so many records of the TFRecord file are written by pipelines of the local runner.
"""

import logging
import struct
import sys
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.io.tfrecordio import WriteToTFRecord

logging.disable(logging.WARNING)

#: Pipelines that are timed; others' work on the machine only slows, so the quickest counts.
ROUNDS = 3


def main() -> None:
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    records = []
    with path.open("rb") as file:
        while len(records) < count:
            (length,) = struct.unpack("<Q", file.read(12)[:8])
            records.append(file.read(length))
            file.read(4)
    write(records[:10], path)  # what the first one loads is not counted
    print(len(records) / min(write(records, path) for _ in range(ROUNDS)))


def write(records: list[bytes], path: Path) -> float:
    """Seconds of one pipeline."""
    begin = time.monotonic()
    with beam.Pipeline(runner="DirectRunner") as pipeline:
        _ = pipeline | beam.Create(records) | WriteToTFRecord(str(path.with_name("beam")))
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
