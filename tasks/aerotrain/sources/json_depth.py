"""How deeply the lines of JSON are nested: Arrow's parser takes a stack frame for each level."""

import re

import numpy as np
import pyarrow as pa

#: No array or object of a record may lie within so many others.
DEEPEST = 100

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')

#: What each byte adds to the depth.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def check_depth(content: bytes) -> None:
    """Refuse lines of JSON of which one is nested too deeply.

    Raises:
        pa.ArrowInvalid: one is.
    """
    values = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(values == ord("\n"))
    opens = np.flatnonzero((values == ord("[")) | (values == ord("{")))
    of_line = np.searchsorted(ends, opens)
    edges = np.concatenate([[0], ends + 1, [len(values)]])
    for line in np.unique(of_line[DEEPEST:][of_line[DEEPEST:] == of_line[:-DEEPEST]]):
        outside = _STRING.sub(b"", content[edges[line] : edges[line + 1]])
        steps = _STEPS.take(np.frombuffer(outside, np.uint8))
        if steps.cumsum(dtype=np.int64).max(initial=0) > DEEPEST:
            raise pa.ArrowInvalid(f"it is nested more than {DEEPEST} deep; write flatter records")
