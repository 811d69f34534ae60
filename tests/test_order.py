"""The order in which a training reads its records: only planned here, not read."""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Shard
from aerotrain.training.input.order import MIXED, Order, Window

SHARDS = [
    Shard(file=f"shard-{number}", records=records, bytes=42 * records, sha256="")
    for number, records in enumerate((10, 5, 8, 1, 12))
]
RECORDS = sum(shard.records for shard in SHARDS)

#: Bytes of memory and of the disk that give few, or many, windows and groups of the shards.
BOUNDS = [
    {},
    {"window_bytes": 42},
    {"window_bytes": 350, "shard_cache_bytes": 504},
    {"window_bytes": 350, "shard_cache_bytes": 1500},
]


def records_of(windows):
    """Each record of the windows, by its shard and its number."""
    return [
        (piece.shard.file, number)
        for window in windows
        for piece in window.pieces
        for number in range(piece.first, piece.first + piece.count)
    ]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_each_epoch_has_every_record_once(bounds):
    for epoch in range(3):
        windows = list(Order(shards=SHARDS, seed=0, **bounds).epoch(epoch))
        records = Counter(records_of(windows))
        assert set(records.values()) == {1}
        assert len(records) == RECORDS
        assert [window.last for window in windows] == [False] * (len(windows) - 1) + [True]
        assert len({window.seed for window in windows}) == len(windows)
        assert len(windows) == 1 or bounds, "what fits in memory is one window"


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_training_that_starts_in_the_middle_plans_the_remaining_records(bounds):
    order = Order(shards=SHARDS, seed=0, **bounds)
    for epoch in range(2):
        windows = list(order.epoch(epoch))
        for done in range(RECORDS):
            [first, *others] = islice(order.windows(epoch, done), len(windows))
            before = sum(window.records for window in windows[: windows.index(first_of(first))])
            assert before + first.drop == done
            assert not any(each.drop for each in others)


def first_of(window):
    return type(window)(pieces=window.pieces, seed=window.seed, last=window.last)


def test_groups_of_shards_grow_up_to_half_of_the_disk_budget():
    shards = [Shard(file=f"{number}", records=1000, bytes=1000, sha256="") for number in range(70)]
    for disk, epoch, groups in (
        (0, 0, [4, 8, 16, 21, 21]),  # two of equal size instead of MIXED and the rest
        (0, 1, [MIXED, 19, 19]),
        (8000, 0, [*[4] * 16, 3, 3]),
        (1000, 1, [1] * 70),
    ):
        order = Order(shards=shards, seed=0, window_bytes=500, shard_cache_bytes=disk)
        mixed = {
            tuple(sorted({piece.shard.file for piece in window.pieces})): None
            for window in order.epoch(epoch)
        }
        assert [len(group) for group in mixed] == groups


def test_a_budget_below_one_shard_is_refused():
    with pytest.raises(
        FinalError, match=r"shard_cache_bytes is 500, but the shard shard-4 has 504 bytes.*give 504"
    ):
        Order(shards=SHARDS, seed=0, shard_cache_bytes=500)


# --- shuffled

#: The records of a shard, and the bytes of a record.
EACH, BYTES = 1000, 100


def order_of(partitions: int, shards: int, windows: int = 16, **options: int) -> Order:
    """The order of some shards of each partition, which are ``windows`` windows together."""
    held = [
        Shard(
            file=f"train-{partition:05d}-{number:03d}.tfrecord",
            records=EACH,
            bytes=EACH * BYTES,
            sha256="",
        )
        for partition in range(partitions)
        for number in range(shards)
    ]
    size = len(held) * EACH * BYTES
    return Order(shards=held, seed=0, **{"window_bytes": size // windows, **options})


def read(order: Order, window: Window) -> NDArray[np.int64]:
    """The numbers of a window's records, shuffled as a training does it."""
    first = {shard.file: EACH * number for number, shard in enumerate(order.shards)}
    held = [first[each.shard.file] + each.first + np.arange(each.count) for each in window.pieces]
    return np.random.default_rng(window.seed).permutation(np.concatenate(held))


def epoch(order: Order, number: int) -> NDArray[np.int64]:
    return np.concatenate([read(order, window) for window in order.epoch(number)])


@pytest.mark.parametrize(("partitions", "shards"), [(1, 1), (1, 4), (1, 8), (20, 1)])
def test_the_order_of_an_epoch_says_nothing_about_that_of_another(
    partitions: int, shards: int
) -> None:
    order = order_of(partitions, shards)
    epochs = [epoch(order, number) for number in range(3)]
    for each in epochs:
        assert sorted(each.tolist()) == list(range(partitions * shards * EACH))
    places = [np.argsort(each) for each in epochs]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(places[one], places[other])[0, 1]) < 0.15  # it was 0.56 and more


@pytest.mark.parametrize("shards", [1, 2, 5, 20])
def test_sorted_partitions_are_mixed_in_every_batch(shards: int) -> None:
    """Each of 20 partitions has one class; a perfect shuffle has its most frequent one 1.56 times
    too often in a batch of 256."""
    order = order_of(20, shards)
    classes = epoch(order, 1) // (shards * EACH)
    batches = classes[: len(classes) // 256 * 256].reshape(-1, 256)
    excess = [np.bincount(batch, minlength=20).max() / (256 / 20) for batch in batches]
    assert np.mean(excess) < 1.9  # it was 5


def test_windows_have_the_promised_size_and_groups_fit_into_the_shard_cache() -> None:
    order = order_of(20, 2, windows=30, shard_cache_bytes=8 * EACH * BYTES)
    windows = list(order.epoch(1))
    assert max(each.records for each in windows) < 1.1 * order.window_bytes / BYTES
    for before, after in pairwise(windows):
        held = {piece.shard.file for window in (before, after) for piece in window.pieces}
        assert len(held) <= 8
