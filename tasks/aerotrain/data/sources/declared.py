"""What the description of a source declares of its columns: which are read, their types and names.

``columns``, ``skip`` and ``types`` use the names in the files; ``rename`` gives those of the data
set.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.validation import Columns, Limits, Validated
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.records.columns import column_of, is_list_type, is_text_type, nulls_within
from aerotrain.data.sources.batch import Padding, SourceError
from aerotrain.data.sources.numbers import FORMS, check_known, numbers_of

#: The types that a column may be declared as, and those by which Arrow reads text.
TYPES: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "float32": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}

#: The dtypes of the features of types that are none themselves.
_STORED = {"date": "int32", "timestamp": "int64"}

#: The options of a kind whose files have columns.
COLUMN_OPTIONS = frozenset({"columns", "skip", "rename", "types"})

#: Types whose texts may have a form of numbers.
_FLOATS = ("float32", "float64")

_BY_COLUMNS = Limits(form="an object by columns")

#: The days by which a date may be beyond its month: the 31st of February is the third day of March.
_MOST_BEYOND = 3


@dataclass(frozen=True, kw_only=True)
class Declared(Validated):
    """The columns of a source; those that ``columns`` names, or all without those of ``skip``.

    ``types`` are names of ``TYPES``, for dates, timestamps and floats with an optional format, such
    as ``"date %d.%m.%Y"`` or ``"float32 1.234,56"``, or a list of words, of which the number in the
    list is stored; of a column of lists, that of their values. ``nulls`` are the words that mean a
    missing value. ``pad`` has the length of arrays, or the fields of a ``Padding``, for columns of
    lists of different lengths.

    Raises:
        SpecError: an option is not of this form, or a type is unknown.
    """

    TITLE: ClassVar = "the source"

    columns: Columns | None = None
    skip: Columns = ()
    rename: Annotated[Mapping[str, str], _BY_COLUMNS] = field(default_factory=dict)
    types: Annotated[Mapping[str, Any], _BY_COLUMNS] = field(default_factory=dict)
    nulls: Sequence[str] = ()
    pad: Annotated[Mapping[str, Any], _BY_COLUMNS] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, declared in self.types.items():
            _check_type(name, declared)
        _ = self.padding  # checks it

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """What a description declares."""
        names = [each.name for each in fields(cls)]
        return cls(**{name: description[name] for name in names if name in description})

    @cached_property
    def padding(self) -> Mapping[str, Padding]:
        """How columns of lists are padded. Raises ``SpecError``."""
        return {name: _padding_of(name, given) for name, given in self.pad.items()}

    def reads(self, name: str) -> bool:
        """Whether a column of that name is read."""
        return (self.columns is None or name in self.columns) and name not in self.skip

    def selected(self, url: str, found: Sequence[str]) -> list[str]:
        """The columns to read of a file that has the columns ``found``.

        Raises:
            SpecError: a declared column is not among them.
        """
        check_selected(url, [*(self.columns or ()), *self.rename, *self.types, *self.pad], found)
        return [name for name in self.columns or found if self.reads(name)]

    def check_others(self, url: str, found: Sequence[str], schema: Schema) -> None:
        """Check that a file has no column that is neither in ``schema`` nor left out.

        Raises:
            SourceError: it has one.
        """
        for name in found:
            if name not in schema and self.reads(name):
                raise SourceError(
                    f"{url} has a column {name!r}, which what was read to infer the schema does "
                    "not have; leave it out with 'skip', name the columns to read in 'columns', "
                    "or, in JSON lines, its type in 'types'"
                )

    def converted(self, name: str, values: Any) -> Any:
        """Arrow values with nulls for the words of ``nulls``, and of the declared type.

        Numbers are not cast to another type of numbers: ``aerotrain.data.prepare.cast`` does it.

        Raises:
            pa.ArrowInvalid, pa.ArrowNotImplementedError: a value is not of the type.
        """
        if not self.nulls and name not in self.types:
            return values
        if is_list_type(values.type):
            return _with_values(values, lambda inner: self.converted(name, inner))
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        is_text = is_text_type(values.type)
        if self.nulls and is_text:
            is_word = pc.is_in(values, pa.array(self.nulls).cast(values.type))
            values = pc.if_else(is_word, pa.scalar(None, values.type), values)
        if name not in self.types or pa.types.is_nested(values.type):
            return values
        declared = self.types[name]
        if not isinstance(declared, str):
            return _numbers_of(values, declared) if is_text else values
        kind, _, form = declared.partition(" ")
        if is_text and kind in _STORED:
            return moments_of(values.cast(pa.string()), TYPES[kind], form)
        if is_text and form:
            return numbers_of(values.cast(pa.string()), form)
        are_numbers = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if are_numbers and values.type != pa.uint64() and kind != "string":
            return values
        return values if is_text and kind == "string" else values.cast(TYPES[kind])

    def kind_of(self, name: str) -> str | None:
        """The declared type of a column, without its format; int64 for a list of words."""
        declared = self.types.get(name)
        if declared is None or isinstance(declared, str):
            return declared and declared.partition(" ")[0]
        return "int64"

    def feature_of(self, name: str, values: pa.Array) -> Feature:
        """The feature of Arrow values without nulls; that of lists that are padded as they will be.

        Raises:
            RecordError: no record can hold such values.
            SpecError: values that are no lists are to be padded.
        """
        if is_list_type(values.type) and nulls_within(values).any():
            values = _without_nulls(values)
        padding = self.padding.get(name)
        if padding is None:
            return column_of(name, values).feature
        if not is_list_type(values.type):
            raise SpecError(
                f"the column {name!r} has no lists, which 'pad' takes, but {values.type}; leave it "
                "out of 'pad'"
            )
        return padding.feature(column_of(name, values.flatten()).feature)

    def unseen(self, name: str) -> Feature | None:
        """The feature of a column without a value so far, if its type is declared."""
        if name not in self.types:
            return None
        text = Feature("string")  # the declared type replaces it
        return self.padding[name].feature(text) if name in self.padding else text

    def parsed_as(self, name: str, feature: Feature) -> pa.DataType:
        """The type as which the text of a column is parsed, before ``converted``."""
        kind = pa.float64() if feature.is_float else TYPES[feature.dtype]
        declared = self.types.get(name)
        is_number = isinstance(declared, str) and declared in TYPES and declared not in _STORED
        if declared is not None and not is_number:
            kind = pa.string()
        for _ in feature.shape:
            kind = pa.list_(kind)
        return kind

    def stored(self, found: Schema) -> dict[str, Feature]:
        """The features of the data set where the files have the features ``found``.

        float64 is stored as float32, the type of most models, unless it is declared.

        Raises:
            SpecError: two columns have one name, or a column cannot hold its padding.
        """
        features: dict[str, Feature] = {}
        for name, feature in found.items():
            kind = self.kind_of(name) or ("float32" if feature.is_float else feature.dtype)
            new = self.rename.get(name, name)
            if new in features:
                raise SpecError(
                    f"two columns are called {new!r} by 'rename'; give them different names, or "
                    "leave one out with 'skip'"
                )
            features[new] = Feature(_STORED.get(kind, kind), feature.shape)
            value = self.padding[name].value if name in self.padding else None
            if value is not None and not _holds(features[new], value):
                raise SpecError(
                    f"the padding of {name!r} cannot be {value!r}, because its values are of type "
                    f"{features[new].dtype}; give one of that type"
                )
        return features


def _check_type(name: str, declared: Any) -> None:
    if isinstance(declared, list | tuple) and all(isinstance(each, str) for each in declared):
        return
    kind, _, form = str(declared).partition(" ")
    has_form = not form or kind in _STORED or (kind in _FLOATS and form in FORMS)
    if kind not in TYPES or not has_form:
        raise SpecError(
            f"the column {name!r} cannot be of type {declared!r}{nearest(kind, list(TYPES))}; the "
            f"types are {', '.join(TYPES)}, date and timestamp may have a format, such as "
            f"'date %d.%m.%Y', {' and '.join(_FLOATS)} one of {', '.join(map(repr, FORMS))}, and "
            "a list of words is a type, too"
        )


def _padding_of(name: str, given: Any) -> Padding:
    try:
        return Padding.from_dict(given if isinstance(given, Mapping) else {"length": given})
    except SpecError as error:
        raise SpecError(
            f"of the column {name!r}, {error}; give a length, or such an object"
        ) from error


def _holds(feature: Feature, value: Any) -> bool:
    """Whether a column of that feature can hold the value."""
    kinds = {"string": str, "bool": bool}
    if feature.dtype in kinds or type(value) not in (int, float):
        return type(value) is kinds.get(feature.dtype)
    return feature.is_float or bool(np.array(value).astype(feature.dtype) == value)


def _with_values(lists: Any, convert: Callable[[Any], Any]) -> Any:
    """Lists whose values are converted."""
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = pa.array(np.append(0, np.cumsum(lengths, dtype=np.int64)))
    return pa.LargeListArray.from_arrays(ends, convert(lists.flatten()), mask=lists.is_null())


def _without_nulls(values: Any) -> Any:
    """Lists with any value in the place of each null within them."""
    if is_list_type(values.type):
        return _with_values(values, _without_nulls)
    is_whole = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return values.fill_null(pa.scalar(0).cast(values.type)) if is_whole else values


def _numbers_of(texts: Any, words: Sequence[str]) -> Any:
    """The number of each text in the list of words. Raises ``pa.ArrowInvalid`` if it has none."""
    numbers = pc.index_in(texts, pa.array(words).cast(texts.type)).cast(pa.int64())
    check_known(texts, numbers, f"not one of {', '.join(words)}")
    return numbers


def moments_of(texts: Any, kind: pa.DataType, form: str) -> Any:
    """Dates or timestamps of texts in a format, ISO 8601 by default.

    Raises:
        pa.ArrowInvalid: a text is none.
    """
    if form:
        moments = pc.strptime(texts, format=form, unit="us")
        _check_days(texts, moments, form)
        return moments.cast(kind)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        if pa.types.is_date(kind):
            raise
        return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(kind)


def _check_days(texts: Any, moments: Any, form: str) -> None:
    """Check that the days of the texts exist: Arrow takes the 30th of February as a day of March.

    Raises:
        pa.ArrowInvalid: one does not.
    """
    for text in pc.unique(pc.filter(texts, pc.less_equal(pc.day(moments), _MOST_BEYOND))):
        try:
            datetime.strptime(text.as_py(), form)
        except ValueError as error:
            if "for month" in str(error):  # other formats than Python's are no mistake
                raise pa.ArrowInvalid(f"{text.as_py()!r}: {error}") from error


def check_selected(url: str, selected: Sequence[str], found: Sequence[str]) -> None:
    """Check that the selected columns are among those found. Raises ``SpecError``."""
    for name in selected:
        if name not in found:
            raise SpecError(
                f"{url} has no column {name!r}{nearest(name, found)}; it has {', '.join(found)}"
            )


def check_columns(url: str, names: Iterable[str], found: Sequence[str]) -> None:
    """Check that a file has each of these columns once, with a name. Raises ``SourceError``."""
    counts = Counter(found)
    for name in names:
        if not name:
            raise SourceError(
                f"{url} has a column without a name, number {list(found).index(name) + 1}, like "
                "the index that pandas writes; give it a name, or leave it out with 'skip': ['']"
            )
        if name not in counts:
            raise SourceError(
                f"{url} has no column {name!r}{nearest(name, found)}; it has "
                f"{', '.join(found) or 'none'}; give all files the same columns, or leave it "
                "out with 'skip'"
            )
        if (count := counts[name]) > 1:
            raise SourceError(
                f"{url} has {count} columns called {name!r}; give them different names, or "
                "leave them out with 'skip'"
            )
