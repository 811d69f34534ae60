"""Which split and shard a record goes into: its key alone decides."""

from collections import Counter

import pytest

from aerotrain.prepare.assignment import shard_name, shard_of, shards_per_part, split_of

KEYS = [f"record-{number}" for number in range(10_000)]
SPLITS = {"train": 0.7, "validation": 0.1, "test": 0.2}


def test_each_split_gets_its_share() -> None:
    counts = Counter(split_of(key, SPLITS) for key in KEYS)
    assert counts["train"] == pytest.approx(7000, rel=0.03)
    assert counts["validation"] == pytest.approx(1000, rel=0.1)
    assert counts["test"] == pytest.approx(2000, rel=0.06)


def test_a_key_stays_in_its_split_for_ever() -> None:
    # A change of these would put records that a model was trained on into its test split.
    splits = [split_of(f"digit-{number:04d}", SPLITS) for number in range(8)]
    assert splits == ["test", "train", "train", "train", "train", "train", "train", "train"]


def test_the_order_in_which_splits_are_written_down_does_not_matter() -> None:
    backwards = dict(reversed(SPLITS.items()))
    assert all(split_of(key, SPLITS) == split_of(key, backwards) for key in KEYS)


def test_shares_that_add_up_to_a_little_less_than_one_still_hold_every_key() -> None:
    thirds = {"a": 0.333333, "b": 0.333333, "c": 0.333333}
    assert {split_of(key, thirds) for key in KEYS} == {"a", "b", "c"}


def test_the_records_of_a_split_are_spread_over_all_shards() -> None:
    shards = Counter(shard_of(key, 8) for key in KEYS if split_of(key, SPLITS) == "test")
    assert set(shards) == set(range(8))
    assert min(shards.values()) > 0.7 * max(shards.values())


@pytest.mark.parametrize(
    ("shards", "parts", "each"), [(4, 4, 1), (4, 3, 2), (1, 4, 1), (5, 1, 5), (9, 4, 3)]
)
def test_the_parts_write_the_shards_that_were_asked_for_or_more(
    shards: int, parts: int, each: int
) -> None:
    assert shards_per_part(shards, parts) == each
    assert each * parts >= shards


def test_shards_are_numbered_through_all_parts() -> None:
    names = [shard_name("train", part, 2, shard, 2) for part in range(2) for shard in range(2)]
    assert names == [f"train-{number:05d}-of-00004.tfrecord" for number in range(4)]
