"""Splits a stream into lines of any length; only a bounded part of each is kept."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

#: The bytes kept of a replica's line: nodes write lines in pieces of 16 KiB, and longer lines than
#: this are not useful in a log.
LONGEST = 64 * 1024

#: The time that a node puts before a line: RFC 3339, in the time zone of the node.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Line:
    """The first bytes of a line, without its end, and the number of further bytes."""

    head: bytes
    cut: int = 0


class LineSplitter:
    """Splits the pieces of a stream into lines, and keeps at most ``longest`` bytes of each."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._head = bytearray()
        self._cut = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that end in this piece."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._add(end)
            yield self._taken()
        self._add(rest)

    def rest(self) -> Line | None:
        """What follows the last line end, if anything: a line that is not complete yet."""
        return self._taken() if self._head or self._cut else None

    def _add(self, part: bytes) -> None:
        room = self._longest - len(self._head)
        self._head += part[:room]
        self._cut += max(0, len(part) - room)

    def _taken(self) -> Line:
        line = Line(bytes(self._head), self._cut)
        self._head.clear()
        self._cut = 0
        return line


def readable(line: Line, longest: int = LONGEST) -> str:
    """The line as text of at most ``longest`` bytes, and a note of how many were cut."""
    cut = line.cut + max(0, len(line.head) - longest)
    text = line.head[:longest].decode(errors="replace")
    return f"{text} [{cut} more bytes of this line were cut]" if cut else text


def moment(stamp: str) -> str:
    """The time of a line in UTC with nine digits, so that times sort as text; empty if it is none.

    A kubelet that cannot read a log answers with a sentence in place of lines.
    """
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return ""
    second, fraction, zone = found.groups()
    at = datetime.fromisoformat(second + zone.replace("Z", "+00:00")).astimezone(UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{fraction or '':0<9}Z"
