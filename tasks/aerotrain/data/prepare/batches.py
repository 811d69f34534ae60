"""The batches of a partition: its fragments read, in parts that stay small, with their keys."""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Schema
from aerotrain.data.partitions import Fragments
from aerotrain.data.prepare.cast import CastBatch
from aerotrain.data.prepare.plan import DatasetPlan, check_rules
from aerotrain.data.prepare.splitting import texts_of
from aerotrain.data.records.sizes import bytes_of_rows, parts_of
from aerotrain.data.sources import open_source
from aerotrain.data.sources.batch import Batch

#: Separates the values of a key of several columns; no text contains it.
_BETWEEN = pa.scalar(b"\0", pa.large_binary())

#: About how many bytes of records are cast and encoded at once.
_ENCODED_BYTES = 8 * 2**20

#: Bytes of a feature's headers, and of a value by its dtype; integers are varints.
_FEATURE_BYTES = 20
_VALUE_BYTES = {"float64": 8, "float32": 4, "uint8": 1}
_VARINT_BYTES = 10
_STRING_BYTES = 8  # besides its content


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


def in_parts(batch: Batch, schema: Schema) -> Iterator[Batch]:
    """The rows of a batch in parts, each of a limited size as serialized records."""
    sizes = np.zeros(len(batch), np.int64)
    for name, feature in schema.items():
        sizes += len(name) + _FEATURE_BYTES
        if feature.dtype != "string":
            sizes += _VALUE_BYTES.get(feature.dtype, _VARINT_BYTES) * prod(feature.shape)
        elif name in batch.columns:
            sizes += bytes_of_rows(batch.columns[name]) + _STRING_BYTES * prod(feature.shape)
    for part in parts_of(sizes, _ENCODED_BYTES):
        yield batch[part]


def key_texts(
    batch: Batch, fit: CastBatch, rules: PlanArguments
) -> Sequence[str] | Sequence[bytes] | None:
    """The key of each record; None if the records have no keys."""
    if rules.key and len(fit.rows):
        texts = [texts_of(fit.keys[name]) for name in rules.key]
        keys = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, _BETWEEN)
        return keys.to_pylist()
    return None if batch.keys is None else [batch.keys[row] for row in fit.rows]
