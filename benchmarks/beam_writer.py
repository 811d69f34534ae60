"""Writes the records of a TFRecord file with Beam: run in Beam's own environment, with the file.

For each line of its input, it runs a pipeline of the local runner and prints the seconds.
"""

import logging
import struct
import sys
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.io.tfrecordio import WriteToTFRecord

logging.disable(logging.WARNING)


def main() -> None:
    path = Path(sys.argv[1])
    records = []
    with path.open("rb") as file:
        while header := file.read(12):
            (length,) = struct.unpack("<Q", header[:8])
            records.append(file.read(length))
            file.read(4)
    write(records[:10], path)  # the first one also loads modules
    for _ in sys.stdin:
        print(write(records, path), flush=True)


def write(records: list[bytes], path: Path) -> float:
    """Run one pipeline; returns its seconds."""
    begin = time.monotonic()
    with beam.Pipeline(runner="DirectRunner") as pipeline:
        _ = pipeline | beam.Create(records) | WriteToTFRecord(str(path.with_name("beam")))
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
