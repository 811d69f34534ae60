"""The second step of ``predict``: predict the records of partitions, and write them as Parquet."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.contract.layout import DATA
from aerotrain.contract.preparing import PartitionArguments
from aerotrain.data.partitions import (
    NUMBER,
    Fragments,
    Quarantine,
    WrittenPartition,
    write_partitions,
)
from aerotrain.data.prepare.cast import CastBatch, cast_to_schema
from aerotrain.data.sources import open_source
from aerotrain.prediction.columns import kept_columns, output_columns
from aerotrain.prediction.plan import PredictionPlan
from aerotrain.replica import Replica
from aerotrain.serving.served import Served
from aerotrain.store import open_store

#: The file of a partition's predictions; there is none if it has no record.
FILE = f"{DATA}/part-{NUMBER}.parquet"

#: The records of a row group, and about their bytes.
_GROUP_RECORDS, _GROUP_BYTES = 2**16, 2**25

#: The inputs of the model by column, and the columns of the files without its outputs.
Rows = tuple[dict[str, Any], pa.Table]


def run(replica: Replica) -> dict[str, int]:
    """Predict some partitions; returns and raises as ``write_partitions``.

    Raises:
        FinalError: the model cannot be loaded.
    """
    given = PartitionArguments.from_dict(replica.job.arguments)
    plan = PredictionPlan.read(open_store(given.output))

    @cache
    def model() -> Served:
        folder = replica.scratch / "model"
        return Served.fetched(plan.model, folder, plan.needed, role="the model")

    def write(fragments: Fragments, quarantine: Quarantine, folder: Path) -> WrittenPartition:
        file = folder / PurePath(FILE).name
        records = _write(file, plan, model(), _rows(plan, fragments, quarantine))
        quarantine.check()
        size = file.stat().st_size
        if not records:
            file.unlink()
        return WrittenPartition(
            records=records, files=[FILE] if records else [], about={"bytes": size}
        )

    return write_partitions(replica, plan, given.output, given.first, given.count, write)


def _rows(plan: PredictionPlan, fragments: Fragments, quarantine: Quarantine) -> Iterator[Rows]:
    """The valid records of a partition, in the order of the source."""
    source = open_source(plan.source)
    for fragment in fragments:
        for batch in source.read(fragment, plan.reading):
            cast = cast_to_schema(batch, plan.needed, plan.rules.rules)
            quarantine.add(cast.rejected)
            if len(cast.rows):
                kept = kept_columns(batch, cast.rows, plan.columns)
                yield _inputs(cast), pa.table(kept)


def _inputs(cast: CastBatch) -> dict[str, Any]:
    """The columns as arrays ``(records, *shape)``; texts are bytes."""
    return {
        name: column.values.to_numpy(zero_copy_only=False).reshape(-1, *column.feature.shape)
        if column.is_text
        else column.values
        for name, column in cast.columns.items()
    }


def _write(file: Path, plan: PredictionPlan, model: Served, rows: Iterator[Rows]) -> int:
    """Write the predictions of all records to ``file``; returns how many they are."""
    records = written = size = 0
    waiting: list[pa.Table] = []
    # A dictionary of numbers, most of which differ, costs time and saves nothing.
    texts = [each.name for each in plan.columns if not _is_number(each.type)]
    with pq.ParquetWriter(file, plan.columns, compression="zstd", use_dictionary=texts) as writer:
        for inputs, kept in _batches(rows, plan.rules.batch_size):
            outputs = output_columns(model.predict(inputs), plan.columns, plan.classes)
            arrays = {name: kept[name] for name in kept.column_names} | outputs
            waiting.append(pa.table([arrays[n] for n in plan.columns.names], plan.columns))
            records += len(kept)
            size += waiting[-1].nbytes
            if records - written >= _GROUP_RECORDS or size >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting, written, size = [], records, 0
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return records


def _batches(rows: Iterator[Rows], size: int) -> Iterator[Rows]:
    """The same records in batches of ``size``, the last of which may be smaller."""
    waiting: list[Rows] = []
    count = 0
    for each in rows:
        waiting.append(each)
        count += len(each[1])
        if count >= size:
            inputs, kept = _joined(waiting)
            full = count - count % size
            for first in range(0, full, size):
                yield _sliced(inputs, kept, first, first + size)
            waiting, count = [_sliced(inputs, kept, full, count)], count - full
    if count:
        yield _joined(waiting)


def _joined(rows: list[Rows]) -> Rows:
    if len(rows) == 1:
        return rows[0]
    inputs = {name: np.concatenate([each[name] for each, _ in rows]) for name in rows[0][0]}
    return inputs, pa.concat_tables([kept for _, kept in rows])


def _sliced(inputs: dict[str, Any], kept: pa.Table, first: int, last: int) -> Rows:
    return {n: each[first:last] for n, each in inputs.items()}, kept.slice(first, last - first)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_nested(kind)
