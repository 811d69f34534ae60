"""Records a second that Beam writes: run in Beam's own environment, with a file and a number.

Pipelines of the local runner write that number of records from the start of the TFRecord file.
"""

import logging
import struct
import sys
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.io.tfrecordio import WriteToTFRecord

logging.disable(logging.WARNING)

#: Number of timed pipelines: other load on the machine only slows them, so the fastest counts.
ROUNDS = 3


def main() -> None:
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    records = []
    with path.open("rb") as file:
        while len(records) < count:
            (length,) = struct.unpack("<Q", file.read(12)[:8])
            records.append(file.read(length))
            file.read(4)
    write(records[:10], path)  # the first one also loads modules, and is not counted
    print(len(records) / min(write(records, path) for _ in range(ROUNDS)))


def write(records: list[bytes], path: Path) -> float:
    """Run one pipeline; returns its seconds."""
    begin = time.monotonic()
    with beam.Pipeline(runner="DirectRunner") as pipeline:
        _ = pipeline | beam.Create(records) | WriteToTFRecord(str(path.with_name("beam")))
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
