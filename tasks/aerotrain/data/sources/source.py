"""What a source is: it lists its fragments, infers its columns, and reads a fragment in batches.

``FileSource`` is the base of those that read files.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import pyarrow as pa

from aerotrain.contract.errors import FinalError, SpecError, counted, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.hashing import short_hash
from aerotrain.data.records.columns import (
    exact_float,
    is_list_type,
    largest_of,
    nulls_within,
)
from aerotrain.data.sources.batch import Batch, Fragment, SourceError
from aerotrain.data.sources.declared import COLUMN_OPTIONS, Declared
from aerotrain.data.sources.files import InputFile, files_of

#: The usual ratio of the sizes of a text and of its compressed file.
_COMPRESSION = 4


@dataclass
class Gap:
    """How many of some records lack an integer of a column, and the greatest absolute value.

    A list lacks one if it holds a null. The value is -1 if there is none.
    """

    missing: int = 0
    records: int = 0
    largest: int = -1

    def add(self, values: pa.Array) -> None:
        """Count Arrow values, unless they are neither integers nor lists of integers."""
        missing, records, kind = values.null_count, len(values), values.type
        if is_list_type(kind):
            missing = int(nulls_within(values).sum())
        while is_list_type(values.type):
            values = values.flatten()
        if pa.types.is_integer(values.type):
            self.largest = max(self.largest, largest_of(values))
        if pa.types.is_integer(values.type) or pa.types.is_null(kind):
            self.missing, self.records = self.missing + missing, self.records + records


@dataclass
class Inferred:
    """What some records show of the columns, by their names in the files.

    ``problems`` are the columns that cannot be read, or whose type is in doubt.
    """

    features: dict[str, Feature] = field(default_factory=dict)
    gaps: defaultdict[str, Gap] = field(default_factory=lambda: defaultdict(Gap))
    problems: dict[str, FinalError] = field(default_factory=dict)

    @contextmanager
    def column(self, name: str) -> Iterator[None]:
        """Keep what is raised within as the problem of the column, unless it has one already."""
        try:
            yield
        except FinalError as error:
            self.problems.setdefault(name, error)


class Source(ABC):
    """A source of raw records, described by the arguments of a plan.

    A kind implements ``fragments``, ``infer`` and ``batches``, by the names in its files. For
    callers, columns have the names and types that ``description`` declares.

    Raises:
        SpecError: an option is missing, unknown or wrong.
    """

    required: ClassVar[Set[str]] = frozenset({"url"})
    options: ClassVar[Set[str]] = frozenset()

    def __init__(self, description: Mapping[str, Any]) -> None:
        _check_options(description, self.required, self.options)
        self.description = description
        self.declared = Declared.of(description)

    @abstractmethod
    def fragments(self) -> Iterator[Fragment]:
        """All fragments as they are now, always in the same order."""

    @abstractmethod
    def infer(self) -> Inferred | None:
        """What the first records show of the columns; None if reading them costs too much."""

    @abstractmethod
    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        """The records of one fragment, always in the same order, text parsed by ``schema``."""

    def described(self) -> Mapping[str, Any]:
        """The description that opens this source again, with all that listing it determined."""
        return self.description

    def facts(self) -> dict[str, str]:
        """What was found out about the source besides its schema, by title, to be shown."""
        skip = self.declared.skip
        return {"columns left out": ", ".join(skip)} if skip else {}

    @cached_property
    def inferred(self) -> Inferred | None:
        """What ``infer`` returned."""
        return self.infer()

    def schema(self) -> Schema | None:
        """The features of the data set; None if only reading a fragment shows them.

        Raises:
            FinalError: a column cannot be read, or its type is in doubt.
        """
        if self.inferred is None:
            return None
        for problem in self.inferred.problems.values():
            raise problem
        return self.declared.stored(self.inferred.features)

    def schema_of(self, batch: Batch) -> Schema:
        """The features of the data set by a batch, for a source without a schema."""
        return self.declared.stored({name: each.feature for name, each in batch.columns.items()})

    @property
    def gaps(self) -> Mapping[str, Gap]:
        """The columns of integers in which values are missing, by their names in the data set."""
        gaps = self.inferred.gaps if self.inferred else {}
        return {
            self.declared.rename.get(name, name): gap
            for name, gap in gaps.items()
            if gap.missing and gap.largest >= 0 and name not in self.declared.types
        }

    def with_missing(self, schema: Schema, whole: Collection[str]) -> Schema:
        """The schema with floats for integers of which some are missing, but those of ``whole``.

        They are of the smallest type that holds all that were seen; if none does, as they were.
        """
        floats = {
            name: Feature(dtype, schema[name].shape)
            for name, gap in self.gaps.items()
            if name in schema.keys() - whole and "int" in schema[name].dtype
            if (dtype := exact_float(gap.largest))
        }
        return {**schema, **floats}

    def readable(self) -> tuple[Self, dict[str, str]]:
        """The source without the columns that cannot be read, and the reasons by column.

        Raises:
            FinalError: no column can be read, or what fails is no column.
        """
        if self.inferred is None or not self.options >= COLUMN_OPTIONS:
            return self, {}
        reasons = {name: str(error) for name, error in self.inferred.problems.items()}
        features = self.inferred.features
        if not reasons or not features.keys() - reasons.keys():
            self.schema()
            return self, {}
        for name, feature in features.items():
            if 0 in feature.shape:  # the next records may hold longer ones
                reasons.setdefault(name, f"the column {name!r} begins with empty lists")
        skip = [*self.declared.skip, *reasons]
        return type(self)({**self.described(), "skip": skip}), reasons

    def selecting(self, names: Collection[str]) -> Self:
        """The source with these columns of the data set alone, if its kind can select some."""
        described = dict(self.described())
        if not self.options >= COLUMN_OPTIONS:
            return self
        in_files = self._names_in_files()
        columns = [in_files.get(name, name) for name in names]
        described.pop("skip", None)
        for option in described.keys() & {"types", "rename", "pad"}:
            described[option] = {n: v for n, v in described[option].items() if n in columns}
        return type(self)({**described, "columns": columns})

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        """The records of the fragment with that description, always in the same order.

        Raises:
            FinalError: the fragment cannot be read, or its columns are not those of ``schema``.
        """
        rename, in_files = self.declared.rename, self._names_in_files()
        padding = {rename.get(name, name): each for name, each in self.declared.padding.items()}
        found = schema and {in_files.get(name, name): each for name, each in schema.items()}
        for batch in self.batches(description, found):
            columns = {
                rename.get(name, name): self._converted(batch.file, name, values)
                for name, values in batch.columns.items()
            }
            yield replace(batch, columns=columns, padding=padding)

    def _names_in_files(self) -> dict[str, str]:
        return {new: name for name, new in self.declared.rename.items()}

    def _converted(self, file: str, name: str, values: Any) -> Any:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        try:
            return self.declared.converted(name, values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                f"{file}: the column {name!r} is not of the type {self.declared.types.get(name)!r} "
                f"that 'types' declares: {error}"
            ) from error


class FileSource(Source):
    """The base of sources of the files at a URL; each is a fragment, unless the kind divides it."""

    @cached_property
    def files(self) -> list[InputFile]:
        """All files, in a stable order."""
        return self.listed[0]

    @cached_property
    def listed(self) -> tuple[list[InputFile], list[str]]:
        """The files at the URL, and the names of those that are hidden."""
        hidden: list[str] = []
        return files_of(self.description["url"], hidden), hidden

    def facts(self) -> dict[str, str]:
        size = sum(file.size for file in self.files)
        found = {"files": f"{some([each.url for each in self.files])}; {size:,} bytes"}
        if hidden := self.listed[1]:
            found["hidden files"] = f"{some(hidden)}; not read"
        return {**found, **super().facts()}

    def empty(self, what: str, why: str = "") -> SourceError:
        """The error of a source without any ``what`` in its files."""
        return SourceError(
            f"the source is empty: there is no {what} in {counted(len(self.files), 'file')}, "
            f"{self.files[0].url} the first{why}; check that the input is where the source looks "
            "for it"
        )

    def content_bytes(self, file: InputFile) -> int:
        """About how many bytes the file has when it is read."""
        return file.size * (_COMPRESSION if file.compression else 1)

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            yield fragment_of(file, (0, -1), self.content_bytes(file))


def some(names: Sequence[str]) -> str:
    """A count of files, and the name of the first."""
    return f"{len(names):,}, {names[0]} the first" if len(names) > 1 else names[0]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Up to so many of the items, the first and the last among them."""
    last = len(items) - 1
    places = {n * last // max(1, most - 1) for n in range(most)} if items else ()
    return [items[each] for each in sorted(places)]


def fragment_of(file: InputFile, span: tuple[int, int], content: int) -> Fragment:
    """The fragment ``span`` of ``file``, in the unit of its kind, of about ``content`` bytes."""
    name = f"{file.url}:{span[0]}-{span[1]}"
    return Fragment(
        name=name,
        fingerprint=short_hash(name, file.etag),
        bytes=content,
        description={"file": file, "span": span},
    )


def file_and_span(description: Mapping[str, Any]) -> tuple[InputFile, tuple[int, int]]:
    """The file and the span of a fragment, from its description."""
    start, end = description["span"]
    return InputFile(*description["file"]), (start, end)


def _check_options(description: Mapping[str, Any], required: Set[str], optional: Set[str]) -> None:
    """Check that a description has the options that its kind requires, and no unknown ones."""
    given, known = description.keys() - {"kind"}, sorted(required | optional)
    unknown, missing = sorted(given - set(known)), sorted(required - given)
    if unknown or missing:
        key = (unknown or missing)[0]
        raise SpecError(
            f"a source of kind {description['kind']!r} {'has no' if unknown else 'needs'} {key!r}"
            f"{nearest(key, known) if unknown else ''}; its options are {', '.join(known)}"
        )
