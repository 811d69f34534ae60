"""A limit on the nesting of JSON lines: Arrow's parser takes a stack frame for each level."""

import re

import numpy as np
import pyarrow as pa

#: The deepest nesting of arrays and objects that is accepted.
DEEPEST = 100

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')

#: The change of depth by each byte.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def check_depth(content: bytes) -> None:
    """Check that no line of JSON is nested deeper than ``DEEPEST``.

    Raises:
        pa.ArrowInvalid: a line is.
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
            raise pa.ArrowInvalid(f"it is nested deeper than {DEEPEST}; write flatter records")
