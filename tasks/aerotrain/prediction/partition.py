"""The second step of ``predict``: predict the records of partitions, and write them as Parquet."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

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
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.records.columns import Column
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
Rows = tuple[dict[str, Any], dict[str, pa.Array]]


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
    """The valid records of a partition, in the order of the source, at most a batch at once."""
    source = open_source(plan.source)
    for fragment in fragments:
        for batch in source.read(fragment, plan.reading):
            quarantine.add(batch.rejected)
            cast = cast_to_schema(batch, plan.needed, plan.rules.rules)
            quarantine.add(cast.rejected)
            inputs = {name: _array(column) for name, column in cast.columns.items()}
            kept = kept_columns(batch, cast.rows, plan.columns)
            for first in range(0, len(cast.rows), plan.rules.batch_size):
                part = slice(first, first + plan.rules.batch_size)
                yield (
                    {name: values[part] for name, values in inputs.items()},
                    {name: values[part] for name, values in kept.items()},
                )


def _array(column: Column) -> Any:
    """The values as an array ``(records, *shape)``; texts are bytes."""
    if not column.is_text:
        return column.values
    return column.values.to_numpy(zero_copy_only=False).reshape(-1, *column.feature.shape)


def _write(file: Path, plan: PredictionPlan, model: Served, rows: Iterator[Rows]) -> int:
    """Write the predictions of all records to ``file``; returns how many they are."""
    records = grouped = size = 0
    group: list[pa.Table] = []
    # A dictionary of numbers, most of which differ, costs time and saves nothing.
    texts = [each.name for each in plan.columns if not _is_number(each.type)]
    with pq.ParquetWriter(file, plan.columns, compression="zstd", use_dictionary=texts) as writer:
        for inputs, kept in rows:
            columns = kept | output_columns(model.predict(inputs), plan.columns, plan.classes)
            group.append(pa.table([columns[name] for name in plan.columns.names], plan.columns))
            records += len(group[-1])
            grouped += len(group[-1])
            size += group[-1].nbytes
            if grouped >= _GROUP_RECORDS or size >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(group))
                group, grouped, size = [], 0, 0
        if group:
            writer.write_table(pa.concat_tables(group))
    return records


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_nested(kind)
