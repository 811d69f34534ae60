"""Read text files in blocks of whole lines, and isolate the lines that do not parse."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.sources.files import BLOCK, InputFile, constants
from aerotrain.data.sources.protocol import Batch, Rejected, SourceError

#: A file with a longer line is not considered a file of lines.
LONGEST_LINE = 256 * 2**20

_MARK = b"\xef\xbb\xbf"  # the byte order mark

_NEWLINE = 0x0A


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, the first of which begins at ``offset``."""

    offset: int
    content: bytes

    def starts(self) -> NDArray[np.int64]:
        """The offsets in the block of each non-empty line, and of the block's end."""
        data = np.frombuffer(self.content, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE) + 1
        edges = np.concatenate(
            [[0], ends, [len(data)] if not len(ends) or ends[-1] != len(data) else []]
        )
        edges = edges.astype(np.int64)
        lengths = np.diff(edges)
        empty = lengths == 1
        two = np.flatnonzero(lengths == 2)
        empty[two] = data[edges[two]] == 0x0D
        return np.append(edges[:-1][~empty], len(data))


def blocks(file: InputFile, start: int, end: int) -> Iterator[Block]:
    """The lines of ``file`` that begin at offsets from ``start`` up to ``end``, in blocks.

    A compressed file cannot be read by ranges: all of it is read.
    """
    whole = file.compression is not None
    with file.stream() as stream:
        if start and not whole:
            stream.seek(start - 1)  # a line may begin exactly at ``start``
            offset = start - 1 + len(_line(stream, file))
        else:
            mark = stream.read(len(_MARK))
            offset = len(_MARK) if mark == _MARK else 0
            left = b"" if offset else mark
            yield from _to_end(stream, file, offset, left, None if whole else end)
            return
        yield from _to_end(stream, file, offset, b"", None if whole else end)


def first_line(file: InputFile) -> bytes:
    """The first line of a file, without its line end and byte order mark."""
    with file.stream() as stream:
        return _line(stream, file).rstrip(b"\r\n").removeprefix(_MARK)


def _to_end(
    stream: IO[bytes], file: InputFile, offset: int, left: bytes, end: int | None
) -> Iterator[Block]:
    while end is None or offset < end:
        size = BLOCK if end is None else min(BLOCK, end - offset - len(left))
        read = stream.read(max(0, size)) if size > 0 else b""
        content = left + read
        last = end is not None and offset + len(content) >= end
        if last and not content.endswith(b"\n"):
            content += _line(stream, file)
        if not content:
            return
        if last or not read:
            yield Block(offset, content)
            return
        cut = content.rfind(b"\n") + 1
        if cut:
            yield Block(offset, content[:cut])
            offset += cut
        left = content[cut:]
        if len(left) > LONGEST_LINE:
            raise _endless(file, offset)


def _line(stream: IO[bytes], file: InputFile) -> bytes:
    line = stream.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise _endless(file, stream.tell())
    return line


def _endless(file: InputFile, offset: int) -> SourceError:
    return SourceError(
        f"{file.url} has no line end within {LONGEST_LINE} bytes near byte {offset}; it is "
        "not a file of lines"
    )


class Parse(Protocol):
    """Parses whole lines into a table; raises ``pa.ArrowInvalid`` if a line does not parse."""

    def __call__(self, content: bytes) -> pa.Table: ...

    def lines_of_first(self, lines: Iterator[bytes]) -> int:
        """How many lines the record takes that begins on the first line."""
        ...


def tables(
    file: InputFile, block: Block, parse: Parse, rejected: list[Rejected]
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """The lines of a block as tables, each with the file offsets of its rows.

    A block that parses is one table. Otherwise the lines that do not parse are found by bisection
    and added to ``rejected``; further lines of the same record are skipped.
    """
    starts = block.starts()
    ahead = [(0, len(starts) - 1)]
    done = 0
    while ahead:
        first, last = ahead.pop()
        first = max(first, done)
        if first >= last:
            continue
        try:
            table = parse(block.content[starts[first] : starts[last]])
            if len(table) != last - first:
                raise pa.ArrowInvalid("the line holds no record, or several")
        except pa.ArrowInvalid as error:
            if last - first == 1:
                where = block.offset + int(starts[first])
                rejected.append(Rejected(file.url, where, "byte", _first_line(error)))
                edges = pairwise(starts[first:])
                each = (block.content[begin:end] for begin, end in edges)
                done = first + parse.lines_of_first(each)
                continue
            middle = (first + last) // 2
            ahead += [(middle, last), (first, middle)]
            continue
        yield table, block.offset + starts[first:last]


def parsed(file: InputFile, block: Block, parse: Parse) -> Batch:
    """The block as columns, with Hive partitions, without the lines that do not parse."""
    rejected: list[Rejected] = []
    found = list(tables(file, block, parse, rejected))
    offsets = np.concatenate([*(rows for _, rows in found), np.zeros(0, np.int64)])
    made = pa.concat_tables([table for table, _ in found]) if found else pa.table({})
    return Batch(
        columns={name: made[name] for name in made.column_names} | constants(file, len(offsets)),
        file=file.url,
        offsets=offsets,
        unit="byte",
        rejected=rejected,
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300]


def ranges(file: InputFile, bytes_each: int) -> Sequence[tuple[int, int]]:
    """The byte ranges of a file's fragments; a compressed file is a single fragment."""
    if file.compression is not None or file.size <= bytes_each:
        return [(0, file.size)]
    # Cut at fixed offsets, so that appending to a file leaves its first fragments unchanged.
    return list(pairwise([*range(0, file.size, bytes_each), file.size]))


#: The usual ratio of decompressed to compressed size of text.
INFLATION = 4


def content_bytes(file: InputFile, start: int, end: int) -> int:
    """The approximate decompressed size of a range in bytes."""
    return (end - start) * (1 if file.compression is None else INFLATION)
