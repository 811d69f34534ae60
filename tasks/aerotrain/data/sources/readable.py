"""The columns of a source that can be read, where others cannot."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from aerotrain.contract.errors import AerotrainError
from aerotrain.data.sources import open_source
from aerotrain.data.sources.declared import COLUMN_OPTIONS, DeclaredSource

#: Bytes at the start of a file of JSON lines by which its columns are found.
_BEGINNING = 2**20


def readable(source: DeclaredSource) -> tuple[DeclaredSource, dict[str, str]]:
    """The source without the columns that cannot be read even alone, and the reasons by column.

    Raises:
        FinalError: no column can be read, or what fails is no column.
    """
    try:
        _ = source.found
    except AerotrainError:
        if not getattr(source.source, "options", frozenset()) >= COLUMN_OPTIONS:
            raise
        names = sorted({*_names(source)} - {*source.declared.skip})
        reasons = _unreadable(source.described(), names)
        if len(reasons) in (0, len(names)):
            raise
    else:
        return source, {}
    skip = [*source.declared.skip, *reasons]
    columns = source.declared.columns
    selected = {} if columns is None else {"columns": [n for n in columns if n not in reasons]}
    return open_source({**source.described(), "skip": skip, **selected}), reasons


def _unreadable(description: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Those of the columns that cannot be read even alone, with the reasons."""
    try:
        found = open_source({**description, "columns": names}).found or {}
    except AerotrainError as error:
        if len(names) == 1:
            return {names[0]: str(error)}
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return {
            name: why for half in halves for name, why in _unreadable(description, half).items()
        }
    # Without other columns, the first batch may end before a list of another length.
    empty = [name for name, feature in found.items() if 0 in feature.shape]
    return {name: f"the column {name!r} begins with empty lists" for name in empty}


def _names(source: DeclaredSource) -> Sequence[str]:
    """The names of the columns that the source reads of its first file."""
    if source.declared.columns is not None:
        return source.declared.columns
    kind = source.described()["kind"]
    of_kind: Any = source.source
    file = of_kind.files[0]
    if kind == "csv":
        return [*source.described().get("names", of_kind.header(file)), *file.partitions]
    if kind == "parquet":
        with file.open() as stream:
            return [*pq.read_schema(stream).names, *file.partitions]
    with file.stream() as stream:
        lines = stream.read(_BEGINNING).splitlines()
    names = {name: None for line in lines for name in _fields(line)}
    # A field may be null on some lines, and an object on others.
    return [name for name in names if not any(each.startswith(f"{name}.") for each in names)]


def _fields(line: bytes) -> Iterator[str]:
    try:
        record = json.loads(line)
    except ValueError:
        return
    if isinstance(record, dict):
        yield from _paths(record)


def _paths(record: Mapping[str, Any]) -> Iterator[str]:
    """The names of a record's columns, of which those of a nested object are paths."""
    for name, value in record.items():
        if isinstance(value, dict) and not any("." in each for each in (name, *value)):
            yield from (f"{name}.{path}" for path in _paths(value))
        else:
            yield name
