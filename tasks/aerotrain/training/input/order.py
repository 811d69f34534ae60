"""In which order a training reads the records of its shards: a plan, which reads nothing.

Shards are shuffled, and read in groups. A group is cut into windows, each of a part of every
shard in it; the records of a window are held in memory and shuffled. So a run that goes on
from the middle of an epoch begins with the window that it is in, and reads nothing before.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Shard

#: Bytes of records that a window holds at most. A split that fits is shuffled perfectly.
WINDOW_BYTES = 64 * 2**20

#: Shards of one group at most, where they are larger than a window together. An epoch begins
#: with groups of 1, 2 and 4, so that a training need not wait until many shards have come.
MIXED = 8


@dataclass(frozen=True)
class Piece:
    """``count`` records of a shard, from record ``first`` on."""

    shard: Shard
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """Records that are shuffled together, by the two numbers of ``seed``.

    The first ``drop`` of the shuffled ones were read by an earlier run. ``last`` ends an epoch.
    """

    pieces: tuple[Piece, ...]
    seed: tuple[int, int]
    drop: int = 0
    last: bool = False

    @property
    def records(self) -> int:
        """How many records there are, with those that are dropped."""
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of ``shards`` by ``seed``, another one in each epoch.

    ``window_bytes`` are held in memory to be shuffled. ``shard_cache_bytes`` is how much of the
    disk shards may take, 0 for as much as they need: of two groups, one that is read and one that
    comes, so that a small budget mixes fewer shards.

    Raises:
        FinalError: the largest shard does not fit into ``shard_cache_bytes``.
    """

    shards: Sequence[Shard]
    seed: int
    shard_cache_bytes: int = 0
    window_bytes: int = WINDOW_BYTES

    def __post_init__(self) -> None:
        largest = max(self.shards, key=lambda shard: shard.bytes)
        if self.shard_cache_bytes and largest.bytes > self.shard_cache_bytes:
            raise FinalError(
                f"shard_cache_bytes is {self.shard_cache_bytes}, but the shard {largest.file} has "
                f"{largest.bytes} bytes, and shards are read whole; give {largest.bytes} bytes "
                f"or more ({4 * largest.bytes} to have shards come while others are read), or "
                "prepare smaller shards"
            )

    def windows(self, epoch: int = 0, done: int = 0) -> Iterator[Window]:
        """All windows from ``epoch`` on, without end, but for its first ``done`` records."""
        while True:
            for window in self.epoch(epoch):
                if done < window.records:
                    yield replace(window, drop=done)
                done = max(0, done - window.records)
            epoch += 1

    def window_of(self, record: int) -> int:
        """The number of the window in which that record of all epochs comes, both from 0."""
        for number, window in enumerate(self.windows()):
            record -= window.records
            if record < 0:
                return number
        raise AssertionError("there are windows without end")

    def epoch(self, number: int) -> Iterator[Window]:
        """The windows of one epoch, in which each record is once."""
        cut = (pieces for group in self._groups(number) for pieces in self._cut(group))
        before: tuple[Piece, ...] = ()
        count = 0
        for pieces in cut:
            if before:
                yield self._window(before, number, count)
                count += 1
            before = pieces
        yield replace(self._window(before, number, count), last=True)

    def _window(self, pieces: tuple[Piece, ...], epoch: int, number: int) -> Window:
        return Window(pieces=pieces, seed=(self.seed, epoch << 32 | number))

    def _groups(self, epoch: int) -> Iterator[list[Shard]]:
        group: list[Shard] = []
        size, most = 0, 1
        for shard in sorted(self.shards, key=lambda each: self._place(each, epoch)):
            size += shard.bytes
            mixed = size <= self.window_bytes or len(group) < most
            fits = not self.shard_cache_bytes or size <= self.shard_cache_bytes // 2
            if group and not (mixed and fits):
                yield group
                group, size, most = [], shard.bytes, min(2 * most, MIXED)
            group.append(shard)
        yield group

    def _place(self, shard: Shard, epoch: int) -> bytes:
        # No generator of numbers, which another version may well change.
        return hashlib.sha256(f"{self.seed} {epoch} {shard.file}".encode()).digest()

    def _cut(self, group: list[Shard]) -> Iterator[tuple[Piece, ...]]:
        windows = -(-sum(shard.bytes for shard in group) // self.window_bytes)
        for number in range(windows):
            pieces = []
            for shard in group:
                begin, end = (shard.records * each // windows for each in (number, number + 1))
                if begin < end:
                    pieces.append(Piece(shard, begin, end - begin))
            if pieces:
                yield tuple(pieces)
