"""Assignment of records to splits and shards: it depends on the key alone."""

from collections import Counter

import numpy as np
import pytest

from aerotrain.data.hashing import hashes_of, shuffle_keys
from aerotrain.data.prepare.layout import shard_key
from aerotrain.data.prepare.plan import shards_per_partition
from aerotrain.data.prepare.shards import shard_numbers
from aerotrain.data.prepare.splitting import splits_of

KEYS = [f"record-{number}" for number in range(10_000)]
SPLITS = {"train": 0.7, "validation": 0.1, "test": 0.2}


def split_of(key: str, splits: dict[str, float]) -> str:
    return sorted(splits)[splits_of(hashes_of([key]), splits)[0]]


def test_each_split_gets_its_share() -> None:
    counts = Counter(split_of(key, SPLITS) for key in KEYS)
    assert counts["train"] == pytest.approx(7000, rel=0.03)
    assert counts["validation"] == pytest.approx(1000, rel=0.1)
    assert counts["test"] == pytest.approx(2000, rel=0.06)


def test_the_split_of_a_key_never_changes() -> None:
    # Changing these would move records that a model was trained on into its test split.
    splits = [split_of(f"digit-{number:04d}", SPLITS) for number in range(8)]
    assert splits == ["test", "train", "train", "train", "train", "train", "train", "train"]


def test_the_order_in_which_splits_are_written_down_does_not_matter() -> None:
    backwards = dict(reversed(SPLITS.items()))
    assert all(split_of(key, SPLITS) == split_of(key, backwards) for key in KEYS)


def test_shares_that_add_up_to_a_little_less_than_one_still_hold_every_key() -> None:
    thirds = {"a": 0.333333, "b": 0.333333, "c": 0.333333}
    assert {split_of(key, thirds) for key in KEYS} == {"a", "b", "c"}


def test_the_records_of_a_split_are_spread_over_all_shards() -> None:
    test = hashes_of([key for key in KEYS if split_of(key, SPLITS) == "test"])
    eighths = np.bincount((shuffle_keys(test, 0) >> np.uint64(61)).astype(int))
    assert len(eighths) == 8
    assert eighths.min() > 0.7 * eighths.max()


def test_another_seed_gives_another_order() -> None:
    hashes = hashes_of(KEYS)
    orders = [np.argsort(shuffle_keys(hashes, seed)) for seed in (0, 1)]
    assert abs(np.corrcoef(*orders)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("lengths", "least", "shard_bytes", "sizes"),
    [
        ([10] * 6, 1, 1000, [60]),
        ([10] * 6, 4, 1000, [20, 10, 20, 10]),
        ([10] * 2, 4, 1000, [10, 10]),
        ([10] * 6, 2, 15, [20, 10, 20, 10]),
        ([90, 5, 5, 5, 5], 2, 50, [90, 20]),
        ([1, 900, 1], 3, 50, [1, 900, 1]),
        ([], 4, 50, []),
    ],
)
def test_shards_are_of_about_equal_size_and_none_is_empty(
    lengths: list[int], least: int, shard_bytes: int, sizes: list[int]
) -> None:
    array = np.array(lengths, np.int64)
    numbers = shard_numbers(array, least, shard_bytes)
    assert [int(array[numbers == each].sum()) for each in np.unique(numbers)] == sizes


@pytest.mark.parametrize(
    ("shards", "parts", "each"), [(4, 4, 1), (4, 3, 2), (1, 4, 1), (5, 1, 5), (9, 4, 3)]
)
def test_the_partitions_write_at_least_the_requested_shards(
    shards: int, parts: int, each: int
) -> None:
    assert shards_per_partition(shards, parts) == each
    assert each * parts >= shards


def test_a_shard_is_named_after_its_split_partition_and_number() -> None:
    assert shard_key("train", 3, 1) == "train-00003-001.tfrecord"
