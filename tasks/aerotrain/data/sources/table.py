"""The base of sources of files with typed columns: what some records of all files show of these.

``Parquet`` files say the types of their columns, and text has them in its values. In both, only
records show the lengths of lists, and which integers are missing.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.data.dataset import Feature
from aerotrain.data.records.columns import is_list_type
from aerotrain.data.sources.batch import Rejected, SourceError
from aerotrain.data.sources.declared import COLUMN_OPTIONS, check_columns
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.source import FileSource, Inferred, file_and_span, some

#: For each column, how many records have which type, None where they do not show it.
Counts = dict[str, Counter[Feature | None]]


class TableSource(FileSource):
    """Files with typed columns, to which Hive partitions are added."""

    options: ClassVar[Set[str]] = COLUMN_OPTIONS | {"nulls"}

    @abstractmethod
    def sampled(self) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """Descriptions of fragments from all over the files, and whether they are all.

        Data may be sorted, so the first records alone do not show what all are like.
        """

    @abstractmethod
    def sample(
        self, file: InputFile, span: tuple[int, int], rejected: list[Rejected]
    ) -> Iterator[tuple[Sequence[str], Any]]:
        """The first records of a part of a file: the names of its columns, and an Arrow table.

        Several tables if the columns have several types. Records that do not parse are added to
        ``rejected``. A table may lack columns that are not read.
        """

    def feature(self, file: InputFile, name: str, values: pa.Array) -> Feature | None:
        """The feature of a column by some of its values; None if they do not show it.

        Raises:
            FinalError: no record can hold such values, or what they are is in doubt.
        """
        kind, values = values.type, values.drop_null()
        is_nested = pa.types.is_nested(kind)
        inner = kind.value_type if is_list_type(kind) else kind
        if pa.types.is_null(inner) or (is_nested and not len(values)):
            return self.declared.unseen(name)
        if name in self.declared.types and not is_nested:
            return self.declared.unseen(name)
        return self.declared.feature_of(name, values)

    def chosen(self, counts: Mapping[Feature, int]) -> Feature:
        """The type of a column of which records have these ones: the first that was seen."""
        return next(iter(counts))

    def columns_of(self, counts: Counts) -> Counts:
        """The columns of the source, of those that were found."""
        return counts

    def infer(self) -> Inferred:
        """What the records of ``sampled`` show of the columns; if there are none, those of all.

        Raises:
            SourceError: there is no record, or a file is of another kind.
        """
        inferred = Inferred()
        found = self._found(inferred)
        counts: Counts = {name: Counter() for name in found}
        for name, (file, arrays) in found.items():
            with inferred.column(name):
                for kind, chunks in arrays.items():
                    values = pa.chunked_array(chunks, kind).combine_chunks()
                    inferred.gaps[name].add(values)
                    counts[name][self.feature(file, name, values)] += len(values)
        counts = self.columns_of(counts)
        for name in self.declared.selected(self.files[0].url, list(counts)):
            known = Counter({each: n for each, n in counts[name].items() if each is not None})
            with inferred.column(name):
                if not known:
                    raise SourceError(
                        f"there is no value of {name!r} in the first records of "
                        f"{some([file.url for file in self.files])}, so its type is unknown; set "
                        "it in 'types', or leave it out with 'skip'"
                    )
                inferred.features[name] = self.chosen(known)
        inferred.problems = {n: each for n, each in inferred.problems.items() if n in counts}
        return inferred

    def _found(
        self, inferred: Inferred
    ) -> dict[str, tuple[InputFile, dict[pa.DataType, list[pa.Array]]]]:
        """For each column, the first file that has it, and its values in what is sampled, by type.

        Columns that are not read have none.
        """
        found: dict[str, tuple[InputFile, dict[pa.DataType, list[pa.Array]]]] = {}
        rejected: list[Rejected] = []
        places = [file_and_span(each) for each in self.sampled()[0]]
        others = [(file, (0, file.size)) for file in self.files]
        for number, (file, span) in enumerate([*places, *others]):
            if found and number >= len(places):
                break
            for names, table in self.sample(file, span, rejected):
                for name in names:
                    found.setdefault(name, (file, {}))
                    with inferred.column(name):
                        check_columns(file.url, filter(self.declared.reads, [name]), names)
                for name, values in zip(table.column_names, table.columns, strict=True):
                    if self.declared.reads(name):
                        found[name][1].setdefault(values.type, []).extend(values.chunks)
                for name in file.partitions:
                    found[name] = (file, {pa.string(): [pa.array([""])]})
        if not found:
            raise self._empty(rejected)
        return found

    def _empty(self, rejected: Sequence[Rejected]) -> SourceError:
        if not rejected:
            return self.empty("record")
        first = rejected[0]
        return SourceError(
            f"none of the first lines of {first.file} is a record, the first failure is at "
            f"{first.place}: {first.reason}"
        )

    def with_partitions(
        self, file: InputFile, columns: Mapping[str, Any], count: int
    ) -> dict[str, Any]:
        """The ``columns`` of ``count`` records of a file, and those of its Hive partitions.

        Raises:
            SourceError: a column has the name of a partition and other values, or a partition is
                not of its declared type.
        """
        added = {}
        for name, value in file.partitions.items():
            if name in columns and not _all_equal(columns[name], value):
                raise SourceError(
                    f"{file.url} has a column {name!r} with other values than that of its folder, "
                    f"{value!r}; correct one of them, or leave both out with 'skip'"
                )
            repeated = pa.repeat(pa.scalar(value, pa.string()), count)
            try:
                added[name] = self.declared.converted(name, repeated)
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{file.url} is in a folder {name}={value}, which is not of the type "
                    f"{self.declared.types[name]!r} that 'types' declares: {error}"
                ) from error
        return {**columns, **added}


def _all_equal(column: Any, value: str | None) -> bool:
    """Whether all values of a column are ``value``, as texts or as numbers."""
    if value is None or column.null_count:
        return value is None and column.null_count == len(column)
    for kind in (pa.string(), pa.float64()):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if pc.all(pc.equal(column.cast(kind), pa.scalar(value).cast(kind))).as_py():
                return True
    return not len(column)
