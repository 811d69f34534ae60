"""Read a range of a text file in blocks of whole lines."""

import io
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerotrain.data.sources.batch import SourceError
from aerotrain.data.sources.files import InputFile

#: The UTF-8 byte order mark.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: A file with a longer line is not considered a file of lines.
_LONGEST_LINE = 256 * 2**20


class LineBlock(NamedTuple):
    """Whole lines of a file: the offset of the first one, its number, and the bytes of all.

    Lines are counted from 1; the number is None if the file is not read from its start.
    """

    offset: int
    number: int | None
    content: bytes

    def lines(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each line that is not empty begins, and how many lines are before it.

        The former ends with the length of the content.
        """
        data = np.frombuffer(self.content, np.uint8)
        ends = np.flatnonzero(data == ord("\n")) + 1
        if not len(ends) or ends[-1] != len(data):
            ends = np.append(ends, len(data))
        begins = np.append(0, ends[:-1])
        lengths = ends - begins
        is_empty = (lengths == 1) | ((lengths == 2) & (data[begins] == ord("\r")))
        lines = np.flatnonzero(~is_empty)
        return np.append(begins[lines], len(data)), lines


def first_line(file: InputFile) -> bytes:
    """The first line of a file, without its line end and byte order mark."""
    with file.stream() as stream:
        return _line(stream, file).rstrip(b"\r\n").removeprefix(BYTE_ORDER_MARK)


def blocks(
    file: InputFile, start: int, end: int, size: int, *, has_header: bool = False
) -> Iterator[LineBlock]:
    """The lines that begin at offsets from ``start`` up to ``end``, in blocks of about ``size``.

    A compressed file cannot be read by ranges: all of it is read. A header is no line.
    """
    if file.compression is not None:
        start, end = 0, sys.maxsize
    with file.stream() as stream:
        if start:
            stream.seek(start - 1)  # a line may begin exactly at ``start``
        offset, number = max(0, start - 1), None if start else 1
        if start or has_header:
            offset += len(_line(stream, file))
            number = None if start else 2
        elif stream.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            offset = len(stream.read(len(BYTE_ORDER_MARK)))
        while offset < end:
            content = stream.read(min(size, end - offset))
            if not content:
                return
            if not content.endswith(b"\n"):
                content += _line(stream, file)
            yield LineBlock(offset, number, content)
            offset += len(content)
            number = None if number is None else number + content.count(b"\n")


def _line(stream: io.BufferedReader, file: InputFile) -> bytes:
    line = stream.readline(_LONGEST_LINE + 1)
    if len(line) > _LONGEST_LINE:
        raise SourceError(
            f"{file.url} has no line end within {_LONGEST_LINE} bytes near byte {stream.tell()}; "
            "it is not a file of lines"
        )
    return line
