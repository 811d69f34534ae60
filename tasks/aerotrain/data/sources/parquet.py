"""The source of Parquet files: row groups are read column by column, in batches.

The sizes in a file's metadata are those of encoded values: a text that fills a whole column is
stored once. So texts of which a batch may be large are read as dictionaries, as they are stored,
and batches are cut by the sizes of the values that the dictionaries stand for. Others are not:
Arrow adds texts that are stored in full to the dictionary, and copies all of it into each batch.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.data.dataset import Schema
from aerotrain.data.records.sizes import bytes_of_rows, parts_of
from aerotrain.data.sources.batch import Batch, Fragment, Rejected, SourceError
from aerotrain.data.sources.declared import check_columns
from aerotrain.data.sources.files import BLOCK, InputFile
from aerotrain.data.sources.source import file_and_span, fragment_of, spread
from aerotrain.data.sources.table import TableSource

#: Bytes of the values of one fragment, if its row groups are not larger.
FRAGMENT_BYTES = 128 * 2**20

#: The usual ratio of the sizes of values in memory and in a file.
_RATIO = 2

#: About how many bytes of columns are decoded at once, and the most rows.
_BATCH_BYTES = 4 * 2**20
_MOST_ROWS = 32_768

#: The most bytes of texts of one batch that are not read as dictionaries.
_MOST_TEXT_BYTES = 64 * 2**20

#: The most rows in an encoding that stores only what differs from the value before.
_MOST_DELTA_ROWS = 256

#: The most compressed bytes of a row group that are held whole; of a larger one, a part of
#: each column is.
_ROW_GROUP_BYTES = 128 * 2**20

#: Rows of a row group by which types are inferred.
_SCHEMA_ROWS = 1000

#: What pandas calls the index of a table, its row numbers, in a file.
_INDEX = re.compile(r"__index_level_\d+__").fullmatch

#: The most row groups that stand for all.
_PLACES = 8


class ParquetSource(TableSource):
    """Parquet files below a URL."""

    options = TableSource.options | {"pad"}

    def fragments(self) -> Iterator[Fragment]:
        ratio = self._ratio
        for file in self.files:
            content = ratio * file.size
            if content <= FRAGMENT_BYTES:  # no need to read its footer
                yield fragment_of(file, (0, -1), content)
                continue
            with _opened(file) as parquet:
                yield from _row_groups(file, parquet.metadata, ratio)

    @cached_property
    def _ratio(self) -> int:
        """How many times larger values are in memory than in the first file, a power of 2.

        A value that repeats is stored once. Rounded, the ratio and with it the partitions seldom
        change when files are added.
        """
        file = self.files[0]
        with _opened(file) as parquet:
            rows = parquet.metadata.num_rows
        for _, table in self.sample(file, (0, rows), []):
            ratio = table.nbytes * rows // len(table) // file.size
            return max(_RATIO, 1 << ratio.bit_length() - 1) if ratio else _RATIO
        return _RATIO

    def sample(
        self, file: InputFile, span: tuple[int, int], rejected: list[Rejected]
    ) -> Iterator[tuple[Sequence[str], pa.Table]]:
        with _opened(file) as parquet:
            names = self._names_in(parquet)
            once = [name for name, count in Counter(names).items() if count == 1]
            groups = range(parquet.num_row_groups)[slice(*span)]
            wanted = list(filter(self.declared.reads, once))
            for batch in islice(_batches(file, parquet, groups, wanted), 1):
                yield names, pa.Table.from_batches([batch[:_SCHEMA_ROWS]])

    def sampled(self) -> tuple[Sequence[Mapping[str, Any]], bool]:
        files = spread(self.files, _PLACES)
        sampled, is_whole = [], len(files) == len(self.files)
        for file in files:
            with _opened(file) as parquet:
                groups = range(parquet.num_row_groups)
            chosen = spread(groups, -(-_PLACES // len(files)))
            sampled += [{"file": file, "span": (group, group + 1)} for group in chosen]
            is_whole = is_whole and len(chosen) == len(groups)
        return sampled, is_whole

    def _names_in(self, parquet: pq.ParquetFile) -> list[str]:
        """The columns of a file, but the row numbers that pandas adds, unless they are named."""
        named = self.declared.columns or ()
        return [each for each in parquet.schema_arrow.names if each in named or not _INDEX(each)]

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        assert schema is not None
        file, (first, last) = file_and_span(description)
        with _opened(file) as parquet:
            found, partitions = self._names_in(parquet), file.partitions
            self.declared.check_others(file.url, [*found, *partitions], schema)
            check_columns(file.url, [name for name in schema if name not in partitions], found)
            # A column with the name of a partition is read to compare them.
            names = [name for name in schema if name in found]
            groups = range(parquet.num_row_groups)[first : None if last < 0 else last]
            row = sum(parquet.metadata.row_group(each).num_rows for each in range(first))
            for batch in _batches(file, parquet, groups, names):
                count = len(batch)
                columns = {name: batch.column(name) for name in names}
                yield Batch(
                    columns=self.with_partitions(file, columns, count),
                    file=file.url,
                    offsets=np.arange(row, row + count),
                    unit="row",
                )
                row += count


def _batches(
    file: InputFile, parquet: pq.ParquetFile, groups: range, names: list[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, in batches of about ``_BATCH_BYTES``."""
    fields = parquet.schema_arrow
    plain = pa.schema([fields.field(name) for name in names])
    for group in groups:
        metadata = parquet.metadata.row_group(group)
        columns = _columns_of(metadata, names)
        compressed = sum(column.total_compressed_size for column in columns)
        rows = _rows_at_once(metadata, columns)
        with _opened(
            file,
            metadata=parquet.metadata,
            read_dictionary=_dictionaries(file, parquet, group, columns, rows),
            buffer_size=BLOCK if compressed > _ROW_GROUP_BYTES else 0,
        ) as opened:
            for batch in opened.iter_batches(rows, row_groups=[group], columns=names):
                none = np.zeros(len(batch), np.int64)
                sizes = sum(map(bytes_of_rows, batch.columns), none)
                for part in parts_of(sizes, _BATCH_BYTES):
                    yield batch[part].cast(plain) if names else batch[part]


def _columns_of(group: pq.RowGroupMetaData, names: Collection[str]) -> list[pq.ColumnChunkMetaData]:
    """The columns of a row group that hold the values of ``names``, which may be nested."""
    columns = [group.column(number) for number in range(group.num_columns)]
    wanted = set(names)
    return [
        each
        for each in columns
        if not wanted.isdisjoint(accumulate(each.path_in_schema.split("."), "{}.{}".format))
    ]


def _dictionaries(
    file: InputFile,
    parquet: pq.ParquetFile,
    group: int,
    columns: list[pq.ColumnChunkMetaData],
    rows: int,
) -> list[str]:
    """The texts that are read as dictionaries, so that so many rows take little memory.

    They are those that are nested, are stored as little more than indices, or would take more than
    ``_MOST_TEXT_BYTES`` if the longest value of the dictionary filled their rows.
    """
    texts = {
        each.path_in_schema: each.total_uncompressed_size > 8 * each.num_values
        for each in columns
        if each.physical_type == "BYTE_ARRAY" and each.has_dictionary_page
    }
    known, left = parquet.schema_arrow.names, _MOST_TEXT_BYTES
    long = [name for name, is_long in texts.items() if is_long and name in known]
    options = {"metadata": parquet.metadata, "read_dictionary": long, "buffer_size": BLOCK}
    with _opened(file, **options) as opened:
        for batch in islice(opened.iter_batches(1, row_groups=[group], columns=long), 1):
            for name, values in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_dictionary(values.type):
                    size = rows * int(bytes_of_rows(values.dictionary).max(initial=0))
                    if size <= left:
                        left -= size
                        texts.pop(name)
    return list(texts)


def _rows_at_once(group: pq.RowGroupMetaData, columns: list[pq.ColumnChunkMetaData]) -> int:
    """How many rows of a row group take about ``_BATCH_BYTES``, with texts as dictionaries."""
    size = sum(max(8 * each.num_values, each.total_uncompressed_size) for each in columns)
    deltas = any("DELTA_BYTE_ARRAY" in each.encodings for each in columns)
    most = _MOST_DELTA_ROWS if deltas else _MOST_ROWS
    return max(1, min(most, _BATCH_BYTES * group.num_rows // max(1, size)))


def _row_groups(file: InputFile, metadata: pq.FileMetaData, ratio: int) -> Iterator[Fragment]:
    first, content = 0, 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(each) for each in range(group.num_columns)]
        compressed = sum(column.total_compressed_size for column in columns)
        content += max(group.total_byte_size, ratio * compressed)
        if content >= FRAGMENT_BYTES or number + 1 == metadata.num_row_groups:
            yield fragment_of(file, (first, number + 1), content)
            first, content = number + 1, 0


@contextmanager
def _opened(file: InputFile, **options: Any) -> Iterator[pq.ParquetFile]:
    """The opened file; Arrow's errors become ``SourceError``."""
    try:
        with (
            file.open() as stream,
            pq.ParquetFile(
                stream, pre_buffer=False, page_checksum_verification=True, **options
            ) as parquet,
        ):
            yield parquet
    except pa.ArrowNotImplementedError as error:
        raise SourceError(
            f"{file.url} cannot be read: {str(error).splitlines()[0]}; leave the column out with "
            "'skip', or write it in another type"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{file.url} is not a complete Parquet file: {str(error).splitlines()[0]}; it may be "
            "truncated or damaged: write it again"
        ) from error
