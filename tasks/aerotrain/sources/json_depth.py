"""How deeply the lines of JSON are nested: Arrow's parser takes a stack frame for each level."""

import re

import numpy as np
import pyarrow as pa

#: No array or object of a record may lie within so many others.
DEEPEST = 100

#: A line that has more brackets that open than may lie within one another.
_MANY = re.compile(rb"(?m)^(?:[^\n\[{]*+[\[{]){%d}[^\n]*+" % (DEEPEST + 1))

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def check_depth(content: bytes) -> None:
    """Refuse lines of JSON of which one is nested too deeply.

    Raises:
        pa.ArrowInvalid: one is.
    """
    if content.count(b"[") + content.count(b"{") <= DEEPEST:
        return
    for line in _MANY.finditer(content):
        steps = _STEPS[np.frombuffer(_STRING.sub(b"", line[0]), np.uint8)]
        if steps.cumsum(dtype=np.int64).max(initial=0) > DEEPEST:
            raise pa.ArrowInvalid(f"it is nested more than {DEEPEST} deep; write flatter records")
