"""JSON lines: one JSON object on each line.

The types of columns are inferred, and bad lines isolated, in ``text.py``.
"""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
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


@dataclass(frozen=True)
class JsonLinesSource(TextSource):
    """Files of JSON lines below a URL."""

    options = TextSource.options | {"pad"}

    is_typed = True

    def parse(self, header: list[str], content: bytes, types: Types) -> pa.Table:
        _check_depth(content)
        if _NULL.search(content):
            raise pa.ArrowInvalid("it is null; write an object")
        if types and self.declared.columns is not None:
            return _parsed(content, types, others="ignore")
        try:
            return _parsed(content, types, others="infer")
        except pa.ArrowInvalid:
            if not types or not self.declared.skip:
                raise
            # A field that is left out may change its type.
            return _parsed(content, types, others="ignore")

    def why_other_format(self, beginning: bytes, first_lines: list[bytes]) -> str | None:
        first = first_lines[0].strip()
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
            explicit_schema=pa.schema(list(types.items())) if types else None,
            unexpected_field_behavior=others,
        ),
    )


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
