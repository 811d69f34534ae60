"""A small data set of the first records of a source, on which a training is checked."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import STATISTICS, Dataset, Schema, Shard, Split
from aerotrain.data.prepare.batch_writer import batches_of, in_parts
from aerotrain.data.prepare.cast import CastBatch, cast_to_schema
from aerotrain.data.prepare.layout import Plan, PlannedPartition
from aerotrain.data.prepare.plan import make_plan
from aerotrain.data.records import Column, encoded_frames
from aerotrain.data.statistics.column import Statistics
from aerotrain.store import MANIFEST

_SHARD = "first-records.tfrecord"


def write_first_records(arguments: PlanArguments, records: int, folder: Path) -> str | None:
    """Write the first valid records of the source as a data set into ``folder``.

    It has ``records`` records of the source's first batch: the first ones, repeated if these are
    too few, and those with the least and the greatest label. They are the same in all splits. Its
    statistics are those of that batch.

    Returns:
        The URL of the data set; None if the source has no valid record.

    Raises:
        FinalError: the source cannot be read.
    """
    plan, partitions = make_plan(arguments)
    found = next(_valid(plan, partitions), None)
    if found is None:
        return None
    fit, schema = found
    rows = _rows(len(fit.rows), records, fit.columns.get(arguments.label))
    content = bytes(encoded_frames({n: each.take(rows) for n, each in fit.columns.items()}).content)
    statistics = Statistics()
    statistics.add(fit.columns, fit.missing, np.arange(len(fit.rows), dtype=np.uint64))
    shard = Shard(
        file=_SHARD,
        records=records,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    dataset = Dataset(
        fingerprint="first-records",
        source=plan.source,
        schema=schema,
        label=arguments.label,
        splits={name: Split(shards=(shard,)) for name in arguments.splits},
    )
    folder.mkdir(parents=True)
    (folder / _SHARD).write_bytes(content)
    (folder / STATISTICS).write_text(json.dumps(statistics.summary()))
    (folder / MANIFEST).write_text(dataset.to_json())
    return folder.as_uri()


def _rows(count: int, records: int, label: Column | None) -> NDArray[np.int64]:
    """The rows of a batch of ``count`` records to try.

    Data may be sorted by their label, and a model refuse only its greatest number.
    """
    rows = np.arange(records) % count
    if label is None or label.feature.dtype == "string" or label.feature.shape:
        return rows
    if records < count:
        ends = [int(label.values.argmax()), int(label.values.argmin())][:records]
        rows[-len(ends) :] = ends
    return rows


def _valid(
    plan: Plan, partitions: Iterable[PlannedPartition]
) -> Iterator[tuple[CastBatch, Schema]]:
    """The batches that have a valid record, each with the schema."""
    for planned in partitions:
        for batch, schema in batches_of(plan, planned):
            for part in in_parts(batch, schema):
                fit = cast_to_schema(part, schema, plan.rules)
                if len(fit.rows):
                    yield fit, schema
