"""Read TFRecord files record by record, and resume after damage."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from aerotrain.contract.errors import FinalError
from aerotrain.data.records.framing import FOOT, HEAD, masked_checksum, valid_heads

#: The size limit of a protobuf message, and so of a ``tf.train.Example``, in bytes.
LONGEST = 2**31 - 1

#: Bytes that are read, and searched for a record, at once.
_BLOCK = 2**18

#: A file without a record in its first bytes, this many, is of another kind.
_NO_RECORD_WITHIN = 64 * 2**20


class FramingError(FinalError):
    """A file is not a TFRecord file."""


@dataclass(frozen=True)
class Damage:
    """Bytes that are not a valid record: the reason, and an estimate of how many records."""

    reason: str
    records: int = 1


@dataclass(frozen=True)
class _Broken:
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
    content = _Content(file)
    whole = size = 0
    while content.peek(1):
        offset, found = content.offset, _frame(content, 0)
        if isinstance(found, bytes):
            content.skip(HEAD + len(found) + FOOT)
            whole += 1
            size += HEAD + len(found) + FOOT
            yield offset, found
        else:
            yield offset, _skip_damage(content, found, size / whole if whole else None)


def _frame(content: "_Content", at: int) -> bytes | _Broken:
    """The record whose frame begins ``at`` bytes from here, or why there is none."""
    head = content.peek(HEAD, at)
    if len(head) < HEAD:
        return _Broken(
            "the file ends within the length of this record; it was truncated", None, True
        )
    length = int.from_bytes(head[:8], "little")
    if masked_checksum(head[:8]) != int.from_bytes(head[8:], "little"):
        return _Broken("its length is damaged")
    if length > LONGEST:
        return _Broken(
            f"its length says that it has {length} bytes, more than the {LONGEST} of "
            "the longest tf.train.Example"
        )
    size = HEAD + length + FOOT
    foot = content.peek(FOOT, at + HEAD + length)
    if len(foot) < FOOT:
        reason = f"the file ends within this record of {length} bytes; it was truncated"
        return _Broken(reason, size, is_last=True)
    record = content.peek(length, at + HEAD)
    if masked_checksum(record) != int.from_bytes(foot, "little"):
        return _Broken("the checksum of this record is wrong", size)
    return record


def _skip_damage(content: "_Content", broken: _Broken, mean: float | None) -> Damage:
    """Skip damaged bytes; ``mean`` is the mean size of the valid records so far, in bytes.

    Raises:
        FramingError: no valid record was found so far, and none follows.
    """
    begin = content.offset
    if broken.size and not broken.is_last and _may_follow(content, broken.size):
        content.skip(broken.size)
        return Damage(f"{broken.reason}; it is damaged")
    is_found = _find(content, None if mean or broken.size else _NO_RECORD_WITHIN)
    skipped = content.offset - begin
    if not is_found and not mean and not broken.size:
        raise FramingError(
            f"none of its {skipped} bytes begins a record; at its start, {broken.reason}"
        )
    if not is_found and broken.is_last:
        return Damage(broken.reason)
    if mean is None and is_found:
        mean = HEAD + int.from_bytes(content.peek(8), "little") + FOOT
    place = "the next whole record" if is_found else "the end of the file"
    return Damage(
        f"{broken.reason}; {skipped} bytes are skipped up to {place}",
        max(1, round(skipped / mean)) if mean else 1,
    )


def _may_follow(content: "_Content", size: int) -> bool:
    """Whether the file ends after ``size`` bytes, or a valid frame header follows there."""
    head = content.peek(HEAD, size)
    return not head or len(valid_heads(head)) > 0


def _find(content: "_Content", within: int | None) -> bool:
    """Skip to the next valid record; False if there is none."""
    content.skip(1)
    begin = content.offset
    while block := content.peek(_BLOCK):
        for place in valid_heads(block):
            if isinstance(_frame(content, place), bytes):
                content.skip(place)
                return True
        # A frame header may span two blocks.
        content.skip(len(block) if len(block) < _BLOCK else len(block) - HEAD + 1)
        if within is not None and content.offset - begin > within:
            return False
    return False


class _Content:
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
