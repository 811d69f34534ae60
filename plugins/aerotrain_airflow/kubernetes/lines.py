"""Splits a stream into lines of any length; only a bounded part of each is kept."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

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
    if not line.cut and len(line.head) <= longest:
        return line.head.decode(errors="replace")
    # No character is cut in the middle.
    text, kept = codecs.utf_8_decode(line.head[:longest], "replace", False)
    cut = line.cut + len(line.head) - kept
    return f"{text} [{cut} more bytes of this line were cut]"


def moment(stamp: str) -> str:
    """The time of a line in UTC with nine digits, so that times sort as text; empty if it is none.

    A kubelet that cannot read a log answers with a sentence in place of lines.
    """
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return ""
    second, fraction, zone = found.groups()
    if zone != "Z":
        hours, minutes = int(zone[:3]), int(zone[0] + zone[4:])
        ahead = timedelta(hours=hours, minutes=minutes)
        second = (datetime.fromisoformat(second) - ahead).isoformat()
    return f"{second}.{fraction or '':0<9}Z"
