"""The write path of one partition: cast, encode, split and shuffle the batches of its source."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Schema
from aerotrain.data.hashing import Hashes, content_hashes, hashes_of, position_hashes
from aerotrain.data.partitions import Fragments, Quarantine
from aerotrain.data.prepare.cast import CastBatch, cast_to_schema
from aerotrain.data.prepare.plan import DatasetPlan, check_rules
from aerotrain.data.prepare.shuffle import ATTRIBUTES, Attributes, ExternalShuffle
from aerotrain.data.prepare.splitting import NO_SPLIT, assign_splits, strata_of, texts_of
from aerotrain.data.records.columns import Columns
from aerotrain.data.records.encoding import lengths_of
from aerotrain.data.records.framing import encoded_frames
from aerotrain.data.records.sizes import Sizes, bytes_of_rows, parts_of
from aerotrain.data.sources import open_source
from aerotrain.data.sources.batch import Batch
from aerotrain.data.statistics.column import Statistics

#: Separates the values of a key of several columns; no text contains it.
_BETWEEN = pa.scalar(b"\0", pa.large_binary())


def batches_of(plan: DatasetPlan, fragments: Fragments) -> Iterator[tuple[Batch, Schema]]:
    """The batches of a partition, each with the schema; the plan's, or that of the first batch.

    Raises:
        SpecError: a rule names a column that the first batch does not have.
    """
    source, schema = open_source(plan.source), plan.schema
    for fragment in fragments:
        for batch in source.read(fragment, schema):
            if not schema and len(batch):
                schema = source.schema_of(batch)
                check_rules(plan.rules, schema)
            yield batch, schema or {}


#: About how many bytes of records are encoded at once.
_ENCODED_BYTES = 8 * 2**20

#: Bytes of a feature's headers, and of a value by its dtype; integers are varints.
_FEATURE_BYTES = 20
_VALUE_BYTES = {"float64": 8, "float32": 4, "uint8": 1}
_VARINT_BYTES = 10
_STRING_BYTES = 8  # besides its content


class BatchWriter:
    """Writes the batches of one partition to the shuffle, and gathers their statistics."""

    def __init__(
        self, rules: PlanArguments, shuffle: ExternalShuffle, quarantine: Quarantine
    ) -> None:
        self.statistics = Statistics()
        self.rounded: Counter[str] = Counter()
        self.has_keys = bool(rules.key)
        self.has_labels = False
        self._rules = rules
        self.shuffle = shuffle
        self._quarantine = quarantine

    def write(self, batch: Batch, schema: Schema) -> None:
        """Write the valid records of the batch; the others go to quarantine.

        Raises:
            FinalError: the columns do not fit the schema, or too many records are rejected.
        """
        self.has_keys = self.has_keys or batch.keys is not None
        self._quarantine.add(batch.rejected)
        for part in in_parts(replace(batch, rejected=()), schema):
            self._write(part, schema)

    def _write(self, batch: Batch, schema: Schema) -> None:
        fit = cast_to_schema(batch, schema, self._rules)
        self._quarantine.add(fit.rejected)
        self.rounded.update(fit.rounded)
        if not len(fit.rows):
            return
        frames = encoded_frames(fit.columns)
        lengths = lengths_of(frames.rows)
        keys = key_texts(batch, fit, self._rules)
        hashes = content_hashes(frames.checksums, lengths) if keys is None else hashes_of(keys)
        attributes = np.empty(len(hashes), ATTRIBUTES)
        attributes["hash"] = hashes
        attributes["length"] = lengths
        attributes["split"] = assign_splits(fit.columns, batch.file, hashes, self._rules)
        attributes["label"] = self._labels(fit.columns)
        attributes["stratum"] = self._strata(fit.columns)
        # Hashing positions keeps the sample fair to the records where their contents repeat.
        sampled = (
            hashes if keys is not None else position_hashes(batch.file, batch.offsets[fit.rows])
        )
        self._add(batch, fit, frames.rows, attributes, sampled)

    def _add(
        self,
        batch: Batch,
        fit: CastBatch,
        frames: pa.LargeBinaryArray,
        attributes: Attributes,
        sampled: Hashes,
    ) -> None:
        """Add the records that have a split and fit into a shard to the shuffle."""
        columns = fit.columns
        wrong = attributes["split"] == NO_SPLIT
        wrong |= attributes["length"] > self._rules.shard_bytes
        if wrong.any():
            self._quarantine.add(
                [
                    batch.reject(fit.rows[row], self._why_rejected(attributes["length"][row]))
                    for row in np.flatnonzero(wrong)
                ]
            )
            kept = np.flatnonzero(~wrong)
            frames, attributes, sampled = (
                frames.take(pa.array(kept)),
                attributes[kept],
                sampled[kept],
            )
            columns = {name: column.take(kept) for name, column in columns.items()}
        if len(attributes):
            self.shuffle.add(frames, attributes)
            self.statistics.add(
                columns, fit.missing, sampled, times=_times_in(batch), label=self._rules.label
            )

    def _why_rejected(self, length: np.int64) -> str:
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

    def _strata(self, columns: Columns) -> Hashes | int:
        if self._rules.split_by["way"] != "stratified":
            return 0
        return strata_of(columns[self._rules.split_by["column"]])


def _times_in(batch: Batch) -> dict[str, str]:
    """The columns that the source has as times, which become integers, with their units since 1970.

    A duration and a time of day have none.
    """
    return {
        name: _since_1970(values.type)
        for name, values in batch.columns.items()
        if isinstance(values, pa.Array | pa.ChunkedArray) and pa.types.is_temporal(values.type)
    }


def _since_1970(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "days"
    return "microseconds" if pa.types.is_timestamp(kind) else ""


def in_parts(batch: Batch, schema: Schema) -> Iterator[Batch]:
    """The rows of a batch in parts that are cast and encoded at once, and stay small by that."""
    for part in parts_of(_encoded_sizes(batch, schema), _ENCODED_BYTES):
        yield batch[part]


def _encoded_sizes(batch: Batch, schema: Schema) -> Sizes:
    """At least the bytes of each row as a serialized record."""
    sizes = np.zeros(len(batch), np.int64)
    for name, feature in schema.items():
        sizes += len(name) + _FEATURE_BYTES
        if feature.dtype != "string":
            sizes += _VALUE_BYTES.get(feature.dtype, _VARINT_BYTES) * prod(feature.shape)
        elif name in batch.columns:
            sizes += bytes_of_rows(batch.columns[name]) + _STRING_BYTES * prod(feature.shape)
    return sizes


def key_texts(
    batch: Batch, fit: CastBatch, rules: PlanArguments
) -> Sequence[str] | Sequence[bytes] | None:
    """The key of each record; None if the records have no keys."""
    if rules.key and len(fit.rows):
        texts = [texts_of(fit.keys[name]) for name in rules.key]
        keys = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, _BETWEEN)
        return keys.to_pylist()
    return None if batch.keys is None else [batch.keys[row] for row in fit.rows]
