"""Lines of a stream that may be of any length: what is kept of one is bounded."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

#: Bytes of a replica's line that are passed on: nodes write lines in pieces of 16 KiB, and a log
#: of longer ones than this is not read by people.
LONGEST = 64 * 1024


@dataclass(frozen=True)
class Line:
    """The first bytes of a line, without its end, and how many more it had."""

    head: bytes
    cut: int = 0


class LineSplitter:
    """Makes lines of the pieces of a stream, and keeps no more than ``longest`` bytes of one."""

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
        """What came after the last line, if anything did: a line that has no end yet."""
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
    """The line as text of at most ``longest`` bytes; how many were cut stands at its end."""
    if not line.cut and len(line.head) <= longest:
        return line.head.decode(errors="replace")
    # No letter is cut in the middle.
    text, kept = codecs.utf_8_decode(line.head[:longest], "replace", False)
    cut = line.cut + len(line.head) - kept
    return f"{text} [{cut} more bytes of this line were cut]"
