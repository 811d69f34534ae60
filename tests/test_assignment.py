"""Assignment of records to splits and shards: it depends on the key alone."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from aerotrain.data.hashing import hashes_of, shuffle_keys
from aerotrain.data.prepare import shuffle
from aerotrain.data.prepare.shuffle import ATTRIBUTES
from aerotrain.data.prepare.splitting import Stratifier, splits_of

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


def test_records_are_sorted_by_their_shuffle_keys_in_buckets_of_a_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one record occurs so often that its bucket is too large, and cannot be divided."""
    generator = np.random.default_rng(0)
    hashes = hashes_of(KEYS)
    hashes[generator.random(len(KEYS)) < 0.7] = hashes[0]
    orders = []
    for limit in (2**30, 10_000):
        monkeypatch.setattr(shuffle, "BUCKET_BYTES", limit)
        (tmp_path / str(limit)).mkdir()
        records = shuffle.ExternalShuffle(tmp_path / str(limit), seed=0)
        for rows in np.array_split(np.arange(len(KEYS)), 30):
            attributes = np.zeros(len(rows), ATTRIBUTES)
            attributes["hash"] = hashes[rows]
            attributes["label"] = rows
            attributes["length"] = [len(KEYS[row]) for row in rows]
            records.add(
                pa.array([KEYS[row].encode() for row in rows], pa.large_binary()), attributes
            )
        records.finish()
        assert records.records == len(KEYS)
        parts = list(records.sorted())
        assert not list((tmp_path / str(limit)).iterdir())
        if limit == 10_000:
            assert max(frames.nbytes for frames, _ in parts) < 2 * limit
        order = np.concatenate([attributes["label"] for _, attributes in parts])
        assert [text for frames, _ in parts for text in frames.to_pylist()] == [
            KEYS[row].encode() for row in order
        ]
        orders.append(order.tolist())
    assert orders[0] == orders[1] == np.argsort(shuffle_keys(hashes, 0), kind="stable").tolist()


def test_a_stratified_split_is_exact_for_each_class_in_parts_of_any_size() -> None:
    hashes = hashes_of(KEYS)
    hashes[:100] = hashes[0]  # equal records stay together
    order = np.argsort(shuffle_keys(hashes, 0), kind="stable")
    strata = np.array(
        [0 if number < 9000 else number % 7 for number in range(len(KEYS))], np.uint64
    )
    found = []
    for parts in (1, 13):
        stratifier = Stratifier(Counter(strata.tolist()), SPLITS)
        splits = np.empty(len(KEYS), np.int8)
        for rows in np.array_split(order, parts):
            splits[rows] = stratifier.splits_of(strata[rows], hashes[rows])
        found.append(splits.tolist())
    assert found[0] == found[1]
    assert len(set(found[0][:100])) == 1
    for stratum, count in Counter(strata.tolist()).items():
        of_class = Counter(np.array(found[0])[strata == stratum].tolist())
        for number, name in enumerate(sorted(SPLITS)):
            most = 101 if stratum == 0 else 1
            assert abs(of_class[number] - SPLITS[name] * count) <= most, (stratum, name)
