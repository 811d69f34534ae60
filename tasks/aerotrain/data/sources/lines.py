"""Read a range of a text file in blocks of whole lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import IO

import numpy as np
from numpy.typing import NDArray

from aerotrain.data.sources.batch import SourceError
from aerotrain.data.sources.files import BLOCK, InputFile

#: The UTF-8 byte order mark.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: A file with a longer line is not considered a file of lines.
_LONGEST_LINE = 256 * 2**20


@dataclass(frozen=True)
class LineBlock:
    """Whole lines of a file, the first of which begins at ``offset``, and is the line ``number``.

    Lines are counted from 1; the number is None if the block is not read from the file's start.
    """

    offset: int
    content: bytes
    number: int | None = None

    def starts(self) -> NDArray[np.int64]:
        """The offsets in the block of each non-empty line, and of the block's end."""
        data = np.frombuffer(self.content, np.uint8)
        ends = np.flatnonzero(data == ord("\n")) + 1
        if not len(ends) or ends[-1] != len(data):
            ends = np.append(ends, len(data))
        edges = np.concatenate([[0], ends]).astype(np.int64)
        lengths = np.diff(edges)
        is_empty = lengths == 1
        two = np.flatnonzero(lengths == 2)
        is_empty[two] = data[edges[two]] == ord("\r")
        return np.append(edges[:-1][~is_empty], len(data))

    def parts(self, lines: int) -> Iterator["LineBlock"]:
        """The block in parts of so many lines, empty ones not counted."""
        starts = self.starts()
        number = self.number
        for begin, end in pairwise([*starts[:-1:lines].tolist(), starts[-1]]):
            part = LineBlock(self.offset + begin, self.content[begin:end], number)
            yield part
            number = part.number_at(self.offset + end)

    def number_at(self, offset: int) -> int | None:
        """The number of the line that begins at ``offset`` of the file, in the block or after."""
        if self.number is None:
            return None
        return self.number + int(np.searchsorted(self._line_ends, offset - self.offset))

    @cached_property
    def _line_ends(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.frombuffer(self.content, np.uint8) == ord("\n"))


def ranges(file: InputFile, bytes_each: int) -> Sequence[tuple[int, int]]:
    """The byte ranges of a file's fragments; a compressed file is a single fragment."""
    if file.compression is not None or file.size <= bytes_each:
        return [(0, file.size)]
    # Cut at fixed offsets, so that appending to a file leaves its first fragments unchanged.
    return list(pairwise([*range(0, file.size, bytes_each), file.size]))


def first_line(file: InputFile) -> bytes:
    """The first line of a file, without its line end and byte order mark."""
    with file.stream() as stream:
        return _line(stream, file).rstrip(b"\r\n").removeprefix(BYTE_ORDER_MARK)


def blocks(file: InputFile, start: int, end: int) -> Iterator[LineBlock]:
    """The lines of ``file`` that begin at offsets from ``start`` up to ``end``, in blocks.

    A compressed file cannot be read by ranges: all of it is read.
    """
    limit = end if file.compression is None else None
    number = None if start and limit is not None else 1
    with file.stream() as stream:
        if start and limit is not None:
            stream.seek(start - 1)  # a line may begin exactly at ``start``
            offset, rest = start - 1 + len(_line(stream, file)), b""
        else:
            first = stream.read(len(BYTE_ORDER_MARK))
            offset, rest = (len(first), b"") if first == BYTE_ORDER_MARK else (0, first)
        while limit is None or offset < limit:
            size = BLOCK if limit is None else min(BLOCK, limit - offset - len(rest))
            read = stream.read(size) if size > 0 else b""
            content = rest + read
            is_last = limit is not None and offset + len(content) >= limit
            if is_last and not content.endswith(b"\n"):
                content += _line(stream, file)
            if is_last or not read:
                if content:
                    yield LineBlock(offset, content, number)
                return
            cut = content.rfind(b"\n") + 1
            if cut:
                yield LineBlock(offset, content[:cut], number)
                number = None if number is None else number + content.count(b"\n", 0, cut)
                offset += cut
            rest = content[cut:]
            if len(rest) > _LONGEST_LINE:
                raise _no_line_end(file, offset)


def _line(stream: IO[bytes], file: InputFile) -> bytes:
    line = stream.readline(_LONGEST_LINE + 1)
    if len(line) > _LONGEST_LINE:
        raise _no_line_end(file, stream.tell())
    return line


def _no_line_end(file: InputFile, offset: int) -> SourceError:
    return SourceError(
        f"{file.url} has no line end within {_LONGEST_LINE} bytes near byte {offset}; it is "
        "not a file of lines"
    )
