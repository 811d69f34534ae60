"""The progress line of a training replica, readable by people and programs.

It has the word ``progress`` and ``key=value`` pairs (https://brandur.org/logfmt)::

    progress step=120 steps=540 loss=0.2310 examples_per_second=4210 seconds_left=12
"""

import re
from dataclasses import dataclass, fields
from typing import Self

_LINE = re.compile(r"\bprogress ((?:[a-z_]+=\S+ ?)+)")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of training: global steps done and planned, the loss, and the pace."""

    step: int
    steps: int
    loss: float
    examples_per_second: float
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"progress step={self.step} steps={self.steps} loss={self.loss:.4f} "
            f"examples_per_second={self.examples_per_second:.0f} "
            f"seconds_left={self.seconds_left:.0f}"
        )

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """The progress in a log line, after any prefix; None if the line has none."""
        match = _LINE.search(line)
        if match is None:
            return None
        pairs = dict(pair.split("=", 1) for pair in match[1].split())
        try:
            return cls(**{each.name: each.type(pairs[each.name]) for each in fields(cls)})  # type: ignore[operator]
        except (KeyError, ValueError):
            return None
