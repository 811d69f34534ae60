"""TFRecord files, read record by record and past what is damaged in them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from aerotrain.contract.errors import FinalError
from aerotrain.records.framing import FOOT, HEAD, masked_checksum, valid_heads

#: The most bytes that a message of protobuf may have, and so a ``tf.train.Example``.
LONGEST = 2**31 - 1

#: Bytes that are read, and looked through for a record, at once.
_BLOCK = 2**18

#: A file that holds no record within so many bytes from its start is taken for another kind.
_NO_RECORD_WITHIN = 64 * 2**20


class FramingError(FinalError):
    """A file is no TFRecord file."""


@dataclass(frozen=True)
class Damage:
    """Bytes that are no whole record: why, and about how many records they are."""

    reason: str
    records: int = 1


@dataclass(frozen=True)
class _Broken:
    """Why no whole record begins at a place.

    ``size`` is how many bytes it takes, where the checksum of its length says so; ``is_last``
    where the file ends within it.
    """

    reason: str
    size: int | None = None
    is_last: bool = False


def read_frames(file: IO[bytes]) -> Iterator[tuple[int, bytes | Damage]]:
    """The offset and the bytes of each whole record of a TFRecord file, and what is damaged.

    A record whose checksum is wrong is one damage, and the next record follows. Where a length
    is damaged, reading goes on with the next place at which a whole record begins: a length and
    a record that both have their right checksums. No more than a record is held in memory.

    Raises:
        FramingError: there is no record at all, nor the beginning of one.
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
    """The record whose frame begins ``at`` bytes ahead, or why there is none."""
    head = content.peek(HEAD, at)
    if len(head) < HEAD:
        return _Broken("the file ends within the length of this record; it was cut off", None, True)
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
        reason = f"the file ends within this record of {length} bytes; it was cut off"
        return _Broken(reason, size, is_last=True)
    record = content.peek(length, at + HEAD)
    if masked_checksum(record) != int.from_bytes(foot, "little"):
        return _Broken("the checksum of this record is wrong", size)
    return record


def _skip_damage(content: "_Content", broken: _Broken, mean: float | None) -> Damage:
    """Go on past what is broken ahead; ``mean`` is how many bytes a whole record has taken.

    Raises:
        FramingError: so far there was no whole record, and none follows.
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
    """Whether the file ends after so many bytes, or goes on with what begins a record."""
    head = content.peek(HEAD, size)
    return not head or len(valid_heads(head)) > 0


def _find(content: "_Content", within: int | None) -> bool:
    """Go on to where the next whole record begins; False, at the end, where there is none."""
    content.skip(1)
    begin = content.offset
    while block := content.peek(_BLOCK):
        for place in valid_heads(block):
            if isinstance(_frame(content, place), bytes):
                content.skip(place)
                return True
        # The head of a record may be cut by the end of a block.
        content.skip(len(block) if len(block) < _BLOCK else len(block) - HEAD + 1)
        if within is not None and content.offset - begin > within:
            return False
    return False


class _Content:
    """A stream at ``offset``, whose bytes are looked at before they are passed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.offset = 0
        self._file = file
        self._held = bytearray()

    def peek(self, count: int, at: int = 0) -> bytes:
        """So many bytes from ``at`` bytes ahead; fewer where the file ends."""
        while len(self._held) < at + count:
            # A length may say anything: memory is taken for what the file has, not for that.
            if not (read := self._file.read(_BLOCK)):
                break
            self._held += read
        return bytes(memoryview(self._held)[at : at + count])

    def skip(self, count: int) -> None:
        """Pass so many bytes of those that were looked at."""
        del self._held[:count]
        self.offset += count
