"""The source of Parquet files: row groups are read column by column, in batches."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import RecordError, column_of
from aerotrain.data.sources.declared import COLUMN_OPTIONS
from aerotrain.data.sources.files import (
    FileSource,
    InputFile,
    file_and_span,
    fragment_of,
)
from aerotrain.data.sources.hive import with_partitions
from aerotrain.data.sources.protocol import (
    Batch,
    Fragment,
    SourceError,
    check_columns,
)

#: Compressed bytes of the row groups of one fragment.
FRAGMENT_BYTES = 64 * 2**20

#: About how many bytes of columns are decoded at once.
_BATCH_BYTES = 4 * 2**20
_MOST_ROWS = 32_768


@dataclass(frozen=True)
class ParquetSource(FileSource):
    """Parquet files below a URL."""

    options = COLUMN_OPTIONS | {"nulls"}

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            if file.size <= FRAGMENT_BYTES:  # no need to read its footer
                yield fragment_of(file, (0, -1), 2 * file.size)
                continue
            with _opened(file) as parquet:
                yield from _row_groups(file, parquet.metadata)

    def schema(self) -> Schema:
        """The schema by the first rows of the first file that has any."""
        for file in self.files:
            with _opened(file) as parquet:
                found = parquet.schema_arrow.names
                others = [name for name in file.partitions if name not in found]
                selected = self.declared.selected(file.url, [*found, *others])
                names = [name for name in selected if name not in file.partitions]
                check_columns(file.url, names, found)
                for batch in parquet.iter_batches(1000, columns=names):
                    features = {name: self._feature(name, batch, file) for name in names}
                    return features | {
                        name: Feature("string") for name in file.partitions if name in selected
                    }
        raise SourceError(
            f"the source is empty: none of its {len(self.files)} files has a row; check that "
            "the input is where the source looks for it"
        )

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, (first, last) = file_and_span(description)
        with _opened(file) as parquet:
            found, partitions = parquet.schema_arrow.names, file.partitions
            self.declared.check_others(file.url, [*found, *partitions], schema)
            check_columns(file.url, [name for name in schema if name not in partitions], found)
            # A column with the name of a partition is read to compare them.
            names = [name for name in schema if name in found]
            groups = range(parquet.num_row_groups)[first : None if last < 0 else last]
            row = sum(parquet.metadata.row_group(each).num_rows for each in range(first))
            for batch in _batches(parquet, groups, names):
                count = len(batch)
                columns = {name: batch.column(name) for name in names}
                yield Batch(
                    columns=with_partitions(columns, file.url, partitions, count, self.declared),
                    file=file.url,
                    offsets=np.arange(row, row + count),
                    unit="row",
                )
                row += count

    def _feature(self, name: str, batch: pa.RecordBatch, file: InputFile) -> Feature:
        values = batch.column(name).drop_null()
        if name in self.declared.types and not pa.types.is_nested(values.type):
            return Feature("string")  # the declared type replaces it
        if not len(values) and (pa.types.is_nested(values.type) or pa.types.is_null(values.type)):
            raise RecordError(
                f"the column {name!r} is null in the first rows of {file.url}, so its type is "
                "unknown; set its type in 'types', or leave it out with 'skip'"
            )
        return column_of(name, values).feature


def _batches(parquet: pq.ParquetFile, groups: range, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, in batches of about ``_BATCH_BYTES``."""
    rows = sum(parquet.metadata.row_group(each).num_rows for each in groups)
    size = sum(parquet.metadata.row_group(each).total_byte_size for each in groups)
    at_once = max(1, min(_MOST_ROWS, _BATCH_BYTES * rows // max(1, size)))
    yield from parquet.iter_batches(
        at_once, row_groups=list(groups), columns=names, use_threads=False
    )


def _row_groups(file: InputFile, metadata: pq.FileMetaData) -> Iterator[Fragment]:
    first, size, content = 0, 0, 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size += sum(group.column(each).total_compressed_size for each in range(group.num_columns))
        content += group.total_byte_size
        if size >= FRAGMENT_BYTES or number + 1 == metadata.num_row_groups:
            yield fragment_of(file, (first, number + 1), content)
            first, size, content = number + 1, 0, 0


@contextmanager
def _opened(file: InputFile) -> Iterator[pq.ParquetFile]:
    """The opened file; Arrow's errors become ``SourceError``."""
    try:
        with file.open() as stream, pq.ParquetFile(stream, pre_buffer=False) as parquet:
            yield parquet
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise SourceError(
            f"{file.url} is not a complete Parquet file: {str(error).splitlines()[0]}; it may be "
            "truncated: write it again"
        ) from error
