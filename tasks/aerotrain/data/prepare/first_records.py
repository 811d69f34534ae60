"""A small data set of the first records of a source, on which a training is checked."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import STATISTICS
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Dataset, Schema, Shard, Split, json_text, load_dataset
from aerotrain.data.partitions import Fragments
from aerotrain.data.prepare.batches import batches_of, in_parts
from aerotrain.data.prepare.cast import CastBatch, cast_to_schema
from aerotrain.data.prepare.plan import DatasetPlan, make_plan
from aerotrain.data.records.framing import FramingError, encoded_frames, framed, read_frames
from aerotrain.data.sources.batch import Rejected
from aerotrain.data.statistics.column import Statistics
from aerotrain.store import MANIFEST, CorruptError, open_store


def write_first_records(arguments: PlanArguments, records: int, folder: Path) -> str:
    """Write the first valid records of the source as a data set into ``folder``.

    It has ``records`` records of the source's first batch: the first ones, repeated if these are
    too few, and those with the least and the greatest label. They are the same in all splits. Its
    statistics are those of that batch.

    Returns:
        The URL of the data set.

    Raises:
        FinalError: the source cannot be read, or has no valid record.
    """
    plan, partitions = make_plan(arguments)
    fit, schema = _first_valid(plan, partitions)
    rows = np.arange(records) % len(fit.rows)
    label = fit.columns.get(arguments.label)
    if label and not label.is_text and not label.feature.shape and records < len(fit.rows):
        # Data may be sorted by their label, and a model refuse only its greatest number.
        ends = [int(label.values.argmax()), int(label.values.argmin())][:records]
        rows[-len(ends) :] = ends
    content = bytes(encoded_frames({n: each.take(rows) for n, each in fit.columns.items()}).content)
    statistics = Statistics()
    statistics.add(fit.columns, fit.missing, np.arange(len(fit.rows), dtype=np.uint64))
    dataset = Dataset(
        fingerprint="",
        source=plan.source,
        schema=schema,
        label=arguments.label,
        splits={name: Split() for name in arguments.splits},
    )
    contents = dict.fromkeys(arguments.splits, content)
    return _write(dataset, contents, records, json_text(statistics.summary()).encode(), folder)


def copy_first_records(url: str, records: int, folder: Path) -> str:
    """Write the first records of each split of a data set as a data set into ``folder``.

    Each split has ``records`` records, repeated if it has fewer. The statistics are those of the
    whole.

    Returns:
        The URL of the data set in ``folder``.
    """
    store, dataset = open_store(url), load_dataset(url)
    folder.mkdir(parents=True)
    contents = {}
    for name, split in dataset.splits.items():
        if split.records:
            first = folder / "first.tfrecord"
            store.download(split.shards[0].file, first)
            try:
                with first.open("rb") as file:
                    found = [each for _, each in islice(read_frames(file), records)]
            except FramingError as error:
                raise CorruptError(f"{url}/{split.shards[0].file} is damaged: {error}") from error
            first.unlink()
            rows = pa.array(islice(cycle(found), records), pa.large_binary())
            contents[name] = bytes(framed(rows).content)
    statistics = store.get(STATISTICS) if store.exists(STATISTICS) else b"{}"
    return _write(dataset, contents, records, statistics, folder)


def _write(
    dataset: Dataset, contents: Mapping[str, bytes], records: int, statistics: bytes, folder: Path
) -> str:
    """Write ``dataset`` with those ``contents`` of its splits, of ``records`` records each."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = dict(dataset.splits)
    for name, content in contents.items():
        file = f"{name}.tfrecord"
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        shard = Shard(file=file, records=records, bytes=len(content), sha256=digest)
        splits[name] = Split(shards=(shard,))
    written = replace(dataset, fingerprint="first-records", splits=splits)
    (folder / STATISTICS).write_bytes(statistics)
    (folder / MANIFEST).write_text(written.to_json())
    return folder.as_uri()


def _first_valid(plan: DatasetPlan, partitions: Iterable[Fragments]) -> tuple[CastBatch, Schema]:
    """The first batch that has a valid record, and the schema.

    Raises:
        FinalError: there is none.
    """
    rejected: Sequence[Rejected] = ()
    for fragments in partitions:
        for batch, schema in batches_of(plan, fragments):
            for part in in_parts(batch, schema):
                fit = cast_to_schema(part, schema, plan.rules)
                if len(fit.rows):
                    return fit, schema
                rejected = rejected or fit.rejected[:1]
            rejected = rejected or batch.rejected[:1]
    why = "".join(f"; the first one is rejected: {each.reason}" for each in rejected)
    raise FinalError(
        f"the source {dict(plan.source)} has no valid record{why}; correct the source, or its "
        "description"
    )
