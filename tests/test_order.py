"""The order in which a training reads its records: only planned here, not read."""

from collections import Counter
from itertools import islice

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Shard
from aerotrain.training.input.order import MIXED, Order

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


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_a_record_is_found_in_the_window_that_contains_it(bounds):
    order = Order(shards=SHARDS, seed=0, **bounds)
    numbers = [
        number
        for number, window in enumerate(islice(order.windows(), 100))
        for _ in range(window.records)
    ]
    for record in range(2 * RECORDS):
        assert order.window_of(record) == numbers[record]


def first_of(window):
    return type(window)(pieces=window.pieces, seed=window.seed, last=window.last)


def test_no_two_windows_are_shuffled_alike():
    order = Order(shards=SHARDS, seed=0, window_bytes=100)
    seeds = [window.seed for window in islice(order.windows(), 100)]
    assert len(set(seeds)) == 100


def test_records_that_fit_in_memory_are_one_window():
    [window] = Order(shards=SHARDS, seed=0, window_bytes=42 * RECORDS).epoch(0)
    assert window.records == RECORDS


def test_groups_of_shards_grow_up_to_half_of_the_disk_budget():
    shards = [Shard(file=f"{number}", records=10, bytes=1000, sha256="") for number in range(31)]
    for disk, groups in (
        (0, [1, 2, 4, MIXED, MIXED, MIXED]),
        (8000, [1, 2, *[4] * 7]),
        (1000, [1] * 31),
    ):
        windows = Order(shards=shards, seed=0, window_bytes=500, shard_cache_bytes=disk).epoch(0)
        mixed = {tuple(piece.shard.file for piece in window.pieces): 1 for window in windows}
        assert [len(group) for group in mixed] == groups


def test_a_budget_below_one_shard_is_refused():
    with pytest.raises(
        FinalError, match=r"shard_cache_bytes is 500, but the shard shard-4 has 504 bytes.*give 504"
    ):
        Order(shards=SHARDS, seed=0, shard_cache_bytes=500)
