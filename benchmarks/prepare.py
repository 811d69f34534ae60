"""The cost of preparing much data: memory, time, two partitions at once, a plan of many files.

A Parquet table is prepared partition by partition as Airflow maps them, each in a process of its
own: one at a time, two at a time, and again in the other order. The memory of a process is its peak
resident set (`VmHWM`): a limit on address space would count mapped files and untouched buffers of
Arrow. The plan is of a million files, links to one small file, from the listing to the last
document of the plan.
"""

import multiprocessing
import os
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain import standalone
from benchmarks.report import Report, in_turns, ratios, run

GIB = 2**30

ROUNDS = 2


@dataclass(frozen=True)
class Cost:
    """What processes took: how many, their seconds, and the most memory of one, in MiB."""

    processes: int
    seconds: float
    most: float
    value: Any = None


def measure(given: Namespace, folder: Path) -> Report:
    """The costs of each step of a table, and of the plan of many files."""
    size, files, part = (GIB // 2, 20_000, GIB // 16) if given.quick else (10 * GIB, 10**6, GIB)
    write_table(folder / "table", size)
    rules = {"source": table_at(folder / "table"), "key": ["id"], "part_bytes": part}
    contestants = {each: partial(prepared, folder / "store", rules, each) for each in (1, 2)}
    results = in_turns(contestants, ROUNDS)
    link_files(folder / "many", folder / "table", files)
    plan = cost((folder / "planned").as_uri(), "plan", {"source": table_at(folder / "many")})
    steps = {
        "plan": [each["plan"] for each in results[1]],
        "partitions, one at a time": [each["partitions"] for each in results[1]],
        "partitions, two at a time": [each["partitions"] for each in results[2]],
        "finalize": [each["finalize"] for each in results[1]],
    }
    one, two = ([each["partitions"].seconds for each in results[at_once]] for at_once in (1, 2))
    return Report(
        [row(step, costs) for step, costs in {**steps, f"plan of {files:,} files": [plan]}.items()],
        {
            "prepare_two_over_one": ratios(one, two),
            "prepare_mib_per_second": size / 2**20 / statistics.median(one),
            "prepare_most_mib": max(each.most for costs in steps.values() for each in costs),
            "plan_seconds": plan.seconds,
            "plan_most_mib": plan.most,
        },
    )


def row(step: str, rounds: Sequence[Cost]) -> dict[str, Any]:
    """The median seconds and the most memory over all rounds."""
    return {
        "step": step,
        "processes": rounds[0].processes,
        "seconds": statistics.median(each.seconds for each in rounds),
        "most MiB": round(max(each.most for each in rounds)),
    }


def prepared(folder: Path, rules: Mapping[str, Any], at_once: int) -> dict[str, Cost]:
    """The cost of each step, with so many partitions at a time; removes ``folder``."""
    store = folder.as_uri()
    os.sync()  # so that the disk does not write what was written before
    plan = cost(store, "plan", rules)
    begin = time.monotonic()
    with ThreadPoolExecutor(at_once) as threads:
        parts = list(threads.map(partial(cost, store, "partition"), plan.value["partitions"]))
    seconds, most = time.monotonic() - begin, max(each.most for each in parts)
    finalize = cost(store, "finalize", {"output": plan.value["output"]})
    shutil.rmtree(folder)
    return {"plan": plan, "partitions": Cost(len(parts), seconds, most), "finalize": finalize}


def cost(store: str, step: str, arguments: Mapping[str, Any]) -> Cost:
    """Run one step in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run_step, store, step, arguments).result()


def run_step(store: str, step: str, arguments: Mapping[str, Any]) -> Cost:
    begin = time.monotonic()
    scratch = Path(store.removeprefix("file://")).parent
    value = standalone.run_step(f"data.prepare.{step}", store, scratch, **arguments)
    seconds = time.monotonic() - begin
    # `ru_maxrss` would include the peak of the parent before the exec.
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return Cost(1, seconds, int(peak) / 1024, value)


def table_at(folder: Path) -> dict[str, str]:
    return {"kind": "parquet", "url": folder.as_uri()}


def write_table(folder: Path, size: int) -> None:
    """Records of 1 KiB, an id, a price, a town and random bytes, in files of 64 MiB."""
    folder.mkdir()
    random = np.random.default_rng(0)
    count = 2**16
    for number in range(size // (count * 1024)):
        ids = np.arange(number * count, (number + 1) * count)
        blob = pa.py_buffer(random.integers(0, 256, count * 960, np.uint8))
        table = pa.table(
            {
                "id": ids,
                "price": random.random(count),
                "town": pa.array([f"town-{town}" for town in ids % 50]),
                "blob": pa.FixedSizeBinaryArray.from_buffers(pa.binary(960), count, [None, blob]),
                "label": ids % 10,
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=2**14)


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


if __name__ == "__main__":
    run(measure, __doc__)
