"""Sample data for the DAG `flats_daily`: a part of its table for each of some days.

A day has 400 of the 2,000 flats of `dags/data/flats.parquet`, drawn by the date.
"""

import argparse
from datetime import date, timedelta
from io import BytesIO
from pathlib import Path
from random import Random

import pyarrow.parquet as pq

from aerotrain.store import open_store

TABLE = Path(__file__).parent.parent / "dags" / "data" / "flats.parquet"
FLATS = 400


def main() -> None:
    """Write the days from the first to the last one."""
    parser = argparse.ArgumentParser(prog="python -m devtools.days", description=__doc__)
    parser.add_argument("url", help="the table, as s3://aerotrain/incoming/flats")
    parser.add_argument("first", type=date.fromisoformat, help="the first day, as 2026-11-01")
    parser.add_argument("last", type=date.fromisoformat, nargs="?", help="the last day")
    given = parser.parse_args()
    for number in range(((given.last or given.first) - given.first).days + 1):
        day = given.first + timedelta(days=number)
        write_day(given.url, day)
        print(f"{given.url}/dt={day}/flats.parquet")


def write_day(url: str, day: date) -> None:
    """Write the flats of one day to the table at ``url``."""
    table = pq.read_table(TABLE)
    rows = sorted(Random(str(day)).sample(range(table.num_rows), FLATS))
    content = BytesIO()
    pq.write_table(table.take(rows), content)
    open_store(url).put(f"dt={day}/flats.parquet", content.getvalue())


if __name__ == "__main__":
    main()
