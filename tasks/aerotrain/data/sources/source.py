"""The interface of a source: list its fragments, infer its columns, read a fragment in batches."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import pyarrow as pa

from aerotrain.contract.errors import FinalError, SpecError, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records import exact_float, is_list_type, largest_of, nulls_within
from aerotrain.data.sources.batch import Batch, Fragment, SourceError
from aerotrain.data.sources.declared import COLUMN_OPTIONS, Declared


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
        return self.declared.stored(self.declared.features_of(batch.columns))

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
        selected: dict[str, Any] = {"skip": [*self.declared.skip, *reasons]}
        if self.declared.columns is not None:
            selected["columns"] = [name for name in self.declared.columns if name not in reasons]
        return type(self)({**self.described(), **selected}), reasons

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


def _check_options(description: Mapping[str, Any], required: Set[str], optional: Set[str]) -> None:
    """Check that a description has the options that its kind requires, and no unknown ones."""
    kind, given = description["kind"], set(description) - {"kind"}
    known = sorted(required | optional)
    for key in sorted(given - required - optional):
        raise SpecError(
            f"a source of kind {kind!r} has no {key!r}{nearest(key, known)}; "
            f"it has {', '.join(known)}"
        )
    for key in sorted(required - given):
        raise SpecError(
            f"a source of kind {kind!r} needs {key!r}; it has "
            f"{', '.join(sorted(given)) or 'nothing'}"
        )
