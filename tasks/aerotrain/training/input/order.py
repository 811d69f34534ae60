"""The steps of a training, and the order in which they read records: plans, without any reading.

In each epoch, shards are shuffled, and read in groups. Each shard of a group is cut into pieces,
from another record on in each epoch, and its pieces are assigned to the windows of the group at
random. The records of a window are held in memory and shuffled. So each epoch has other windows,
and a run that resumes in the middle of one starts with its current window, and reads nothing before
it.

Where batches are leased to workers, groups are smaller, so that each worker can have its own, and
consist of whole batches: a shard at a border is in two groups.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import Shard

#: The most bytes of records in a window. A split that fits is shuffled perfectly.
WINDOW_BYTES = 32 * 2**20

#: The most shards in one group, if they are larger than a window together. The first epoch starts
#: with smaller groups, each of twice as many shards as the one before, so that a training need not
#: wait until many are downloaded.
MIXED = 32
_FIRST_MIXED = 4

#: The same where batches are leased: a worker downloads the groups in which it reads.
LEASED = 8

#: About how many pieces a window has: records that are adjacent in a shard are in one piece.
PIECES = 64


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """``epochs`` passes over ``records`` records, in batches of ``batch_size``.

    The last batch of an epoch is smaller, unless it is dropped.
    """

    records: int
    batch_size: int
    epochs: int
    drop_remainder: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read each record once, but for a remainder that is dropped."""
        if self.drop_remainder:
            return self.records // self.batch_size
        return -(-self.records // self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def position(self, step: int) -> tuple[int, int]:
        """The epoch, from 0, that follows ``step`` steps, and its number of steps done."""
        return divmod(step, self.steps_per_epoch)

    def records_after(self, step: int) -> int:
        """The number of records that ``step`` steps take, each in as many epochs as there are."""
        if self.drop_remainder:
            return step * self.batch_size
        epoch, done = self.position(step)
        return epoch * self.records + done * self.batch_size


@dataclass(frozen=True)
class Piece:
    """``count`` records of a shard, from record ``first`` on."""

    shard: Shard
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """Records that are shuffled together, by the two numbers of ``seed``.

    The first ``drop`` of the shuffled records were read by an earlier run. ``last`` ends an epoch.
    """

    pieces: tuple[Piece, ...]
    seed: tuple[int, int]
    drop: int = 0
    last: bool = False

    @property
    def number(self) -> int:
        """The number of the window: that of its epoch, and of its place there or in its group."""
        return self.seed[1]

    @property
    def records(self) -> int:
        """The number of records, including those that are dropped."""
        return sum(piece.count for piece in self.pieces)


def number_of(epoch: int, group: int, window: int = 0) -> int:
    """The number of a window by its epoch, its group there, and its place in that, all from 0.

    The windows of a group have consecutive numbers.
    """
    return epoch << 32 | group << 16 | window


def group_of(number: int) -> tuple[int, int]:
    """The epoch and the group of the window of that number."""
    return number >> 32, number >> 16 & 0xFFFF


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of ``shards`` by ``seed``, different in each epoch.

    ``window_bytes`` are held in memory for shuffling. ``shard_cache_bytes`` limits the disk space
    of shards; 0 means no limit. The space must hold two groups, one that is read and one that is
    downloaded, so a small limit mixes fewer shards. With a ``batch_size``, each group consists of
    whole batches, except for the last one of an epoch.

    Raises:
        FinalError: ``shard_cache_bytes`` does not hold the largest shard, or those of one batch.
    """

    shards: Sequence[Shard]
    seed: int
    shard_cache_bytes: int = 0
    window_bytes: int = WINDOW_BYTES
    batch_size: int | None = None

    def __post_init__(self) -> None:
        largest = max(self.shards, key=lambda shard: shard.bytes)
        least, why = largest.bytes, ""
        if self.batch_size is not None:
            # A batch may begin in one shard, fill some small ones, and end in another.
            between = self.batch_size * max(-(-each.bytes // each.records) for each in self.shards)
            least = min(2 * least + between, sum(each.bytes for each in self.shards))
            why = f"; a batch of {self.batch_size} records may need {least}"
        if self.shard_cache_bytes and least > self.shard_cache_bytes:
            raise FinalError(
                f"shard_cache_bytes is {self.shard_cache_bytes}, but the shard {largest.file} has "
                f"{largest.bytes} bytes, and shards are read whole{why}; give {least} bytes "
                f"or more ({4 * largest.bytes} to have shards come while others are read), or "
                "prepare smaller shards"
            )

    @classmethod
    def of(
        cls, arguments: TrainArguments, shards: Sequence[Shard], *, leased: bool = False
    ) -> Self:
        """The order in which a job reads shards of its train split, by leases or all of them."""
        return cls(
            shards=shards,
            seed=arguments.seed,
            shard_cache_bytes=arguments.shard_cache_bytes,
            batch_size=arguments.batch_size if leased else None,
        )

    def windows(self, epoch: int = 0, done: int = 0) -> Iterator[Window]:
        """All windows from ``epoch`` on, without end, except its first ``done`` records."""
        while True:
            for window in self.epoch(epoch):
                if done < window.records:
                    yield replace(window, drop=done)
                done = max(0, done - window.records)
            epoch += 1

    def epoch(self, number: int) -> Iterator[Window]:
        """The windows of one epoch, in which each record occurs once."""
        cut = (pieces for group in self.groups(number) for pieces in self._cut(group, number))
        nothing: tuple[Piece, ...] = ()
        for count, (pieces, following) in enumerate(
            itertools.pairwise(itertools.chain(cut, [nothing]))
        ):
            seed = self.seed, number << 32 | count
            yield Window(pieces=pieces, seed=seed, last=not following)

    def group(self, number: int) -> Iterator[Window]:
        """The windows of the group that the window of that number is in, or of its epoch.

        The latter where batches are not leased: there the windows of an epoch are in a row.
        """
        epoch, group = group_of(number)
        if self.batch_size is None:
            return self.epoch(epoch)
        return self.cut(self.groups(epoch)[group], epoch, group)

    def first_of(self, number: int) -> int:
        """The number of the first one of these windows."""
        epoch, group = group_of(number)
        return number_of(epoch, 0 if self.batch_size is None else group)

    def cut(self, pieces: Sequence[Piece], epoch: int, group: int) -> Iterator[Window]:
        """The windows of a group, of which ``groups`` has returned the ``pieces``."""
        for count, each in enumerate(self._cut(pieces, epoch)):
            yield Window(pieces=each, seed=(self.seed, number_of(epoch, group, count)))

    def groups(self, epoch: int) -> list[list[Piece]]:
        """The shards of each group of an epoch, or the parts of them that are in the group."""
        left = [Piece(shard, 0, shard.records) for shard in self._shuffled(epoch)]
        mixed, whole = (MIXED, 1) if self.batch_size is None else (LEASED, self.batch_size)
        most = mixed if epoch else _FIRST_MIXED
        groups = []
        while left:
            count = self._group_size(left, most)
            if count < len(left) < 2 * count:
                count = -(-len(left) // 2)  # a small last group would mix few shards
            records = sum(piece.count for piece in left[:count])
            while records < whole and count < len(left):
                records, count = records + left[count].count, count + 1
            if count < len(left):
                records -= records % whole
            group, rest = _divided(left[:count], records)
            groups.append(group)
            left, most = rest + left[count:], min(2 * most, mixed)
        return groups

    def _shuffled(self, epoch: int) -> list[Shard]:
        """The shards in random order; those of one partition are spread evenly over the epoch.

        Shards of one partition are parts of the same files, so their records may be alike.
        """
        partitions: dict[str, list[Shard]] = {}
        for shard in sorted(self.shards, key=lambda shard: self._random(epoch, shard.file)):
            partitions.setdefault(shard.file.rpartition("-")[0], []).append(shard)
        places = {
            shard.file: (turn + self._random(epoch, partition) / 2**64) / len(shards)
            for partition, shards in partitions.items()
            for turn, shard in enumerate(shards)
        }
        return sorted(self.shards, key=lambda shard: (places[shard.file], shard.file))

    def _group_size(self, pieces: Sequence[Piece], most: int) -> int:
        """How many of ``pieces`` form a group: all that fit into a window, or ``most``."""
        size = 0
        for count, piece in enumerate(pieces):
            size += piece.shard.bytes
            mixed = size <= self.window_bytes or count < most
            fits = not self.shard_cache_bytes or size <= self.shard_cache_bytes // 2
            if count and not (mixed and fits):
                return count
        return len(pieces)

    def _random(self, *about: object) -> int:
        """A number of 64 bits that is determined by the seed and ``about``."""
        # Not a random generator, whose numbers may change between versions.
        text = " ".join(map(str, (self.seed, *about)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])

    def _cut(self, group: Sequence[Piece], epoch: int) -> Iterator[tuple[Piece, ...]]:
        size = sum(each.shard.bytes * each.count // each.shard.records for each in group)
        windows = -(-size // self.window_bytes)
        if windows == 1:
            yield tuple(sorted(group, key=lambda piece: self._random(epoch, piece.shard.file)))
            return
        assigned: list[list[Piece]] = [[] for _ in range(windows)]
        for whole in group:
            file = whole.shard.file
            count = windows * max(1, min(PIECES // len(group), whole.count // windows))
            first = self._random(epoch, file, "first") % whole.count
            places = sorted(range(count), key=lambda n: self._random(epoch, file, n))
            for number, place in enumerate(places):
                assigned[place % windows] += _pieces(whole, first, number, count)
        yield from (tuple(pieces) for pieces in assigned if pieces)


def _pieces(whole: Piece, first: int, number: int, count: int) -> Iterator[Piece]:
    """Piece ``number`` of ``count`` of a piece, from record ``first`` on, and over its end."""
    begin, end = (first + whole.count * each // count for each in (number, number + 1))
    for turn in (0, whole.count):
        start, stop = max(begin - turn, 0), min(end - turn, whole.count)
        if start < stop:
            yield Piece(whole.shard, whole.first + start, stop - start)


def _divided(pieces: Sequence[Piece], records: int) -> tuple[list[Piece], list[Piece]]:
    """The first ``records`` records of ``pieces``, and the others."""
    first, others = [], []
    for piece in pieces:
        count = min(piece.count, records)
        records -= count
        if count:
            first.append(replace(piece, count=count))
        if count < piece.count:
            others.append(Piece(piece.shard, piece.first + count, piece.count - count))
    return first, others
