"""The index of a shard: the offset and the length of each record."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Shard

#: Bytes of a TFRecord before a record, its length and that length's checksum, and after it.
HEAD, FOOT = 12, 4

#: The suffix of an index. It holds two int64 per record: the offset and the length.
INDEX = ".index"

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Indexed:
    """A shard on this disk, and its index, or None if all records have the same length."""

    shard: Shard
    index: Path | None

    def offset(self, record: int) -> int:
        """The offset of that record's frame in the shard, or the shard's end."""
        if self.index is None:
            return self.shard.bytes // self.shard.records * record
        if record == self.shard.records:
            return self.shard.bytes
        [place] = np.fromfile(self.index, "<i8", 1, offset=16 * record)
        return int(place) - HEAD


def write_index(shard: Shard, path: Path) -> Indexed:
    """Find the records of the shard at ``path``, and write its index next to it.

    Raises:
        FinalError: the shard does not contain the records of the manifest.
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
