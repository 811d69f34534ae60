"""The second step of ``predict``: predict the records of partitions, and write them as Parquet.

A partition is written completely or not at all, so a task that was interrupted goes on with the
first one that is missing. What it writes depends only on the plan.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.contract.errors import counted
from aerotrain.contract.preparing import PredictPartitionArguments
from aerotrain.data.prepare.cast import CastBatch, cast_to_schema
from aerotrain.data.prepare.layout import (
    PlannedPartition,
    numbers_of_task,
    partition_key,
    quarantine_key,
)
from aerotrain.data.prepare.quarantine import Quarantine
from aerotrain.data.records import Column
from aerotrain.data.sources import open_source
from aerotrain.prediction.columns import kept_columns, output_columns
from aerotrain.prediction.layout import PredictedPartition, PredictionPlan, file_key
from aerotrain.replica import Replica
from aerotrain.serving.served import Served
from aerotrain.store import Store, open_store

#: The records of a row group, and about their bytes.
_GROUP_RECORDS, _GROUP_BYTES = 2**16, 2**25

#: The inputs of the model by column, and the columns of the files without its outputs.
Rows = tuple[dict[str, Any], pa.Table]


def run(replica: Replica) -> dict[str, int]:
    """Predict some partitions, one after another, except those that are written.

    Returns:
        ``{"first": …, "count": …, "records": how many predictions they have}``.

    Raises:
        FinalError: there is no such partition, the model cannot be loaded, or more than
            ``max_rejected`` records of one are rejected.
    """
    arguments = PredictPartitionArguments.from_dict(replica.job.arguments)
    store = open_store(arguments.predictions)
    plan = PredictionPlan.read(store)
    numbers, done = numbers_of_task(store, arguments.first, arguments.count, plan.partitions)
    model = None
    records = 0
    for number in numbers:
        if number in done:
            predicted = PredictedPartition.from_json(store.get(partition_key(number)))
        else:
            model = model or Served.fetched(
                plan.model, replica.scratch / "model", plan.needed, role="the model"
            )
            predicted = _predict(model, plan, number, store, replica.scratch)
        records += predicted.records
    return {"first": arguments.first, "count": arguments.count, "records": records}


def _predict(
    model: Served, plan: PredictionPlan, number: int, store: Store, scratch: Path
) -> PredictedPartition:
    """Predict one partition, and upload its file."""
    file = scratch / "part.parquet"
    quarantine = Quarantine(
        scratch / "quarantine.jsonl",
        plan.arguments.max_rejected,
        f"{store.url}/{quarantine_key(number)}",
    )
    try:
        with quarantine:
            planned = PlannedPartition.read(store, number)
            records = _write(file, plan, model, _rows(plan, planned, quarantine))
            quarantine.check()
    finally:
        if quarantine.path.exists():
            store.upload(quarantine.path, quarantine_key(number))
    predicted = PredictedPartition(
        records=records,
        size=file.stat().st_size if records else 0,
        rejected=quarantine.count,
        first_rejected=quarantine.first,
    )
    if records:
        store.upload(file, file_key(number))
    file.unlink()
    store.put(partition_key(number), predicted.to_json().encode())
    print(f"partition {number} is predicted: {counted(records, 'record')}", flush=True)
    return predicted


def _rows(
    plan: PredictionPlan, planned: PlannedPartition, quarantine: Quarantine
) -> Iterator[Rows]:
    """The valid records of a partition, in the order of the source."""
    source = open_source(plan.source)
    for fragment in planned.fragments:
        for batch in source.read(fragment, plan.reading):
            cast = cast_to_schema(batch, plan.needed, plan.arguments.rules)
            quarantine.add(cast.rejected)
            if len(cast.rows):
                kept = kept_columns(batch, cast.rows, plan.columns)
                yield _inputs(cast), pa.table(kept)


def _inputs(cast: CastBatch) -> dict[str, Any]:
    """The columns as arrays ``(records, *shape)``; texts are bytes."""
    return {name: _array(column) for name, column in cast.columns.items()}


def _array(column: Column) -> Any:
    if not column.is_text:
        return column.values
    values = column.values.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), *column.feature.shape)


def _write(file: Path, plan: PredictionPlan, model: Served, rows: Iterator[Rows]) -> int:
    """Write the predictions of all records to ``file``; returns how many they are."""
    records = written = size = 0
    waiting: list[pa.Table] = []
    # A dictionary of numbers, most of which differ, costs time and saves nothing.
    texts = [each.name for each in plan.columns if not _is_number(each.type)]
    with pq.ParquetWriter(file, plan.columns, compression="zstd", use_dictionary=texts) as writer:
        for inputs, kept in _batches(rows, plan.arguments.batch_size):
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
