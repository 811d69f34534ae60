"""Batches that the chief leases to workers: each record once an epoch, whoever reads it."""

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature, Shard
from aerotrain.data.records.columns import stacked
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import framed
from aerotrain.training.input.batches import (
    MicrobatchSpec,
    layout_of,
    mapped,
    ready,
    transformed,
    untuned,
)
from aerotrain.training.input.leases import Lease, LeaseBook
from aerotrain.training.input.order import Order
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shuffle_windows import (
    PART,
    batches_of,
    leased_windows,
    leases_of,
    next_of,
    rows_of,
    send_lease,
    skip,
)


def shards_of(*sizes: int) -> tuple[Shard, ...]:
    return tuple(
        Shard(file=f"train-{number:05d}", records=size, bytes=42 * size, sha256="")
        for number, size in enumerate(sizes)
    )


#: Splits of one window, of some and of many groups, with shards smaller than a batch, and limits.
ORDERS = {
    "one window": {"sizes": (10, 5, 8, 1, 12), "batch_size": 4},
    "small shards": {"sizes": (3, 1, 2, 1, 1, 4) * 9, "batch_size": 7, "window_bytes": 420},
    "groups": {"sizes": (100,) * 30 + (7,), "batch_size": 16, "window_bytes": 4200},
    "limited": {
        "sizes": (100, 60, 31) * 6,
        "batch_size": 8,
        "window_bytes": 2000,
        "shard_cache_bytes": 10_000,
    },
    "one record": {"sizes": (9, 4, 20), "batch_size": 1, "window_bytes": 100},
    "a batch of all": {"sizes": (9, 4), "batch_size": 13, "window_bytes": 100},
}


#: The position of a book at the begin of a training.
BEGIN = {"epoch": 0}


def order_of(sizes: tuple[int, ...], **options: int) -> Order:
    return Order(shards=shards_of(*sizes), seed=3, **options)


@pytest.fixture(params=ORDERS, name="order")
def any_order(request: pytest.FixtureRequest) -> Order:
    return order_of(**ORDERS[request.param])


@cache
def keys_of(order: Order, window: int) -> list[tuple[str, int]]:
    """The records of a window, shuffled in some way that its seed determines."""
    found = {each.seed[1]: each for each in order.group(window)}[window]
    records = [
        (piece.shard.file, number)
        for piece in found.pieces
        for number in range(piece.first, piece.first + piece.count)
    ]
    random.Random(window).shuffle(records)
    return records


def read(order: Order, lease: Lease) -> list[list[tuple[str, int]]]:
    """The batches of a lease."""
    size = order.batch_size
    assert size is not None
    records = [
        key
        for part in lease.parts
        for key in keys_of(order, part.window)[part.drop : part.drop + part.records]
    ]
    batches = [records[at : at + size] for at in range(0, len(records), size)]
    assert len(batches) == lease.batches
    return batches


def epoch_alone(order: Order, epoch: int, **options: bool) -> dict[int, list[tuple[str, int]]]:
    """The batches of an epoch by their number, as a single worker reads them."""
    book, batches = LeaseBook(order, {"epoch": epoch}, **options), {}
    while lease := book.take(0, 1000):
        batches |= dict(enumerate(read(order, lease), lease.begin))
        book.finish(lease)
    assert list(batches) == list(range(len(batches)))
    return batches


@pytest.mark.parametrize("epoch", range(3))
def test_no_batch_crosses_a_group_and_only_the_last_is_smaller(order: Order, epoch: int) -> None:
    records = Counter(
        (piece.shard.file, number)
        for group in order.groups(epoch)
        for piece in group
        for number in range(piece.first, piece.first + piece.count)
    )
    total = sum(shard.records for shard in order.shards)
    assert set(records.values()) == {1}
    assert records.total() == total
    sizes = [len(batch) for batch in epoch_alone(order, epoch).values()]
    assert sizes[:-1] == [order.batch_size] * (len(sizes) - 1)
    assert sum(sizes) == total
    dropped = epoch_alone(order, epoch, drop_remainder=True)
    assert len(dropped) == total // order.batch_size
    assert all(len(batch) == order.batch_size for batch in dropped.values())


def test_the_shards_of_a_group_fit_into_the_shard_cache() -> None:
    order = order_of(**ORDERS["limited"])
    for group in chain.from_iterable(order.groups(epoch) for epoch in range(5)):
        assert sum(piece.shard.bytes for piece in group) <= order.shard_cache_bytes
    with pytest.raises(FinalError, match="a batch of 8 records may need 8736; give 8736 "):
        order_of(**{**ORDERS["limited"], "shard_cache_bytes": 8735})


def test_a_split_of_one_window_is_one_group_in_the_order_of_one_device() -> None:
    order = order_of(**ORDERS["one window"])
    whole = Order(shards=order.shards, seed=order.seed)
    for epoch in range(3):
        [window] = whole.epoch(epoch)
        [leased] = order.group(epoch << 32)
        assert (leased.pieces, leased.seed) == (window.pieces, window.seed)


@pytest.mark.parametrize("seed", range(10))
def test_each_batch_of_each_epoch_is_done_once_whatever_happens(order: Order, seed: int) -> None:
    """Workers join, leave, fail in the middle of a lease, and the chief restarts."""
    chance = random.Random(seed)
    book, out, workers, done = LeaseBook(order, BEGIN), [], {0, 1}, []
    for epoch in range(3):
        expected = epoch_alone(order, epoch)
        batches: dict[int, list[tuple[str, int]]] = {}
        while not book.has_ended:
            event = chance.random()
            if event < 0.5:
                lease = book.take(chance.choice([*workers]), chance.randint(1, 9))
                if lease is not None:
                    assert lease.epoch == epoch
                    out.append(lease)
            elif event < 0.8 and out:
                lease = out.pop(chance.randrange(len(out)))
                kept = lease.batches
                if chance.random() < 0.4:
                    kept = chance.randint(0, lease.batches)
                    book.give_back(lease, kept)
                else:
                    book.finish(lease)
                for number, batch in list(enumerate(read(order, lease), lease.begin))[:kept]:
                    assert number not in batches
                    batches[number] = batch
            elif event < 0.85:
                workers.add(chance.randrange(5))
            elif event < 0.9 and len(workers) > 1:
                worker = workers.pop()
                for lease in [each for each in out if each.worker == worker]:
                    book.give_back(lease, 0)
                    out.remove(lease)
                book.leave(worker)
            elif event < 0.92:  # what is leased is not done
                saved = json.loads(json.dumps(book.to_dict()))
                book, out = LeaseBook(order, saved), []
                assert book.to_dict() == saved
        assert batches == expected
        done += [key for batch in batches.values() for key in batch]
        book.next_epoch()
    assert set(Counter(done).values()) == {3}


def test_a_lease_is_of_what_is_left() -> None:
    order = order_of(**ORDERS["one window"])  # 9 steps per epoch
    book = LeaseBook(order, {"epoch": 1, "left": [[7, 9]]})
    lease = book.take(0, 1)
    assert lease is not None
    assert (lease.epoch, lease.begin, lease.end) == (1, 7, 8)
    assert book.to_dict() == {"epoch": 1, "left": [[7, 9]]}


def speeds(order: Order, *pace: int, most: int = 4) -> tuple[dict[int, list[Lease]], float]:
    """The leases of an epoch of workers that do that many batches in a second, and its seconds."""
    book, now = LeaseBook(order, {"epoch": 1}), 0.0
    leases: dict[int, list[Lease]] = {worker: [] for worker in range(len(pace))}
    busy: dict[int, tuple[float, Lease]] = {}
    while not book.has_ended:
        for worker in leases:
            if worker not in busy and (lease := book.take(worker, most)):
                busy[worker] = (now + lease.batches / pace[worker], lease)
                leases[worker].append(lease)
        worker = min(busy, key=lambda each: busy[each][0])
        now, lease = busy.pop(worker)
        book.finish(lease)
    return leases, now


def test_a_fast_worker_takes_more_and_a_slow_one_does_not_hold_an_epoch_up() -> None:
    order = order_of(**ORDERS["groups"])
    leases, seconds = speeds(order, 5, 5, 1)
    steps = {worker: sum(each.batches for each in own) for worker, own in leases.items()}
    total = sum(steps.values())
    assert steps[2] < total / 8
    assert seconds < 1.1 * total / 11 + 1


def test_a_worker_downloads_few_groups_and_reads_what_is_in_a_row() -> None:
    order = order_of((100,) * 64, batch_size=16, window_bytes=4200)
    groups = order.groups(1)
    assert max(map(len, groups)) <= 9
    leases, _ = speeds(order, 1, 1, 1, 1)
    for own in leases.values():
        read_in = {part.window >> 16 for lease in own for part in lease.parts}
        assert len(read_in) <= len(groups) / 4 + 2, "its share, and where it helped in the end"
        in_a_row = sum(one.end == other.begin for one, other in pairwise(own))
        assert in_a_row > 0.7 * len(own)


def test_a_worker_that_helps_begins_in_the_middle_of_what_another_has_left() -> None:
    book = LeaseBook(order_of(sizes=(130,), batch_size=13), BEGIN)
    taken = [book.take(worker, 1) for worker in (0, 1, 0, 1)]
    assert [each.begin for each in taken if each] == [0, 5, 1, 6]


# --- read from shards

SCHEMA = {"key": Feature("int64")}


def written(folder: Path, sizes: list[int], first: int) -> list[Shard]:
    """Shards with the keys from ``first`` on; those below 128 are all of the same length."""
    folder.mkdir()
    shards = []
    for index, size in enumerate(sizes):
        records = [{"key": np.int64(first + sum(sizes[:index]) + each)} for each in range(size)]
        content = bytes(framed(encode(stacked(records, SCHEMA))).content)
        (folder / f"shard-{index}").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        shards.append(Shard(file=f"shard-{index}", records=size, bytes=len(content), sha256=digest))
    return shards


def size_of(file: Path) -> int:
    """The bytes of a shard that may be removed meanwhile; an index is none."""
    try:
        return file.stat().st_size if file.suffix == "" else 0
    except FileNotFoundError:
        return 0


class Reader:
    """A worker in this process: its shard cache, its queue, and the batches of its leases."""

    def __init__(self, store: Path, order: Order, scratch: Path, pieces: int = 1) -> None:
        rows = layout_of(SCHEMA, order.shards)
        self.shards, self._pieces = scratch / "shards", pieces
        self._cache = ShardCache(store.as_uri(), order, scratch, indexed=rows is None)
        self._cache.start()
        assert order.batch_size is not None
        width, queue = rows.width if rows else None, str(scratch)
        windows = leased_windows(f"{scratch}/", width, leases_of(queue))
        batches = batches_of(windows, order.batch_size)
        if pieces == 1:
            made = ready(batches, SCHEMA, lambda features: features["key"])
        else:
            cut = MicrobatchSpec(accumulate=pieces)
            pieces_of = transformed(SCHEMA, lambda features: features["key"], cut)
            made = mapped(batches, pieces_of, cut)
        self._batches = iter(untuned(made))
        self._next = tf.function(lambda number: next_of(self._batches, number), autograph=False)
        self._skip = tf.function(lambda count: skip(self._batches, count), autograph=False)
        self._unread: dict[int, int] = {}
        self._send = tf.function(
            lambda rows: send_lease(queue, rows),
            input_signature=[tf.TensorSpec([None, PART], tf.int64)],
            autograph=False,
        )

    def send(self, lease: Lease) -> None:
        self._send(tf.constant(lease.rows(), tf.int64))
        self._unread[lease.number] = lease.batches

    def read(self, lease: Lease, count: int) -> list[list[int]]:
        """The next ``count`` batches of a lease that was sent, after those before it."""
        before = [number for number in self._unread if number < lease.number]
        self._skip(tf.constant(sum(self._unread.pop(number) for number in before)))
        self._unread[lease.number] -= count
        batches = [self._next(tf.constant(lease.number, tf.int64)) for _ in range(count)]
        if self._pieces == 1:
            return [batch.numpy().tolist() for batch in batches]
        return [
            [int(key) for weight, keys in batch if weight for key in keys.numpy()]
            for batch in batches
        ]

    def files(self) -> set[str]:
        """The shards that are on the disk, without their indexes."""
        return {file.name for file in self.shards.glob("shard-*") if not file.suffix}

    def stop(self) -> None:
        del self._batches, self._next, self._skip
        self._cache.stop()


@contextmanager
def readers(store: Path, order: Order, count: int, **options: Any) -> Iterator[list[Reader]]:
    scratches = [store.parent / f"worker-{number}" for number in range(count)]
    each = [Reader(store, order, scratch, **options) for scratch in scratches]
    try:
        yield each
    finally:
        for reader in each:
            reader.stop()


@pytest.mark.process
@pytest.mark.parametrize(
    ("first", "pieces"), [(0, 1), (100, 1), (0, 3)], ids=["rows", "strings", "microbatches"]
)
def test_workers_read_each_key_once_an_epoch_over_leases_that_end_and_are_given_back(
    tmp_path: Path, first: int, pieces: int
) -> None:
    store = tmp_path / "store"
    shards = written(store, [12, 9, 14, 3, 12, 15, 7, 13, 8, 11, 13], first)
    order = Order(
        shards=shards,
        seed=1,
        batch_size=6,
        window_bytes=10 * shards[0].bytes // 12,
        shard_cache_bytes=4 * max(shard.bytes for shard in shards),
    )
    book, chance = LeaseBook(order, BEGIN), random.Random(0)
    keys: Counter[int] = Counter()
    with readers(store, order, 2, pieces=pieces) as workers:
        for _ in range(2):
            sizes = []
            ahead: list[Lease | None] = [None, None]
            while not book.has_ended:
                number = chance.randrange(2)
                worker, lease = workers[number], ahead[number]
                if lease is None and (lease := book.take(number, 5)):
                    worker.send(lease)
                # The next one is read ahead, while this one runs.
                ahead[number] = book.take(number, 5)
                if following := ahead[number]:
                    worker.send(following)
                if lease is None:
                    continue
                done = lease.batches if chance.random() < 0.7 else chance.randrange(lease.batches)
                batches = worker.read(lease, done)
                book.give_back(lease, done)
                keys.update(chain.from_iterable(batches))
                sizes += [len(batch) for batch in batches]
                assert sum(map(size_of, worker.shards.iterdir())) <= order.shard_cache_bytes
            assert sorted(sizes) == sorted([6] * (117 // 6) + [117 % 6])
            book.next_epoch()
    assert keys == Counter(dict.fromkeys(range(first, first + 117), 2))


@pytest.mark.process
def test_data_workers_are_asked_for_each_batch_of_a_lease_by_the_windows_that_it_is_in() -> None:
    book = LeaseBook(order_of(**ORDERS["groups"]), BEGIN)
    leases = [each for size in (3, 1, 5) if (each := book.take(0, size))]
    batch_size = book.order.batch_size
    assert batch_size is not None
    rows = [row for lease in leases for row in lease.rows_of_batches(batch_size)]
    send_lease("rows", tf.zeros([0, PART], tf.int64))
    send_lease("rows", tf.constant(rows, tf.int64))
    found = [(int(number), rows.numpy().tolist()) for number, rows in rows_of("rows").take(9)]
    assert [number for number, _ in found] == [1, 1, 1, 2, 3, 3, 3, 3, 3]
    for lease in leases:
        records = [
            (window, drop + each)
            for number, batch in found
            if number == lease.number
            for window, drop, count in batch
            for each in range(count)
        ]
        expected = [
            (part.window, part.drop + each) for part in lease.parts for each in range(part.records)
        ]
        assert records == expected


@pytest.mark.process
def test_a_worker_downloads_only_groups_in_which_it_reads_and_the_next_one_ahead(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    order = Order(shards=written(store, [10] * 40, 0), seed=1, batch_size=8, window_bytes=200)
    files = [{piece.shard.file for piece in group} for group in order.groups(0)]
    assert len(files) == 6
    book = LeaseBook(order, BEGIN)
    groups: list[list[int | None]] = [[], []]

    def read(number: int) -> None:
        if lease := book.take(number, 1):
            workers[number].send(lease)
            assert len(workers[number].read(lease, 1)) == 1
            book.finish(lease)
            for window in (lease.parts[0].window, lease.ahead):
                if window is not None and (group := window >> 16) not in groups[number]:
                    groups[number].append(group)

    with readers(store, order, 2) as workers:
        for _ in range(4):  # more than half of the first group, and less of the second
            read(0)
            read(1)
        assert groups == [[0, 2], [1]]
        for number, expected in ((0, files[0] | files[2]), (1, files[1])):
            while (found := workers[number].files()) < expected:
                time.sleep(0.01)
            assert found == expected
        while not book.has_ended:
            read(0)
            read(1)
        for number, worker in enumerate(workers):
            assert worker.files() <= set.union(*(files[group] for group in groups[number]))
            assert len(groups[number]) <= 4
