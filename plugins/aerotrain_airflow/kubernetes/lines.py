"""Splits a stream into lines of any length; only a bounded part of each is kept."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

#: The bytes kept of a replica's line: nodes write lines in pieces of 16 KiB, and longer lines than
#: this are not useful in a log.
LONGEST = 64 * 1024

#: The time that a node puts before a line: RFC 3339, in the time zone of the node.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


async def split_lines(
    pieces: AsyncIterator[bytes], longest: int, *, incomplete: bool = False
) -> AsyncIterator[tuple[bytes, int]]:
    """Each line: its first ``longest`` bytes without its end, and the number of further bytes.

    What follows the last line end counts as a line only with ``incomplete``.
    """
    head, cut = bytearray(), 0
    async for piece in pieces:
        for number, part in enumerate(piece.split(b"\n")):
            if number:
                yield bytes(head), cut
                head, cut = bytearray(), 0
            kept = part[: longest - len(head)]
            head += kept
            cut += len(part) - len(kept)
    if incomplete and (head or cut):
        yield bytes(head), cut


def readable(line: bytes, cut: int, longest: int = LONGEST) -> str:
    """The line as text of at most ``longest`` bytes, and a note of how many were cut."""
    cut += max(0, len(line) - longest)
    text = line[:longest].decode(errors="replace")
    return f"{text} [{cut} more bytes of this line were cut]" if cut else text


def moment(stamp: str) -> str:
    """The time of a line in UTC with nine digits, so that times sort as text; empty if it is none.

    A kubelet that cannot read a log answers with a sentence in place of lines.
    """
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return ""
    second, fraction, zone = found.groups()
    at = datetime.fromisoformat(second + zone).astimezone(UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{fraction or '':0<9}Z"
