"""The second step of ``prepare``: read the fragments of partitions and write their shards."""

import ctypes
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path, PurePath

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.layout import PARTS
from aerotrain.contract.preparing import PartitionArguments, PlanArguments
from aerotrain.data.dataset import Schema, Shard, Split, schema_to_dict
from aerotrain.data.hashing import content_hashes, hashes_of, position_hashes
from aerotrain.data.partitions import (
    NUMBER,
    Fragments,
    Quarantine,
    WrittenPartition,
    write_partitions,
)
from aerotrain.data.prepare.batches import batches_of, in_parts, key_texts
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.prepare.duplicates import KEYS, write_keys
from aerotrain.data.prepare.plan import DatasetPlan
from aerotrain.data.prepare.shuffle import ATTRIBUTES, Attributes, ExternalShuffle
from aerotrain.data.prepare.splitting import (
    NO_SPLIT,
    SplitNumbers,
    Stratifier,
    assign_splits,
    strata_of,
)
from aerotrain.data.records.columns import Columns
from aerotrain.data.records.encoding import content_of, lengths_of
from aerotrain.data.records.framing import encoded_frames
from aerotrain.data.sources.batch import Batch
from aerotrain.data.statistics.column import Statistics
from aerotrain.replica import Replica
from aerotrain.store import open_store

#: The file of the statistics of a partition's records.
STATISTICS = f"{PARTS}/{NUMBER}.statistics.json"

#: Freed bytes that the process keeps; the arrays of one batch are a few times 4 MiB.
_KEPT_BYTES = 64 * 2**20

# https://man7.org/linux/man-pages/man3/mallopt.3.html
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def run(replica: Replica) -> dict[str, int]:
    """Write the shards of some partitions; returns and raises as ``write_partitions``."""
    given = PartitionArguments.from_dict(replica.job.arguments)
    plan = DatasetPlan.read(open_store(given.output))
    keep_freed_memory()

    def write(fragments: Fragments, quarantine: Quarantine, folder: Path) -> WrittenPartition:
        return _write(plan, fragments, quarantine, folder)

    return write_partitions(replica, plan, given.output, given.first, given.count, write)


def keep_freed_memory() -> None:
    """Let this process keep freed memory for reuse.

    By default glibc returns arrays of some megabytes to the system at once, and the page faults
    of the next allocation take a third of the time of encoding.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries lack it, and keep more by themselves
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _write(
    plan: DatasetPlan, fragments: Fragments, quarantine: Quarantine, folder: Path
) -> WrittenPartition:
    """Write the shards of one partition, and its statistics, into ``folder``.

    Raises:
        FinalError: too many records are rejected; the message names the first.
    """
    schema = plan.schema
    shuffle = ExternalShuffle(folder, plan.rules.seed)
    writer = _BatchWriter(plan.rules, shuffle, quarantine)
    for batch, schema in batches_of(plan, fragments):
        writer.write(batch, schema)
    quarantine.check()
    shuffle.finish()
    has_records = shuffle.records > 0
    if writer.has_keys and has_records:
        write_keys(shuffle, plan.rules.seed, folder / PurePath(KEYS).name)
    (folder / PurePath(STATISTICS).name).write_text(writer.statistics.to_json())
    splits = _write_shards(shuffle, plan, folder, has_keys=writer.has_keys)
    if not writer.has_labels:
        splits = {name: replace(split, classes={}) for name, split in splits.items()}
    shards = [shard.file for split in splits.values() for shard in split.shards]
    return WrittenPartition(
        records=shuffle.records,
        files=[*shards, STATISTICS, *([KEYS] if writer.has_keys and has_records else [])],
        about={
            "schema": schema_to_dict(schema) if schema and has_records else None,
            "splits": {name: split.to_dict() for name, split in splits.items()},
            "rounded": dict(writer.rounded),
        },
    )


class _BatchWriter:
    """Casts and encodes batches, adds them to the shuffle, and gathers their statistics."""

    def __init__(
        self, rules: PlanArguments, shuffle: ExternalShuffle, quarantine: Quarantine
    ) -> None:
        self.statistics = Statistics()
        self.rounded: Counter[str] = Counter()
        self.has_keys = bool(rules.key)
        self.has_labels = False
        self._rules = rules
        self._shuffle = shuffle
        self._quarantine = quarantine

    def write(self, batch: Batch, schema: Schema) -> None:
        """Write the valid records of the batch; the others go to quarantine.

        Raises:
            FinalError: the columns do not fit the schema, or too many records are rejected.
        """
        self.has_keys = self.has_keys or batch.keys is not None
        self._quarantine.add(batch.rejected)
        for part in in_parts(batch, schema):
            self._write(part, schema)

    def _write(self, batch: Batch, schema: Schema) -> None:
        fit = cast_to_schema(batch, schema, self._rules)
        self._quarantine.add(fit.rejected)
        self.rounded.update(fit.rounded)
        if not len(fit.rows):
            return
        columns, frames = fit.columns, encoded_frames(fit.columns)
        keys, lengths = key_texts(batch, fit, self._rules), lengths_of(frames.rows)
        hashes = content_hashes(frames.checksums, lengths) if keys is None else hashes_of(keys)
        attributes = np.empty(len(hashes), ATTRIBUTES)
        attributes["hash"] = hashes
        attributes["length"] = lengths
        attributes["split"] = assign_splits(columns, batch.file, hashes, self._rules)
        attributes["label"] = self._labels(columns)
        attributes["stratum"] = 0
        if self._rules.split_by["way"] == "stratified":
            attributes["stratum"] = strata_of(columns[self._rules.split_by["column"]])
        rows, encoded = fit.rows, frames.rows

        is_wrong = (attributes["split"] == NO_SPLIT) | (lengths > self._rules.shard_bytes)
        if is_wrong.any():
            self._quarantine.add(
                [
                    batch.reject(int(rows[row]), self._why_rejected(int(lengths[row])))
                    for row in np.flatnonzero(is_wrong)
                ]
            )
            kept = np.flatnonzero(~is_wrong)
            rows, attributes, encoded = rows[kept], attributes[kept], encoded.take(pa.array(kept))
            columns = {name: column.take(kept) for name, column in columns.items()}
        if len(rows):
            self._shuffle.add(encoded, attributes)
            # Positions, because the contents of records may repeat, and the sample would not.
            sampled = position_hashes(batch.file, batch.offsets[rows])
            times, label = _times_in(batch), self._rules.label
            self.statistics.add(columns, fit.missing, sampled, times=times, label=label)

    def _why_rejected(self, length: int) -> str:
        if length > self._rules.shard_bytes:
            return (
                f"its {length} bytes are more than a whole shard takes, shard_bytes is "
                f"{self._rules.shard_bytes}"
            )
        column = self._rules.split_by["column"]
        return f"column {column!r} names none of the splits {', '.join(sorted(self._rules.splits))}"

    def _labels(self, columns: Columns) -> NDArray[np.int64] | int:
        label = columns.get(self._rules.label)
        if label is None or label.feature.shape or "int" not in label.feature.dtype:
            return 0
        self.has_labels = True
        return label.values.astype(np.int64)


def _times_in(batch: Batch) -> dict[str, str]:
    """The columns that the source has as times, which become integers, with their units since 1970.

    A duration and a time of day have none.
    """
    types = {
        name: values.type
        for name, values in batch.columns.items()
        if isinstance(values, pa.Array | pa.ChunkedArray) and pa.types.is_temporal(values.type)
    }
    return {
        name: "days" if pa.types.is_date(kind) else "microseconds" * pa.types.is_timestamp(kind)
        for name, kind in types.items()
    }


# --- shards


def _write_shards(
    shuffle: ExternalShuffle, plan: DatasetPlan, folder: Path, *, has_keys: bool
) -> dict[str, Split]:
    """Write the records of ``shuffle`` to files in ``folder``; returns the shards by split.

    The shards of a split have equally many records. There are as many as the plan has for a
    partition, or as ``shard_bytes`` needs, but none is empty. The labels are counted as classes.
    """
    names, splitter = sorted(plan.rules.splits), _splitter(plan, shuffle, has_keys=has_keys)
    classes, sizes = [Counter[int]() for _ in names], np.zeros(len(names), np.int64)
    numbers = [np.zeros(0, np.int8)]  # the splits of all records, of a byte each
    for attributes in shuffle.attributes():
        numbers.append(splitter(attributes))
        for split, counts in enumerate(classes):
            found = attributes[numbers[-1] == split]
            sizes[split] += found["length"].sum()
            counts.update(_counted(found["label"]))
    splits = np.concatenate(numbers)
    records = np.bincount(splits, minlength=len(names))
    needed = np.maximum(plan.shards_per_partition, -(-sizes // plan.rules.shard_bytes))
    shards = np.minimum(needed, records)

    files: list[list[_ShardFile]] = [[] for _ in names]
    written, read = np.zeros(len(names), np.int64), 0
    for frames, attributes in shuffle.sorted():
        of_part = splits[read : read + len(attributes)]
        read += len(attributes)
        for split, name in enumerate(names):
            rows = np.flatnonzero(of_part == split)
            shard_of = (written[split] + np.arange(len(rows))) * shards[split] // records[split]
            written[split] += len(rows)
            for shard in np.unique(shard_of):
                if shard == len(files[split]):
                    if shard:
                        files[split][-1].close()
                    key = f"{name}-{NUMBER}-{shard:03d}.tfrecord"
                    files[split].append(_ShardFile(folder, key))
                files[split][-1].write(frames.take(pa.array(rows[shard_of == shard])))
    return {
        name: Split(shards=tuple(file.close() for file in files[split]), classes=classes[split])
        for split, name in enumerate(names)
    }


def _splitter(
    plan: DatasetPlan, shuffle: ExternalShuffle, *, has_keys: bool
) -> Callable[[Attributes], SplitNumbers]:
    """A function for the splits of the next records; ``stratified`` divides each class."""
    is_stratified = plan.rules.split_by["way"] == "stratified"
    if not is_stratified or (len(plan.partitions) > 1 and not has_keys):
        return itemgetter("split")  # an equal record in another partition must get the same one
    counts: Counter[int] = Counter()
    for records in shuffle.attributes():
        counts.update(_counted(records["stratum"]))
    stratifier = Stratifier(counts, plan.rules.splits)
    return lambda records: stratifier.splits_of(records["stratum"], records["hash"])


def _counted(values: NDArray[np.integer]) -> dict[int, int]:
    """How often each value occurs."""
    different, counts = np.unique(values, return_counts=True)
    return dict(zip(different.tolist(), counts.tolist(), strict=True))


class _ShardFile:
    """A shard that is being written."""

    def __init__(self, folder: Path, key: str) -> None:
        self._key = key
        self._file = (folder / key).open("wb")
        self._digest = hashlib.sha256()
        self._records = self._bytes = 0

    def write(self, rows: pa.LargeBinaryArray) -> None:
        data = content_of(rows).data
        self._file.write(data)
        self._digest.update(data)
        self._records += len(rows)
        self._bytes += data.nbytes

    def close(self) -> Shard:
        """Close the file, if it is open."""
        self._file.close()
        digest = self._digest.hexdigest()
        return Shard(file=self._key, records=self._records, bytes=self._bytes, sha256=digest)
