"""Hive partitions: folders called ``name=value``, whose values are a column of the files in them.

Apache Hive percent-encodes special characters in names and values, and has a name for null:
https://cwiki.apache.org/confluence/display/Hive/LanguageManual+DDL.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.data.sources.declared import DeclaredType
from aerotrain.data.sources.protocol import SourceError

_PARTITION = re.compile(r"([A-Za-z_][\w%.-]*)=((?s:.*))")

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions_of(path: str) -> dict[str, str | None]:
    """The partitions in the path of a file, decoded; the value of Hive's null is None."""
    matches = (_PARTITION.fullmatch(folder) for folder in path.split("/")[:-1])
    found = {unquote(match[1]): unquote(match[2]) for match in matches if match}
    return {name: None if each == _NULL else each for name, each in found.items()}


def with_partitions(
    columns: Mapping[str, Any],
    file: str,
    partitions: Mapping[str, str | None],
    count: int,
    declared: DeclaredType,
) -> dict[str, Any]:
    """The ``columns`` of ``count`` records of a file, and those of its partitions.

    Raises:
        SourceError: a column has the name of a partition and other values, or a partition is not
            of its declared type.
    """
    added = {}
    for name, value in partitions.items():
        if name in columns and not _all_equal(columns[name], value):
            raise SourceError(
                f"{file} has a column {name!r} with other values than that of its folder, "
                f"{value!r}; correct one of them, or leave both out with 'skip'"
            )
        repeated = pa.repeat(pa.scalar(value, pa.string()), count)
        try:
            added[name] = declared.converted(name, repeated)
        except pa.ArrowInvalid as error:
            raise SourceError(
                f"{file} is in a folder {name}={value}, which is not of the type "
                f"{declared.types[name]!r} that 'types' declares: {error}"
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
