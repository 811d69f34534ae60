"""JSON lines: one JSON object on each line.

The fields of a nested object are columns such as ``address.city``. The types of columns are
inferred, and bad lines isolated, in ``text.py``.
"""

import re
from collections.abc import Iterator, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from aerotrain.data.sources.text import TextSource, Types

#: The deepest accepted nesting: Arrow's parser takes a stack frame for each level.
_MAX_DEPTH = 100

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')

#: A line that is null, which Arrow takes as an object; where all are, its parser crashes.
_NULL = re.compile(rb"^[ \t\r]*null\b", re.MULTILINE)

#: The change of depth by each byte.
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[list(b"[{")], _DEPTH_STEPS[list(b"]}")] = 1, -1


class JsonLinesSource(TextSource):
    """Files of JSON lines below a URL."""

    options = TextSource.options | {"pad"}

    is_typed = True

    def parse(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        _check_depth(content)
        if _NULL.search(content):
            raise pa.ArrowInvalid("it is null; write an object")
        return _flat(self._nested(content, types), frozenset(self.declared.skip))

    def _nested(self, content: bytes, types: Types) -> pa.Table:
        """Parse whole lines, with nested objects as structs. Raises ``pa.ArrowInvalid``."""
        if types and self.declared.columns is not None:
            return _parsed(content, types, others="ignore")
        try:
            return _parsed(content, types, others="infer")
        except pa.ArrowInvalid:
            if not types or not self.declared.skip:
                raise
            # A field that is left out may change its type.
            return _parsed(content, types, others="ignore")

    def why_other_format(self, beginning: bytes) -> str | None:
        first = beginning.partition(b"\n")[0].strip()
        if first.startswith(b"["):
            return "is a JSON array; write each record as a line of its own, without commas between"
        if first.startswith(b"{") and first.endswith((b"{", b"[", b",")):
            return "is JSON with records of several lines; write each record as one line"
        return None


def _parsed(content: bytes, types: Types, *, others: str) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(content),
        pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(content), 1)),
        pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(_fields(types)) if types else None,
            unexpected_field_behavior=others,
        ),
    )


def _fields(types: Types) -> list[pa.Field]:
    """The fields in which columns may be: ``a.b`` is a field of that name, or ``b`` of ``a``."""
    fields = [pa.field(name, kind) for name, kind in types.items()]
    objects: dict[str, dict[str, pa.DataType]] = {}
    for name, kind in types.items():
        outer, dot, inner = name.partition(".")
        if dot and outer not in types:
            objects.setdefault(outer, {})[inner] = kind
    return fields + [pa.field(name, _struct(each)) for name, each in objects.items()]


def _struct(types: Types) -> pa.DataType:
    """The type of an object with these fields, where every dot of a name is a level."""
    fields: dict[str, Any] = {}
    for name, kind in types.items():
        outer, dot, inner = name.partition(".")
        if dot:
            fields.setdefault(outer, {})[inner] = kind
        else:
            fields[name] = kind
    return pa.struct(
        [(name, _struct(each) if isinstance(each, dict) else each) for name, each in fields.items()]
    )


def _flat(table: pa.Table, skip: Set[str]) -> pa.Table:
    """The table with the fields of objects as columns. Raises ``pa.ArrowInvalid``."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name, values in zip(table.column_names, table.columns, strict=True):
        for path, each in [(name, values)] if "." in name else _leaves(name, values, skip):
            columns[path] = _either(path, columns[path], each) if path in columns else each
    return pa.table(columns)


def _leaves(
    name: str, values: pa.ChunkedArray, skip: Set[str]
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """The fields of an object, by their paths; it stays an object if their names have dots."""
    kind = values.type
    if not pa.types.is_struct(kind) or any("." in each.name for each in kind):
        yield name, values
    elif name not in skip:
        for field, each in zip(kind, values.flatten(), strict=True):
            yield from _leaves(f"{name}.{field.name}", each, skip)


def _either(name: str, one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a column that some lines have as a field, and others in an object."""
    if one.null_count == len(one):
        return other
    if other.null_count == len(other):
        return one
    is_twice = pc.any(pc.and_(one.is_valid(), other.is_valid())).as_py()
    if is_twice or one.type != other.type:
        raise pa.ArrowInvalid(f"the field {name!r} is also one of an object; rename one of them")
    return pc.coalesce(one, other)


def _check_depth(content: bytes) -> None:
    """Check that no line is nested deeper than ``_MAX_DEPTH``. Raises ``pa.ArrowInvalid``."""
    values = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(values == ord("\n"))
    opens = np.flatnonzero((values == ord("[")) | (values == ord("{")))
    of_line = np.searchsorted(ends, opens)
    edges = np.concatenate([[0], ends + 1, [len(values)]])
    for line in np.unique(of_line[_MAX_DEPTH:][of_line[_MAX_DEPTH:] == of_line[:-_MAX_DEPTH]]):
        outside = _STRING.sub(b"", content[edges[line] : edges[line + 1]])
        steps = _DEPTH_STEPS.take(np.frombuffer(outside, np.uint8))
        if steps.cumsum(dtype=np.int64).max(initial=0) > _MAX_DEPTH:
            raise pa.ArrowInvalid(f"it is nested deeper than {_MAX_DEPTH}; write flatter records")
