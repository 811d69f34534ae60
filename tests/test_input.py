"""From shards to batches: every record once, in an order that can be had again."""

from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Feature
from aerotrain.records import encode, framed, stacked
from aerotrain.training.code import features_and_label
from aerotrain.training.input import (
    SHUFFLE_BYTES,
    epochs,
    every_record,
    own_shards,
    parse,
    ready,
    shuffle_buffer,
)
from aerotrain.training.shards import LIST, download, share

pytestmark = pytest.mark.process

SCHEMA = {"number": Feature("int64")}


def number(features):
    return features["number"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three shards with the numbers from 0 to 22."""
    written = []
    for shard, numbers in enumerate((range(10), range(10, 15), range(15, 23))):
        records = encode(stacked([{"number": np.int64(each)} for each in numbers], SCHEMA))
        written.append(tmp_path / f"shard-{shard}")
        written[-1].write_bytes(framed(records).content)
    return written


def epochs_of(files, count, **options):
    """The batches of ``count`` epochs of 6 steps, as lists."""
    settings = {"batch_size": 4, "buffer": 23, "seed": 0, **options}
    dataset = ready(epochs(files, **settings), SCHEMA, number)
    return [batch.numpy().tolist() for batch in islice(dataset, 6 * count)]


def flat(batches):
    return list(chain.from_iterable(batches))


def test_each_epoch_has_every_record_once_in_an_order_of_its_own(files):
    batches = epochs_of(files, 3)
    orders = [flat(batches[6 * epoch : 6 * epoch + 6]) for epoch in range(3)]
    assert [sorted(order) for order in orders] == [list(range(23))] * 3
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3] * 3


def test_the_order_is_the_seed_s(files):
    assert epochs_of(files, 2, seed=7) == epochs_of(files, 2, seed=7)
    assert epochs_of(files, 2, seed=7) != epochs_of(files, 2, seed=8)


def test_what_begins_in_the_middle_goes_on_with_the_same_batches(files):
    assert epochs_of(files, 1, start=(1, 4)) == epochs_of(files, 3)[10:16]


def test_a_small_buffer_still_gives_every_record(files):
    assert sorted(flat(epochs_of(files, 1, buffer=3))) == list(range(23))


def test_for_evaluation_every_record_comes_once_in_its_order(files):
    batches = every_record(files, SCHEMA, number, records=23, batch_size=10)
    assert [len(batch) for batch in batches] == [10, 10, 3]
    assert np.concatenate(list(batches)).tolist() == list(range(23))


def test_a_worker_reads_the_shards_its_list_names_for_ever_in_full_batches(
    files, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path(LIST).write_text("shard-0\nshard-2\n")
    dataset = ready(own_shards(batch_size=6, buffer=18, seed=0), SCHEMA, number)
    batches = [batch.numpy().tolist() for batch in islice(dataset, 6)]
    assert {len(batch) for batch in batches} == {6}
    own = sorted([*range(10), *range(15, 23)])
    assert sorted(flat(batches[:3])) == sorted(flat(batches[3:])) == own


@pytest.mark.parametrize(
    ("value", "feature"),
    [
        (np.arange(6, dtype=np.uint8).reshape(2, 3), Feature("uint8", (2, 3))),
        (np.uint8(200), Feature("uint8")),
        (np.array([-1.5, 2.0], np.float32), Feature("float32", (2,))),
        (np.int64(-(2**40)), Feature("int64")),
        (np.array([[1], [-2]], np.int16), Feature("int16", (2, 1))),
        (np.array([True, False]), Feature("bool", (2,))),
        (b"\x00\xffends with zero\x00", Feature("string")),
    ],
    ids=lambda value: str(value) if isinstance(value, Feature) else "",
)
def test_a_feature_comes_back_as_it_was_prepared(value, feature):
    schema = {"feature": feature}
    [restored] = parse(encode(stacked([{"feature": value}], schema)).to_pylist(), schema)["feature"]
    assert restored.dtype.name == feature.dtype
    assert restored.shape == feature.shape
    assert np.array_equal(restored.numpy(), value)


@pytest.mark.parametrize(
    ("records", "size", "held"),
    [
        (1000, 1000, 1000),
        (1000, SHUFFLE_BYTES, 1000),
        (1000, 10 * SHUFFLE_BYTES, 100),
        (3, 1000 * SHUFFLE_BYTES, 1),
    ],
)
def test_no_more_is_held_to_be_shuffled_than_memory_allows(records, size, held):
    assert shuffle_buffer(records, size) == held


def test_without_a_transform_the_feature_label_is_learnt():
    assert features_and_label({"image": 1, "label": 2}) == (1, 2)
    assert features_and_label({"a": 1, "b": 2, "label": 3}) == ({"a": 1, "b": 2}, 3)
    with pytest.raises(FinalError, match="no feature is called 'label' among image; write a"):
        features_and_label({"image": 1})


def test_readers_share_the_shards_and_each_shard_has_one_reader():
    shards = ["a", "b", "c", "d", "e"]
    assert [share(shards, index, 2) for index in range(2)] == [["a", "c", "e"], ["b", "d"]]
    with pytest.raises(FinalError, match="5 shards cannot be shared by 6 workers"):
        share(shards, 0, 6)


def test_a_shard_is_downloaded_once_and_again_when_it_was_damaged(digits, tmp_path):
    from aerotrain.dataset import load_dataset

    shards = load_dataset(digits.data).splits["test"].shards[:1]
    [path] = download(digits.data, shards, tmp_path)
    first = path.stat().st_mtime_ns
    download(digits.data, shards, tmp_path)
    assert path.stat().st_mtime_ns == first
    path.write_bytes(b"damaged")
    download(digits.data, shards, tmp_path)
    assert path.stat().st_size == shards[0].bytes
