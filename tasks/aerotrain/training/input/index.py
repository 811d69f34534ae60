"""Where each record of a shard begins, and how long it is."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Shard

#: Bytes of a TFRecord before a record, its length and that length's checksum, and after it.
HEAD, FOOT = 12, 4

#: What the name of an index ends with. It holds two int64 a record: its place, and its length.
INDEX = ".index"

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Indexed:
    """A shard on this disk, and its index, or None where all records are equally long."""

    shard: Shard
    index: Path | None

    def offset(self, record: int) -> int:
        """Where the frame of that record begins in the shard, or where the shard ends."""
        if self.index is None:
            return self.shard.bytes // self.shard.records * record
        if record == self.shard.records:
            return self.shard.bytes
        [place] = np.fromfile(self.index, "<i8", 1, offset=16 * record)
        return int(place) - HEAD


def write_index(shard: Shard, path: Path) -> Indexed:
    """Find the records of the shard at ``path``, and leave their places beside it.

    Raises:
        FinalError: it does not hold the records that the manifest says.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        places = np.empty((shard.records, 2), "<i8")
        offset = found = 0
        while offset < shard.bytes and found < shard.records:
            if offset + HEAD + FOOT > shard.bytes:
                break
            [length] = _LENGTH.unpack_from(content, offset)
            places[found] = offset + HEAD, length
            offset += HEAD + length + FOOT
            found += 1
    if (offset, found) != (shard.bytes, shard.records):
        raise FinalError(
            f"{shard.file} is not the {shard.records} records in {shard.bytes} bytes that its "
            f"manifest says: after {found} of them {offset} bytes are passed; prepare the data "
            "set again"
        )
    index = path.with_name(path.name + INDEX)
    places.tofile(index)
    return Indexed(shard, index)
