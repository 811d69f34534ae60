"""TFRecord framing: length, checksum of the length, record, checksum of the record."""

import struct
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, starmap

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.data.records.columns import Columns
from aerotrain.data.records.encoding import (
    as_piece,
    joined,
    lengths_of,
    parts_of,
    pieces_of,
    rows_of,
)

#: Bytes before a record (its length and that length's checksum) and after it (its checksum).
HEAD, FOOT = 12, 4

_CRC_MASK = 0xA282EAD8


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
        offsets, content = parts_of(self.rows)
        return content.data[offsets[0] : offsets[-1]]


def encoded_frames(columns: Columns) -> Frames:
    """The records of ``columns``, encoded and framed.

    If all records have equal lengths, every byte is copied only once.
    """
    pieces = pieces_of(columns)
    blocks = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if len(blocks) < len(pieces) or not len(blocks[0]):
        return framed(joined(pieces))
    count, length = len(blocks[0]), sum(block.shape[1] for block in blocks)
    frames = np.empty((count, HEAD + length + FOOT), np.uint8)
    frames[:, :HEAD] = _head(length)
    at = HEAD
    for block in blocks:
        frames[:, at : at + block.shape[1]] = block
        at += block.shape[1]
    checksums = _checksums_of_rows(frames, length)
    frames[:, at:] = _masked(checksums)[:, None].view(np.uint8)
    return Frames(rows_of(frames), checksums)


def framed(records: pa.LargeBinaryArray) -> Frames:
    """Each record with its length and checksums."""
    lengths = lengths_of(records)
    offsets, content = parts_of(records)
    checksums = _checksums(offsets, content)
    feet = _masked(checksums)[:, None].view(np.uint8)
    return Frames(joined([_heads(lengths), as_piece(records), feet]), checksums)


def masked_checksum(data: bytes) -> int:
    """The masked CRC-32C of a record or a length, as stored in a file."""
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + _CRC_MASK) & 0xFFFFFFFF


def valid_heads(content: bytes) -> list[int]:
    """The offsets at which a length below 4 GiB is followed by its valid checksum."""
    count = len(content) - HEAD + 1
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
    records = struct.iter_unpack(f"{HEAD}x{length}s{FOOT}x", frames.data)
    return np.fromiter(starmap(google_crc32c.value, records), np.uint32, len(frames))


def _heads(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    different, which = np.unique(lengths, return_inverse=True)
    return np.concatenate([np.zeros((0, HEAD), np.uint8), *map(_head, different)])[which]


def _head(length: int) -> NDArray[np.uint8]:
    """The frame header of records of that length, as one row."""
    encoded = int(length).to_bytes(8, "little")
    return np.frombuffer(encoded + masked_checksum(encoded).to_bytes(4, "little"), np.uint8)[None]


def _masked(checksums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Masked checksums: the CRC of data that contains plain CRCs is weak."""
    rotated = checksums >> np.uint32(15) | checksums << np.uint32(17)
    return (rotated + np.uint32(_CRC_MASK)).astype("<u4")
