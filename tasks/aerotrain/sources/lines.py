"""Files of lines, read in blocks of whole lines, and the lines among them that do not parse."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.sources.files import BLOCK, InputFile, constants
from aerotrain.sources.protocol import Batch, Rejected, SourceError

#: A line longer than this is taken for a file that has no lines.
LONGEST_LINE = 256 * 2**20

_MARK = b"\xef\xbb\xbf"  # with which some programs begin UTF-8

_NEWLINE = 0x0A


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, the first of which begins at ``offset``."""

    offset: int
    content: bytes

    def starts(self) -> NDArray[np.int64]:
        """Where in the block each line begins that is not empty, and the block's end."""
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
    """The lines of ``file`` that begin from ``start`` up to ``end``, in blocks.

    A compressed file has no ranges: it is read from its first line to its last.
    """
    whole = file.compression is not None
    with file.stream() as stream:
        if start and not whole:
            stream.seek(start - 1)  # a line may begin right at the start
            offset = start - 1 + len(_line(stream, file))
        else:
            mark = stream.read(len(_MARK))
            offset = len(_MARK) if mark == _MARK else 0
            left = b"" if offset else mark
            yield from _to_end(stream, file, offset, left, None if whole else end)
            return
        yield from _to_end(stream, file, offset, b"", None if whole else end)


def first_line(file: InputFile) -> bytes:
    """The first line of a file, without its end, and without a mark before it."""
    with file.stream() as stream:
        return _line(stream, file).rstrip(b"\r\n").removeprefix(_MARK)


def _to_end(
    stream: IO[bytes], file: InputFile, offset: int, left: bytes, end: int | None
) -> Iterator[Block]:
    while end is None or offset < end:
        wanted = BLOCK if end is None else min(BLOCK, end - offset - len(left))
        read = stream.read(max(0, wanted)) if wanted > 0 else b""
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
        f"{file.url} has no end of line within {LONGEST_LINE} bytes near byte {offset}; it is "
        "no file of lines"
    )


class Parse(Protocol):
    """Makes a table of whole lines; raises ``pa.ArrowInvalid`` where one does not parse."""

    def __call__(self, content: bytes) -> pa.Table: ...

    def lines_of_first(self, lines: Iterator[bytes]) -> int:
        """How many lines the record takes that begins with the first of them."""
        ...


def tables(
    file: InputFile, block: Block, parse: Parse, rejected: list[Rejected]
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """The lines of a block as tables, and where in the file each row lies.

    What parses as a whole is one table. Where a line does not, it is found by halves and added
    to ``rejected``, with the lines after it that are of the same record.
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
                raise pa.ArrowInvalid("it is not one record, but a line of several or of none")
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
    """The block as columns, with the folders' ``name=value``, and without what does not parse."""
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
    """Where the pieces of a file begin and end; one that is compressed is a single piece."""
    if file.compression is not None or file.size <= bytes_each:
        return [(0, file.size)]
    # Cut where a longer file would be cut too: what is appended leaves the first pieces alone.
    return list(pairwise([*range(0, file.size, bytes_each), file.size]))


#: How much the usual files of lines grow when they are decompressed, to plan shards by.
INFLATION = 4


def content_bytes(file: InputFile, start: int, end: int) -> int:
    """About what the lines of a range take."""
    return (end - start) * (1 if file.compression is None else INFLATION)
