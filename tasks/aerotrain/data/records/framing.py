"""TFRecord framing: length, checksum of the length, record, checksum of the record.

Many records are framed at once; a file is read record by record, and reading resumes after damage.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, starmap
from typing import IO

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.data.records.columns import Columns
from aerotrain.data.records.encoding import (
    as_array,
    as_piece,
    buffers_of,
    content_of,
    joined,
    lengths_of,
    pieces_of,
)

#: Bytes before a record (its length and that length's checksum) and after it (its checksum).
_HEADER_BYTES, _FOOTER_BYTES = 12, 4

_CRC_MASK = 0xA282EAD8

#: The size limit of a protobuf message, and so of a ``tf.train.Example``, in bytes.
_MAX_RECORD_BYTES = 2**31 - 1

#: Bytes that are read, and searched for a record, at once.
_BLOCK = 2**18

#: A file without a record in its first bytes, this many, is of another kind.
_SEARCHED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Frames:
    """Framed records, as in a file, and the CRC-32C of each record."""

    rows: pa.LargeBinaryArray
    checksums: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content(self) -> memoryview:
        """All frames concatenated, to be written to a file."""
        return content_of(self.rows).data


def encoded_frames(columns: Columns) -> Frames:
    """The records of ``columns``, encoded and framed.

    If all records have equal lengths, every byte is copied only once.
    """
    pieces = pieces_of(columns)
    blocks = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if len(blocks) < len(pieces) or not len(blocks[0]):
        return framed(joined(pieces))
    count, length = len(blocks[0]), sum(block.shape[1] for block in blocks)
    frames = np.empty((count, _HEADER_BYTES + length + _FOOTER_BYTES), np.uint8)
    frames[:, :_HEADER_BYTES] = _header(length)
    at = _HEADER_BYTES
    for block in blocks:
        frames[:, at : at + block.shape[1]] = block
        at += block.shape[1]
    checksums = _checksums_of_rows(frames, length)
    frames[:, at:] = _masked(checksums)[:, None].view(np.uint8)
    return Frames(as_array(frames), checksums)


def framed(records: pa.LargeBinaryArray) -> Frames:
    """Each record with its length and checksums."""
    lengths = lengths_of(records)
    offsets, content = buffers_of(records)
    checksums = _checksums(offsets, content)
    footers = _masked(checksums)[:, None].view(np.uint8)
    return Frames(joined([_headers(lengths), as_piece(records), footers]), checksums)


def _masked_checksum(data: bytes) -> int:
    """The masked CRC-32C of a record or a length, as stored in a file."""
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + _CRC_MASK) & 0xFFFFFFFF


def _checksums(offsets: NDArray[np.int64], content: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32C of each record; the only loop over single records in Python."""
    begin = int(offsets[0])
    data = content[begin : int(offsets[-1])].tobytes()
    ends = (offsets - begin).tolist()
    value = google_crc32c.value
    each = (value(data[start:end]) for start, end in pairwise(ends))
    return np.fromiter(each, np.uint32, len(ends) - 1)


def _checksums_of_rows(frames: NDArray[np.uint8], length: int) -> NDArray[np.uint32]:
    """The CRC-32C of the record in each row; one record is copied at a time."""
    records = struct.iter_unpack(f"{_HEADER_BYTES}x{length}s{_FOOTER_BYTES}x", frames.data)
    return np.fromiter(starmap(google_crc32c.value, records), np.uint32, len(frames))


def _headers(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    different, which = np.unique(lengths, return_inverse=True)
    return np.concatenate([np.zeros((0, _HEADER_BYTES), np.uint8), *map(_header, different)])[which]


def _header(length: int) -> NDArray[np.uint8]:
    """The frame header of records of that length, as one row."""
    encoded = int(length).to_bytes(8, "little")
    return np.frombuffer(encoded + _masked_checksum(encoded).to_bytes(4, "little"), np.uint8)[None]


def _masked(checksums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Masked checksums: the CRC of data that contains plain CRCs is weak."""
    rotated = checksums >> np.uint32(15) | checksums << np.uint32(17)
    return (rotated + np.uint32(_CRC_MASK)).astype("<u4")


class FramingError(FinalError):
    """A file is not a TFRecord file."""


@dataclass(frozen=True)
class Damage:
    """Bytes that are not a valid record: the reason, and an estimate of how many records."""

    reason: str
    records: int = 1


@dataclass(frozen=True)
class _Invalid:
    """Why no valid record begins at an offset.

    ``size`` is its length in bytes if the checksum of the length is valid; ``is_last`` says that
    the file ends within it.
    """

    reason: str
    size: int | None = None
    is_last: bool = False


def read_frames(file: IO[bytes]) -> Iterator[tuple[int, bytes | Damage]]:
    """Yield the offset and the bytes of each valid record of a TFRecord file, and each damage.

    After a record with a wrong checksum, reading continues with the next record. After a damaged
    length it continues at the next offset where a valid record begins: a length and a record with
    valid checksums. At most one record is held in memory.

    Raises:
        FramingError: the file has no record and no beginning of one.
    """
    content = _Lookahead(file)
    whole = size = 0
    while content.peek(1):
        offset, found = content.offset, _frame(content, 0)
        if isinstance(found, bytes):
            content.skip(_HEADER_BYTES + len(found) + _FOOTER_BYTES)
            whole += 1
            size += _HEADER_BYTES + len(found) + _FOOTER_BYTES
            yield offset, found
        else:
            yield offset, _skip_damage(content, found, size / whole if whole else None)


def _frame(content: "_Lookahead", at: int) -> bytes | _Invalid:
    """The record whose frame begins ``at`` bytes from here, or why there is none."""
    header = content.peek(_HEADER_BYTES, at)
    if len(header) < _HEADER_BYTES:
        return _Invalid(
            "the file ends within the length of this record; it was truncated", None, True
        )
    length = int.from_bytes(header[:8], "little")
    if _masked_checksum(header[:8]) != int.from_bytes(header[8:], "little"):
        return _Invalid("its length is damaged")
    if length > _MAX_RECORD_BYTES:
        return _Invalid(
            f"its length says that it has {length} bytes, more than the {_MAX_RECORD_BYTES} of "
            "the longest tf.train.Example"
        )
    size = _HEADER_BYTES + length + _FOOTER_BYTES
    footer = content.peek(_FOOTER_BYTES, at + _HEADER_BYTES + length)
    if len(footer) < _FOOTER_BYTES:
        reason = f"the file ends within this record of {length} bytes; it was truncated"
        return _Invalid(reason, size, is_last=True)
    record = content.peek(length, at + _HEADER_BYTES)
    if _masked_checksum(record) != int.from_bytes(footer, "little"):
        return _Invalid("the checksum of this record is wrong", size)
    return record


def _skip_damage(content: "_Lookahead", invalid: _Invalid, mean: float | None) -> Damage:
    """Skip damaged bytes; ``mean`` is the mean size of the valid records so far, in bytes.

    Raises:
        FramingError: no valid record was found so far, and none follows.
    """
    begin = content.offset
    if invalid.size and not invalid.is_last and _may_follow(content, invalid.size):
        content.skip(invalid.size)
        return Damage(f"{invalid.reason}; it is damaged")
    is_found = _find(content, None if mean or invalid.size else _SEARCHED_BYTES)
    skipped = content.offset - begin
    if not is_found and not mean and not invalid.size:
        raise FramingError(
            f"none of its {skipped} bytes begins a record; at its start, {invalid.reason}"
        )
    if not is_found and invalid.is_last:
        return Damage(invalid.reason)
    if mean is None and is_found:
        mean = _HEADER_BYTES + int.from_bytes(content.peek(8), "little") + _FOOTER_BYTES
    place = "the next whole record" if is_found else "the end of the file"
    return Damage(
        f"{invalid.reason}; {skipped} bytes are skipped up to {place}",
        max(1, round(skipped / mean)) if mean else 1,
    )


def _may_follow(content: "_Lookahead", size: int) -> bool:
    """Whether the file ends after ``size`` bytes, or a valid frame header follows there."""
    header = content.peek(_HEADER_BYTES, size)
    return not header or len(_valid_headers(header)) > 0


def _find(content: "_Lookahead", within: int | None) -> bool:
    """Skip to the next valid record; False if there is none."""
    content.skip(1)
    begin = content.offset
    while block := content.peek(_BLOCK):
        for place in _valid_headers(block):
            if isinstance(_frame(content, place), bytes):
                content.skip(place)
                return True
        # A frame header may span two blocks.
        content.skip(len(block) if len(block) < _BLOCK else len(block) - _HEADER_BYTES + 1)
        if within is not None and content.offset - begin > within:
            return False
    return False


class _Lookahead:
    """A stream with lookahead, at ``offset``."""

    def __init__(self, file: IO[bytes]) -> None:
        self.offset = 0
        self._file = file
        self._held = bytearray()

    def peek(self, count: int, at: int = 0) -> bytes:
        """``count`` bytes from ``at`` bytes ahead, without consuming them; fewer at the end."""
        while len(self._held) < at + count:
            # A damaged length may be huge: allocate only for bytes that the file has.
            if not (read := self._file.read(_BLOCK)):
                break
            self._held += read
        return bytes(memoryview(self._held)[at : at + count])

    def skip(self, count: int) -> None:
        """Consume ``count`` of the bytes that were peeked at."""
        del self._held[:count]
        self.offset += count


def _valid_headers(content: bytes) -> list[int]:
    """The offsets at which a length below 4 GiB is followed by its valid checksum."""
    count = len(content) - _HEADER_BYTES + 1
    if count < 1:
        return []
    # The 32-bit numbers that begin at each byte.
    upper, stored = (np.ndarray(count, "<u4", content, first, (1,)) for first in (4, 8))
    places = np.flatnonzero(upper == 0)
    values = np.frombuffer(content, np.uint8)
    checksums = np.full(len(places), google_crc32c.value(bytes(8)), np.uint32)
    for byte, table in enumerate(_checksum_tables()):
        checksums ^= table.take(values[places + byte])
    return places[_masked(checksums) == stored[places]].tolist()


@cache
def _checksum_tables() -> NDArray[np.uint32]:
    """How each value of the first four bytes changes the CRC of eight zero bytes.

    A CRC is linear: the XOR of the changes is the change by a whole length.
    """
    zeros = google_crc32c.value(bytes(8))
    changes = [
        google_crc32c.value(bytes(place) + bytes([byte]) + bytes(7 - place)) ^ zeros
        for place in range(4)
        for byte in range(256)
    ]
    return np.array(changes, np.uint32).reshape(4, 256)
