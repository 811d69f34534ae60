"""Which worker reads which batches of an epoch: leases, which the chief gives, without any reading.

A worker that asks gets a lease of some batches that are in a row in one group of the order. It
continues in its group, then takes one that no worker is in, then helps another. So each downloads
few shards, those of its next group while it reads the one before, and one that is faster takes
more. What a worker does not finish is given back, and leased again.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import accumulate, count, pairwise
from typing import Any

from aerotrain.training.input.order import Order, number_of

#: The last leases of an epoch have at least this part of the batches that were asked for.
_SMALLEST = 8


@dataclass(frozen=True)
class Part:
    """``records`` records of a window, after the first ``drop`` of those that were shuffled."""

    window: int
    drop: int
    records: int


def in_batches(parts: Iterable[Part], batch_size: int) -> Iterator[list[Part]]:
    """The parts of each batch, of which the last one may be smaller."""
    batch: list[Part] = []
    room = batch_size
    for part in parts:
        done = 0
        while done < part.records:
            records = min(room, part.records - done)
            batch.append(Part(part.window, part.drop + done, records))
            done, room = done + records, room - records
            if not room:
                yield batch
                batch, room = [], batch_size
    if batch:
        yield batch


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The batches of an epoch from batch ``begin`` on, before batch ``end``, both from 0.

    ``number`` is that of the lease, from 1. ``parts`` have the records of the batches, in their
    order, which begin and end in a window. ``ahead`` is the number of the first window of the group
    in which the worker will probably continue.
    """

    number: int
    worker: int
    epoch: int
    begin: int
    end: int
    parts: tuple[Part, ...]
    ahead: int | None

    @property
    def batches(self) -> int:
        """The number of batches."""
        return self.end - self.begin

    def rows(self) -> list[list[int]]:
        """The parts as a worker's graph gets them; the last has the number of batches.

        One of no records announces what is ahead.
        """
        parts = self.parts if self.ahead is None else (Part(self.ahead, 0, 0), *self.parts)
        rows = [[self.number, each.window, each.drop, each.records, 0] for each in parts]
        rows[-1][-1] = self.batches
        return rows

    def rows_of_batches(self, batch_size: int) -> list[list[int]]:
        """The parts of each batch, of which the last one has the number 1: see ``rows_of``."""
        return [
            [self.number, each.window, each.drop, each.records, int(each is batch[-1])]
            for batch in in_batches(self.parts, batch_size)
            for each in batch
        ]


@dataclass
class LeaseBook:
    """The leases of one epoch after another; only one thread at a time may use it.

    It begins with what ``to_dict`` of an earlier one has returned: an epoch, and the batches that
    are left of it, if not all of them.
    """

    order: Order
    begin: InitVar[Mapping[str, Any]]
    _: KW_ONLY
    drop_remainder: bool = False

    def __post_init__(self, begin: Mapping[str, Any]) -> None:
        assert self.order.batch_size is not None, "only whole batches can be leased"
        self._batch_size = self.order.batch_size
        self.epoch: int = begin["epoch"]
        self._numbers = count(1)
        self._out: dict[int, Lease] = {}
        #: The batches that are neither leased nor done.
        self._free: list[range] = []
        #: The batch that follows a worker's last lease, or -1, of each that may ask again.
        self._following: dict[int, int] = {}
        #: The group in which a worker is to continue after its own.
        self._ahead: dict[int, int] = {}
        self._plan(begin.get("left"))

    def to_dict(self) -> dict[str, Any]:
        """The epoch and what is left of it, as JSON; what is leased is not done."""
        leased = [range(lease.begin, lease.end) for lease in self._out.values()]
        return {
            "epoch": self.epoch,
            "left": [[each.start, each.stop] for each in _joined([*self._free, *leased])],
        }

    @property
    def has_ended(self) -> bool:
        """Whether each batch of the epoch is done."""
        return not self._free and not self._out

    def next_epoch(self) -> None:
        """Begin with the next epoch, after this one ``has_ended``."""
        assert self.has_ended, f"epoch {self.epoch} has not ended"
        self.epoch += 1
        self._plan(None)

    def take(self, worker: int, most: int) -> Lease | None:
        """A lease of up to ``most`` batches, or None if all that are left are leased.

        Towards the end of an epoch, leases get smaller, so that no worker waits long for another,
        but not so small that their fixed cost would show.
        """
        self._following.setdefault(worker, -1)
        if not self._free:
            return None
        at, begin = self._chosen(worker)
        chosen = self._free[at]
        left = sum(map(len, self._free))
        size = min(most, max(1, most // _SMALLEST, left // (2 * len(self._following))))
        end = min(begin + size, chosen.stop)
        others = (range(chosen.start, begin), range(end, chosen.stop))
        self._free[at : at + 1] = [each for each in others if each]
        self._following[worker] = end
        ahead = self._group_ahead(worker, self._group(begin))
        lease = Lease(
            number=next(self._numbers),
            worker=worker,
            epoch=self.epoch,
            begin=begin,
            end=end,
            parts=tuple(self._parts(begin, end)),
            ahead=None if ahead is None else number_of(self.epoch, ahead),
        )
        self._out[lease.number] = lease
        return lease

    def finish(self, lease: Lease) -> None:
        """All batches of the lease are done."""
        del self._out[lease.number]

    def give_back(self, lease: Lease, done: int) -> None:
        """Only the first ``done`` batches of the lease are done; the others are leased again."""
        self.finish(lease)
        if done < lease.batches:
            self._free = self._within_groups([*self._free, range(lease.begin + done, lease.end)])
            if lease.worker in self._following:
                self._following[lease.worker] = lease.begin + done

    def leave(self, worker: int) -> None:
        """The worker will not ask again, unless it joins again; its leases were given back."""
        self._following.pop(worker, None)
        self._ahead.pop(worker, None)

    def _plan(self, left: Sequence[Sequence[int]] | None) -> None:
        self._groups = self.order.groups(self.epoch)
        sizes = [sum(piece.count for piece in group) for group in self._groups]
        records = sum(sizes)
        if self.drop_remainder:
            records -= records % self._batch_size
        #: The first batch of each group, and the number of all.
        self._begins = [-(-size // self._batch_size) for size in accumulate(sizes, initial=0)]
        self._begins[-1] = -(-records // self._batch_size)
        self._records = records
        #: The records of each window of a group, of those groups that were leased from.
        self._windows: dict[int, list[int]] = {}
        self._following = dict.fromkeys(self._following, -1)
        self._ahead = {}
        left = [(0, self._begins[-1])] if left is None else left
        self._free = self._within_groups([range(*each) for each in left])

    def _within_groups(self, ranges: list[range]) -> list[range]:
        """The ranges in their order, as few as possible of which none crosses a group's border."""
        cut = []
        for each in _joined(ranges):
            first, last = self._group(each.start), self._group(each.stop - 1)
            places = [each.start, *self._begins[first + 1 : last + 1], each.stop]
            cut += [range(*pair) for pair in pairwise(places)]
        return cut

    def _group(self, batch: int) -> int:
        return bisect_right(self._begins, batch) - 1

    def _chosen(self, worker: int) -> tuple[int, int]:
        """The place of a range that is free, and the batch in it at which to begin."""
        own = self._following[worker]
        taken, mine = self._taken(worker), self._group(own - 1) if own > 0 else -1

        def rank(at: int) -> tuple[int, int]:
            """Lower is better."""
            each = self._free[at]
            if each.start == own and self._group(own) == mine:
                return 0, 0
            group = self._group(each.start)
            if group == mine:
                return 1, -len(each)
            if group == self._ahead.get(worker):
                return 2, -1
            return (3, -len(each)) if group in taken else (2, each.start)

        at = min(range(len(self._free)), key=rank)
        chosen = self._free[at]
        others = [batch for each, batch in self._following.items() if each != worker]
        # What another worker would continue with is divided, so that each reads what is in a row.
        follows = chosen.start in others and len(chosen) > 1
        return at, chosen.start + (len(chosen) // 2 if follows else 0)

    def _taken(self, worker: int) -> set[int]:
        """The groups of other workers: of their last batches, and those ahead."""
        ahead = {group for each, group in self._ahead.items() if each != worker}
        return ahead | {
            self._group(batch - 1)
            for each, batch in self._following.items()
            if each != worker and batch > 0
        }

    def _group_ahead(self, worker: int, own: int) -> int | None:
        """The group in which a worker is to continue, once half of its ``own`` is leased."""
        groups = [(each, self._group(each.start)) for each in self._free]
        left = sum(len(each) for each, group in groups if group == own)
        taken = {own, *self._taken(worker)}
        free = [group for _, group in groups if group not in taken]
        if self._ahead.get(worker) not in free:
            self._ahead.pop(worker, None)
            if free and 2 * left < self._begins[own + 1] - self._begins[own]:
                self._ahead[worker] = free[0]
        return self._ahead.get(worker)

    def _parts(self, begin: int, end: int) -> Iterator[Part]:
        """Where the records of batches of one group are."""
        group = self._group(begin)
        if group not in self._windows:
            cut = self.order.cut(self._groups[group], self.epoch, group)
            self._windows[group] = [window.records for window in cut]
        first = self._begins[group] * self._batch_size
        start = begin * self._batch_size - first
        stop = min(end * self._batch_size, self._records) - first
        for place, records in enumerate(self._windows[group]):
            if start < min(records, stop):
                number = number_of(self.epoch, group, place)
                yield Part(number, start, min(records, stop) - start)
            start, stop = max(0, start - records), stop - records


def _joined(ranges: list[range]) -> list[range]:
    """Ranges that do not overlap, in their order, as few as possible."""
    joined: list[range] = []
    for each in sorted(ranges, key=lambda each: each.start):
        if joined and joined[-1].stop == each.start:
            each = range(joined.pop().start, each.stop)
        if each:
            joined.append(each)
    return joined
