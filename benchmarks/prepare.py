"""The cost of preparing much data: memory, time, two partitions at once, a plan of many files.

A Parquet table is prepared partition by partition as Airflow maps them, each in a process of its
own: one at a time, two at a time, and again in the other order. The memory of a process is its peak
resident set (`VmHWM`): a limit on address space would count mapped files and untouched buffers of
Arrow. The plan is of a million files, links to one small file, from the listing to the last
document of the plan. If any process held more than 1 GiB, the benchmark fails.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain import standalone
from benchmarks.report import in_turns, median_ratio, print_origin, print_report

GIB = 2**30

#: Most memory of a process.
LIMIT = GIB

ROUNDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="512 MiB, and a plan of 20,000 files")
    parser.add_argument("--folder", type=Path, help="folder for temporary data")
    arguments = parser.parse_args()
    print_origin()
    size, files = (GIB // 2, 20_000) if arguments.quick else (10 * GIB, 1_000_000)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        report(Path(name), size, files, part_bytes=size // 8 if arguments.quick else GIB)


def report(folder: Path, size: int, files: int, part_bytes: int) -> None:
    """Measure everything below ``folder``, and print it."""
    write_table(folder / "table", size)
    rules = {"source": table_at(folder / "table"), "key": ["id"], "part_bytes": part_bytes}
    contestants = {each: partial(prepared, folder / "store", rules, each) for each in (1, 2)}
    results = in_turns(contestants, ROUNDS)
    one, two = (merged(each) for each in results.values())
    link_files(folder / "many", folder / "table", files)
    many = {"source": table_at(folder / "many")}
    plan = cost((folder / "planned").as_uri(), "plan", many)
    rows = [
        {"step": "plan", **one["plan"]},
        {"step": "partitions, one at a time", **one["partitions"]},
        {"step": "partitions, two at a time", **two["partitions"]},
        {"step": "finalize", **one["finalize"]},
        {"step": f"plan of {files:,} files", **taken([plan])},
    ]
    print(f"{size / GIB:g} GiB of records; medians of {ROUNDS} rounds.\n")
    seconds = {name: [each["partitions"]["seconds"] for each in results[name]] for name in results}
    most = max(row["most MiB"] for row in rows[:-1])
    figures = {
        "prepare_two_over_one": median_ratio(seconds[1], seconds[2]),
        "prepare_mib_per_second": size / 2**20 / statistics.median(seconds[1]),
        "prepare_most_mib": most,
        "plan_seconds": plan["seconds"],
        "plan_most_mib": plan["bytes"] / 2**20,
    }
    print_report(rows, figures)
    most = max(row["most MiB"] for row in rows)
    if most > LIMIT // 2**20:
        sys.exit(f"a process held {most} MiB, more than its limit of {LIMIT // 2**20} MiB")


def table_at(folder: Path) -> dict[str, str]:
    return {"kind": "parquet", "url": folder.as_uri()}


def prepared(folder: Path, rules: dict[str, Any], at_once: int) -> dict[str, dict[str, Any]]:
    """The cost of each step, with so many partitions at a time; removes ``folder``."""
    store = folder.as_uri()
    os.sync()  # so that the disk does not write what was written before
    plan = cost(store, "plan", rules)
    begin = time.monotonic()
    partitions = mapped(store, plan["value"]["partitions"], at_once)
    seconds = time.monotonic() - begin
    finalize = cost(store, "finalize", {"dataset": plan["value"]["dataset"]})
    shutil.rmtree(folder)
    return {
        "plan": taken([plan]),
        "partitions": {**taken(partitions), "seconds": seconds},
        "finalize": taken([finalize]),
    }


def merged(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The median seconds of each step, and the most memory, over all rounds."""
    return {
        step: {
            **first,
            "seconds": statistics.median(each[step]["seconds"] for each in rounds),
            "most MiB": max(each[step]["most MiB"] for each in rounds),
        }
        for step, first in rounds[0].items()
    }


def taken(ended: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cost of processes, as columns of the table."""
    return {
        "processes": len(ended),
        "seconds": sum(each["seconds"] for each in ended),
        "most MiB": max(each["bytes"] for each in ended) // 2**20,
    }


def write_table(folder: Path, size: int) -> None:
    """Records of 1 KiB, an id, a price, a town and random bytes, in files of 64 MiB."""
    folder.mkdir()
    random = np.random.default_rng(0)
    each, first = 2**16, 0
    for number in range(size // (each * 1024)):
        ids = np.arange(first, first + each)
        blob = pa.py_buffer(random.integers(0, 256, each * 960, np.uint8))
        table = pa.table(
            {
                "id": ids,
                "price": random.random(each),
                "town": pa.array([f"town-{town}" for town in ids % 50]),
                "blob": pa.FixedSizeBinaryArray.from_buffers(pa.binary(960), each, [None, blob]),
                "label": ids % 10,
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=2**14)
        first += each


def link_files(folder: Path, table: Path, count: int) -> None:
    """So many names below ``folder`` for small Parquet files, as links per file are limited."""
    folder.mkdir()
    first = pq.ParquetFile(next(table.iterdir())).read_row_group(0).slice(0, 10)
    for number in range(count):
        inside = folder / f"{number // 10_000:03d}"
        if number % 10_000 == 0:
            inside.mkdir()
            pq.write_table(first, inside / "0.parquet")
        else:
            (inside / f"{number}.parquet").hardlink_to(inside / "0.parquet")


def mapped(store: str, partitions: Sequence[dict[str, Any]], at_once: int) -> list[dict[str, Any]]:
    """The cost of each partition, with so many of them at the same time."""
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(partial(cost, store, "partition"), partitions))


def cost(store: str, step: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one step in a process of its own; returns its result, and what it took."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run_step, store, step, arguments).result()


def run_step(store: str, step: str, arguments: dict[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    scratch = Path(store.removeprefix("file://")).parent
    with redirect_stdout(sys.stderr):  # stdout is for the report alone
        value = standalone.run_step(f"data.prepare.{step}", store, scratch, **arguments)
    seconds = time.monotonic() - begin
    peak = most_bytes(Path("/proc/self/status").read_text())
    return {"value": value, "seconds": seconds, "bytes": peak}


def most_bytes(status: str) -> int:
    """Peak resident set of the process; `ru_maxrss` would include the parent's before the exec."""
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main()
