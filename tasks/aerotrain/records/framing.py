"""TFRecord: each record between its length and its checksum, both of them checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.records.encoding import as_piece, joined, lengths_of, parts_of

#: Bytes before a record, its length and that length's checksum, and after it.
HEAD, FOOT = 12, 4

_CRC_MASK = 0xA282EAD8


@dataclass(frozen=True)
class Frames:
    """Records as they stand in a file, and the CRC-32C of each record."""

    rows: pa.LargeBinaryArray
    checksums: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content(self) -> memoryview:
        """All frames after one another, to be written to a file."""
        offsets, content = parts_of(self.rows)
        return content.data[offsets[0] : offsets[-1]]


def framed(records: pa.LargeBinaryArray) -> Frames:
    """Each record with its length and both of its checksums around it."""
    lengths = lengths_of(records)
    offsets, content = parts_of(records)
    checksums = _checksums(offsets, content)
    feet = _masked(checksums)[:, None].view(np.uint8)
    return Frames(joined([_heads(lengths), as_piece(records), feet]), checksums)


class TruncatedError(FinalError):
    """A TFRecord file ends within a record, or holds one whose checksum is another."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def read_frames(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The offset and the bytes of each record of a TFRecord file, as far as they are whole.

    Raises:
        TruncatedError: the file ends within a record, or a checksum is wrong; no record that
            follows can be found.
    """
    offset = 0
    while head := file.read(HEAD):
        length = int.from_bytes(head[:8], "little")
        if len(head) < HEAD or _masked_one(head[:8]) != int.from_bytes(head[8:], "little"):
            raise TruncatedError("it is no TFRecord file from here on: a length is damaged", offset)
        record, foot = file.read(length), file.read(FOOT)
        if len(record) < length or len(foot) < FOOT:
            raise TruncatedError(
                f"the file ends within this record of {length} bytes; it was cut off", offset
            )
        if _masked_one(record) != int.from_bytes(foot, "little"):
            raise TruncatedError("the checksum of this record is wrong; it is damaged", offset)
        yield offset, record
        offset += HEAD + length + FOOT


def _checksums(offsets: NDArray[np.int64], content: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32C of each record; the one thing that is done for each of them in Python."""
    begin = int(offsets[0])
    data = content[begin : int(offsets[-1])].tobytes()
    ends = (offsets - begin).tolist()
    value = google_crc32c.value
    each = (value(data[start:end]) for start, end in pairwise(ends))
    return np.fromiter(each, np.uint32, len(ends) - 1)


def _heads(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    different, which = np.unique(lengths, return_inverse=True)
    heads = np.empty((len(different), HEAD), np.uint8)
    heads[:, :8] = different.astype("<u8")[:, None].view(np.uint8)
    for row in heads:
        row[8:] = np.frombuffer(_masked_one(row[:8].tobytes()).to_bytes(4, "little"), np.uint8)
    return heads[which]


def _masked(checksums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Checksums rotated and shifted: a CRC of data that holds CRCs is weak."""
    rotated = checksums >> np.uint32(15) | checksums << np.uint32(17)
    return (rotated + np.uint32(_CRC_MASK)).astype("<u4")


def _masked_one(data: bytes) -> int:
    return int(_masked(np.array([google_crc32c.value(data)], np.uint32))[0])
