"""``.npy`` files, one for each feature: the first axis of an array is the record.

``numpy.lib.format`` describes them: a header holds dtype and shape, and the values follow in C
order.
"""

import io
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.hashing import short_hash
from aerotrain.data.records.columns import column_of
from aerotrain.data.sources.batch import Batch, Fragment, SourceError
from aerotrain.data.sources.files import InputFile, files_of
from aerotrain.data.sources.source import Inferred, Source

#: Bytes of arrays in one fragment, and in one batch.
FRAGMENT_BYTES = 64 * 2**20
_BATCH_BYTES = 4 * 2**20

_LONGEST_HEADER = 2**16


class _Array:
    """A file, and what its header says: dtype, shape, bytes of a row, and where the values begin.

    Raises:
        SourceError: it is not an array of numbers or texts, or shorter than its header says.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        beginning = io.BytesIO(file.read(0, _LONGEST_HEADER))
        try:
            if file.compression:
                raise ValueError("it is compressed, which an array may not be; decompress it")
            version = npy.read_magic(beginning)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, fortran, self.dtype = read(beginning)
            if self.dtype.hasobject:
                raise ValueError("it holds Python objects; save an array of numbers")
            if fortran and len(self.shape) > 1:
                raise ValueError("it is in Fortran order; save it with numpy.ascontiguousarray")
        except ValueError as error:
            raise SourceError(f"{file.url} is not a npy file that can be read: {error}") from error
        self.begin = beginning.tell()
        self.count = self.shape[0] if self.shape else 0
        self.row_bytes = self.dtype.itemsize * prod(self.shape[1:])
        if self.begin + self.count * self.row_bytes > file.size:
            raise SourceError(
                f"{file.url} ends before the last of the {self.count} records that its header "
                "counts; it was truncated: write it again"
            )

    def feature(self, name: str) -> Feature:
        """The feature that a row becomes."""
        dtype = column_of(name, np.zeros(0, self.dtype.newbyteorder("="))).feature.dtype
        return Feature(dtype, self.shape[1:])

    def rows(self, first: int, last: int, at_once: int) -> Iterator[NDArray[Any]]:
        """The rows from ``first`` up to ``last`` in this machine's byte order, so many at once."""
        for row in range(first, last, at_once):
            count = min(at_once, last - row)
            begin = self.begin + row * self.row_bytes
            rows = np.frombuffer(self.file.read(begin, begin + count * self.row_bytes), self.dtype)
            rows = rows.reshape(count, *self.shape[1:])
            yield rows.astype(self.dtype.newbyteorder("="), copy=False)


class ArraySource(Source):
    """One file for each feature, such as ``{"image": "….npy", "label": "….npy"}``."""

    required = frozenset({"features"})
    options = frozenset({"types"})

    @cached_property
    def _arrays(self) -> dict[str, _Array]:
        """The array of each feature. Raises ``SourceError`` if their counts differ, or are 0."""
        arrays = {}
        for name, url in self.description["features"].items():
            files = files_of(url)
            if len(files) != 1:
                raise SourceError(
                    f"{url} names {len(files)} files for the feature {name!r}; name exactly one"
                )
            arrays[name] = _Array(files[0])
        counts = {name: array.count for name, array in arrays.items()}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
            raise SourceError(
                f"the features have different numbers of records: {counted}; give files of equal "
                "length"
            )
        count = max(counts.values(), default=0)
        if not count:
            raise SourceError("the source is empty: its arrays have no record")
        if not any(array.row_bytes for array in arrays.values()):
            raise SourceError(
                f"the source is empty: its records hold no value, all {count} of them"
            )
        return arrays

    def facts(self) -> dict[str, str]:
        return {"files": ", ".join(array.file.url for array in self._arrays.values())}

    def infer(self) -> Inferred:
        return Inferred({name: array.feature(name) for name, array in self._arrays.items()})

    def fragments(self) -> Iterator[Fragment]:
        arrays = list(self._arrays.values())
        rows, size = arrays[0].count, sum(array.row_bytes for array in arrays)
        count = max(1, min(rows, -(-rows * size // FRAGMENT_BYTES)))
        versions = [*(each.file.url for each in arrays), *(each.file.etag for each in arrays)]
        files = {name: array.file for name, array in self._arrays.items()}
        for first, last in pairwise(rows * number // count for number in range(count + 1)):
            name = f"{arrays[0].file.url}:{first}-{last}"
            yield Fragment(
                name=name,
                fingerprint=short_hash(name, *versions),
                bytes=(last - first) * size,
                description={"files": files, "rows": [first, last]},
            )

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        arrays = {name: _Array(InputFile(*each)) for name, each in description["files"].items()}
        first, last = description["rows"]
        at_once = max(1, _BATCH_BYTES // max(1, sum(each.row_bytes for each in arrays.values())))
        parts = [array.rows(first, last, at_once) for array in arrays.values()]
        for row, *columns in zip(range(first, last, at_once), *parts, strict=False):
            yield Batch(
                columns=dict(zip(arrays, columns, strict=True)),
                file=next(iter(arrays.values())).file.url,
                offsets=np.arange(row, row + len(columns[0])),
                unit="row",
            )
