"""TFRecord framing: length, checksum of the length, record, checksum of the record.

Many records are framed at once; a file is read record by record, up to the first damage.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise, starmap
from typing import IO

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, counted
from aerotrain.data.records.columns import Columns
from aerotrain.data.records.encoding import (
    as_array,
    as_piece,
    buffers_of,
    content_of,
    headers,
    joined,
    lengths_of,
    pieces_of,
)

#: Bytes before a record (its length and that length's checksum) and after it (its checksum).
_HEADER_BYTES, _FOOTER_BYTES = 12, 4

_CRC_MASK = 0xA282EAD8

#: The size limit of a protobuf message, and so of a ``tf.train.Example``, in bytes.
_MAX_RECORD_BYTES = 2**31 - 1


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
    frames[:, :_HEADER_BYTES] = np.frombuffer(_header(length), np.uint8)
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
    return Frames(joined([headers(lengths, _header), as_piece(records), footers]), checksums)


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


def _header(length: int) -> bytes:
    """The frame header of records of that length."""
    encoded = length.to_bytes(8, "little")
    return encoded + _masked_checksum(encoded).to_bytes(4, "little")


def _masked(checksums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Masked checksums: the CRC of data that contains plain CRCs is weak."""
    rotated = checksums >> np.uint32(15) | checksums << np.uint32(17)
    return (rotated + np.uint32(_CRC_MASK)).astype("<u4")


class FramingError(FinalError):
    """A file is damaged, or not a TFRecord file."""


def read_frames(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each record of a TFRecord file.

    At most one record is held in memory.

    Raises:
        FramingError: the file is damaged, or no TFRecord file; the message has the records before.
    """
    offset = 0
    for number in count():
        header = file.read(_HEADER_BYTES)
        if not header:
            return
        length = int.from_bytes(header[:8], "little")
        why = _why_no_length(header, length)
        content = b"" if why else file.read(length + _FOOTER_BYTES)
        record, footer = content[:length], content[length:]
        if not why and len(footer) < _FOOTER_BYTES:
            why = f"it ends within a record of {length} bytes: it was truncated"
        elif not why and _masked_checksum(record) != int.from_bytes(footer, "little"):
            why = "the checksum of a record is wrong"
        if why:
            raise FramingError(
                f"after {counted(number, 'record')}, at byte {offset}, {why}; write it again"
            )
        yield offset, record
        offset += len(header) + len(content)


def _why_no_length(header: bytes, length: int) -> str:
    """What is wrong with the header of a record; empty if nothing is."""
    if len(header) < _HEADER_BYTES:
        return "it ends within the length of a record: it was truncated"
    if _masked_checksum(header[:8]) != int.from_bytes(header[8:], "little"):
        return "the checksum of a length is wrong"
    if length > _MAX_RECORD_BYTES:
        return (
            f"a record has {length} bytes, more than the {_MAX_RECORD_BYTES} of the longest "
            "tf.train.Example"
        )
    return ""
