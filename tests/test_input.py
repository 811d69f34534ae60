"""From shards to batches: every record once, in an order that can be repeated."""

import hashlib
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature, Shard
from aerotrain.data.records.columns import stacked
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import framed
from aerotrain.store import CorruptError
from aerotrain.training.input.batches import (
    RecordFiles,
    RowLayout,
    every_record,
    layout_of,
    parse,
    ready,
    streamed,
)
from aerotrain.training.input.order import Order
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shards import ON_DISK, download, write_index
from aerotrain.training.input.shuffle_windows import batches_of, windows_from
from aerotrain.training.model.code import features_and_label
from support.store_fixtures import no_room

pytestmark = pytest.mark.process

SCHEMA = {"number": Feature("int64")}


def number(features):
    return features["number"]


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    """Three shards with the numbers from 0 to 22, in the folder ``store``."""
    return written(tmp_path / "store", [range(10), range(10, 15), range(15, 23)])


def written(folder: Path, numbers, schema=SCHEMA, **features) -> list[Shard]:
    """Shards of records that have a number, and the other ``features``."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for index, each in enumerate(numbers):
        records = [{"number": np.int64(number), **features} for number in each]
        content = bytes(framed(encode(stacked(records, schema))).content)
        (folder / f"shard-{index}").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        shards.append(
            Shard(file=f"shard-{index}", records=len(records), bytes=len(content), sha256=digest)
        )
    return shards


@contextmanager
def batches_from(
    tmp_path, shards, *, schema=SCHEMA, batch_size=4, begin=(0, 0), drop=False, **order
):
    """Endless batches of the numbers in the shards of the folder ``store``, as lists."""
    rows = layout_of(schema, shards)
    scratch = tmp_path / "scratch"
    supply = ShardCache(
        (tmp_path / "store").as_uri(),
        Order(shards=shards, **{"seed": 0, **order}),
        scratch,
        indexed=rows is None,
        begin=begin,
    )
    supply.start()
    windows = windows_from(f"{scratch}/", rows.width if rows else None)
    try:
        dataset = ready(batches_of(windows, batch_size, drop_remainder=drop), schema, number)
        yield (batch.numpy().tolist() for batch in dataset)
    finally:
        supply.stop()


def epochs_of(tmp_path, shards, count, **options):
    """The batches of ``count`` epochs of 6 steps, as lists."""
    with batches_from(tmp_path, shards, **options) as batches:
        return list(islice(batches, 6 * count))


def flat(batches):
    return list(chain.from_iterable(batches))


def test_each_epoch_has_every_record_once_in_another_order_by_the_seed(tmp_path, shards):
    batches = epochs_of(tmp_path, shards, 3)
    orders = [flat(batches[6 * epoch : 6 * epoch + 6]) for epoch in range(3)]
    assert [sorted(order) for order in orders] == [list(range(23))] * 3
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert epochs_of(tmp_path, shards, 1) == batches[:6] != epochs_of(tmp_path, shards, 1, seed=8)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3] * 3


@pytest.mark.parametrize("window_bytes", [350, 2**20])
def test_a_remainder_that_is_dropped_ends_its_epoch(tmp_path, shards, window_bytes):
    with batches_from(tmp_path, shards, drop=True, window_bytes=window_bytes) as batches:
        epochs = [flat(islice(batches, 5)) for _ in range(3)]
    assert all(len(set(epoch)) == 20 for epoch in epochs)


def test_a_pipeline_that_starts_in_the_middle_continues_with_the_same_batches(tmp_path, shards):
    bounds = {
        "window_bytes": 350,
        "shard_cache_bytes": 900,
    }  # some windows; batches cross their borders
    whole = epochs_of(tmp_path, shards, 2, **bounds)
    assert [sorted(flat(each)) for each in (whole[:6], whole[6:])] == [list(range(23))] * 2
    for step in (1, 4, 9):
        begin = (step // 6, step % 6 * 4)
        again = epochs_of(tmp_path, shards, 1, begin=begin, **bounds)
        assert again[: 12 - step] == whole[step : step + 6]


def test_records_of_different_lengths_are_read_alike(tmp_path):
    schema = {**SCHEMA, "text": Feature("string")}
    numbers = [range(0, 3000, 300), range(10, 15)]
    shards = written(tmp_path / "store", numbers, schema, text=b"any")
    assert layout_of(schema, shards) is None
    with batches_from(tmp_path, shards, schema=schema, window_bytes=200) as batches:
        assert sorted(flat(islice(batches, 4))) == sorted(chain(*numbers))


@pytest.mark.parametrize("bytes_each", [1, 300_000, 1_100_000])  # many at once, some, or one
def test_for_evaluation_every_record_is_read_once_in_file_order(tmp_path, bytes_each):
    schema = {**SCHEMA, "pixels": Feature("uint8", (bytes_each,))}
    numbers = [range(10), range(10, 15), range(15, 23)]
    pixels = np.zeros(bytes_each, np.uint8)
    shards = written(tmp_path / "store", numbers, schema, pixels=pixels)
    assert layout_of(schema, shards) is not None
    files = [tmp_path / "store" / shard.file for shard in shards]
    batches = every_record(RecordFiles.of(files), schema, number, records=23, batch_size=10)
    assert len(batches) == 3
    assert [len(batch) for batch in batches] == [10, 10, 3]
    assert np.concatenate(list(batches)).tolist() == list(range(23))
    assert not batches.options().autotune.enabled, "a tuned iterator may end a minute later"


@pytest.mark.parametrize("upper", [100, 1000])  # numbers of one byte are of one layout
def test_shards_that_are_read_once_are_removed_once_they_were_read(tmp_path, upper):
    numbers = [range(begin, upper, 20) for begin in range(20)]
    shards, scratch = written(tmp_path / "store", numbers), tmp_path / "scratch"
    scratch.mkdir()
    assert (layout_of(SCHEMA, shards) is None) == (upper > 128)
    held, found = [], []
    with streamed((tmp_path / "store").as_uri(), shards, scratch) as files:
        batches = every_record(files, SCHEMA, number, records=upper, batch_size=3)
        for batch in chain(batches, batches):
            held.append(sum(len(names) for _, _, names in os.walk(scratch)))
            found.append(batch.numpy().tolist())
    assert max(held) <= ON_DISK < len(shards)
    assert list(scratch.iterdir()) == []
    on_disk = RecordFiles.of([tmp_path / "store" / shard.file for shard in shards])
    whole = every_record(on_disk, SCHEMA, number, records=upper, batch_size=3)
    assert found == 2 * [batch.numpy().tolist() for batch in whole]


def test_a_corrupt_shard_ends_the_reading_with_the_error_of_its_download(tmp_path):
    shards = written(tmp_path / "store", [range(10)] * 9)
    damaged = tmp_path / "store" / shards[5].file
    damaged.write_bytes(damaged.read_bytes()[::-1])
    with (
        pytest.raises(CorruptError, match="store/shard-5 is corrupt: its manifest says"),
        streamed((tmp_path / "store").as_uri(), shards, tmp_path) as files,
    ):
        list(files.records())


@pytest.mark.parametrize("first", [0, 5])
def test_a_second_reader_begins_with_the_window_that_it_asks_for(tmp_path, shards, first):
    order = Order(shards=shards, seed=0, window_bytes=200, shard_cache_bytes=500)
    supply = ShardCache((tmp_path / "store").as_uri(), order, tmp_path / "scratch", indexed=False)
    supply.start()
    width = layout_of(SCHEMA, shards).width
    whole, later = (
        [records.numpy().tolist() for records, _, _ in windows.take(count)]
        for windows, count in (
            (windows_from(f"{tmp_path}/scratch/", width), 9),
            (windows_from(f"{tmp_path}/scratch/", width, first), 4),
        )
    )
    supply.stop()
    assert whole[first : first + 4] == later


def test_a_second_reader_waits_for_room_on_a_full_disk(tmp_path, shards, capsys):
    order = Order(shards=shards, seed=0, window_bytes=200, shard_cache_bytes=500)
    supply = ShardCache((tmp_path / "store").as_uri(), order, tmp_path / "scratch", indexed=False)
    supply.start()
    windows = windows_from(f"{tmp_path}/scratch/", layout_of(SCHEMA, shards).width)
    assert len(list(windows.take(9))) == 9
    read = []
    reader = threading.Thread(target=lambda: read.extend(windows.take(4)))
    with no_room():
        reader.start()
        while "no room is left" not in capsys.readouterr().out:
            assert reader.is_alive()
            time.sleep(0.01)
        assert supply.is_waiting
    reader.join()
    supply.stop()
    assert len(read) == 4
    assert supply.failure is None


def test_the_shard_cache_stays_within_its_disk_budget(tmp_path):
    shards = written(tmp_path / "store", [range(10)] * 6)
    budget = 2 * shards[0].bytes
    with batches_from(tmp_path, shards, batch_size=10, shard_cache_bytes=budget) as batches:
        for _ in islice(batches, 20):
            files = (tmp_path / "scratch/shards").iterdir()
            assert sum(size_of(file) for file in files) <= budget


def size_of(file):
    try:
        return file.stat().st_size
    except FileNotFoundError:  # it was deleted after it was listed
        return 0


def test_training_begins_with_the_first_shards_and_fails_at_a_missing_one(tmp_path):
    shards = written(tmp_path / "store", [range(10)] * 6)
    bounds = {"window_bytes": 100, "shard_cache_bytes": 2 * shards[0].bytes}
    [*_, last] = Order(shards=shards, seed=0, **bounds).epoch(0)
    with batches_from(tmp_path, shards, batch_size=10, **bounds) as batches:
        assert sorted(next(batches)) == list(range(10))
        (tmp_path / "store" / last.pieces[0].shard.file).unlink()
        with pytest.raises(tf.errors.InvalidArgumentError, match="no more shards come"):
            list(islice(batches, 6))


def test_a_disk_that_is_full_from_the_beginning_is_reported_at_once(tmp_path, shards):
    with (
        no_room(),
        batches_from(tmp_path, shards) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match="no more shards come"),
    ):
        next(batches)


def test_bytes_of_one_layout_are_parsed_as_tensorflow_parses_them():
    schema = {
        "zebra": Feature("uint8", (2, 3)),
        "flag": Feature("bool", (2,)),
        "label": Feature("int64"),
        "x": Feature("float32", (3,)),
        "ä": Feature("int16", (2,)),
        "exact": Feature("float64", (2,)),
    }
    generator = np.random.default_rng(0)
    records = [
        {
            "zebra": generator.integers(0, 256, (2, 3), np.uint8),
            "flag": generator.integers(0, 2, 2).astype(bool),
            "label": np.int64(number),
            "x": generator.normal(size=3).astype(np.float32),
            "ä": generator.integers(0, 128, 2).astype(np.int16),
            "exact": generator.normal(size=2),
        }
        for number in range(100)
    ]
    encoded = encode(stacked(records, schema))
    content = np.frombuffer(framed(encoded).content, np.uint8)
    rows = parse(tf.constant(content.reshape(100, -1)), schema)
    strings = parse(encoded.to_pylist(), schema)
    for name, feature in schema.items():
        assert rows[name].dtype == strings[name].dtype == feature.dtype
        assert rows[name].numpy().tobytes() == strings[name].numpy().tobytes()
        assert rows[name].shape == (100, *feature.shape)


def test_records_of_another_order_of_features_are_parsed_all_the_same():
    schema = {"a": Feature("int64"), "b": Feature("int64")}
    as_usual = tf.train.Example()
    for name, value in (("a", 1), ("b", 2)):
        as_usual.features.feature[name].int64_list.value.append(value)
    one = as_usual.SerializeToString(deterministic=True)
    half = 2 + (len(one) - 2) // 2
    other = one[:2] + one[half:] + one[2:half]
    frames = [len(one).to_bytes(8, "little") + bytes(4) + each + bytes(4) for each in (one, other)]
    rows = np.frombuffer(b"".join(frames), np.uint8).reshape(2, -1)
    parsed = parse(tf.constant(rows), schema)
    assert (parsed["a"].numpy().tolist(), parsed["b"].numpy().tolist()) == ([1, 1], [2, 2])


@pytest.mark.parametrize("schema", [{"text": Feature("string")}, {"none": Feature("uint8", (0,))}])
def test_features_of_varying_length_have_no_layout(schema):
    assert RowLayout.of(schema) is None


def test_an_index_detects_a_shard_that_does_not_match_it(tmp_path):
    [shard] = written(tmp_path, [range(10)])
    with pytest.raises(FinalError, match=r"is not the 9 records in \d+ bytes that its manifest"):
        write_index(replace(shard, records=9), tmp_path / shard.file)


@pytest.mark.parametrize(
    ("value", "feature"),
    [
        (np.arange(6, dtype=np.uint8).reshape(2, 3), Feature("uint8", (2, 3))),
        (np.uint8(200), Feature("uint8")),
        (np.array([-1.5, 2.0], np.float32), Feature("float32", (2,))),
        (np.array([0.1, 1e300]), Feature("float64", (2,))),
        (np.int64(-(2**40)), Feature("int64")),
        (np.array([[1], [-2]], np.int16), Feature("int16", (2, 1))),
        (np.array([True, False]), Feature("bool", (2,))),
        (b"\x00\xffends with zero\x00", Feature("string")),
    ],
    ids=lambda value: str(value) if isinstance(value, Feature) else "",
)
def test_a_feature_is_read_back_as_it_was_prepared(value, feature):
    schema = {"feature": feature}
    [restored] = parse(encode(stacked([{"feature": value}], schema)).to_pylist(), schema)["feature"]
    assert restored.dtype.name == feature.dtype
    assert restored.shape == feature.shape
    assert np.array_equal(restored.numpy(), value)


@tf.autograph.experimental.do_not_convert
def test_a_transform_may_branch_on_values_where_a_coordinator_makes_its_data_set():
    """There AutoGraph is off, so that it does not rewrite the whole input pipeline."""

    def transform(features):
        if tf.reduce_sum(features["x"]) > 0:
            return features["x"] * 2
        return features["x"]

    schema = {"x": Feature("int64", ())}
    encoded = encode(stacked([{"x": 3}], schema)).to_pylist()
    records = tf.data.Dataset.from_tensors(encoded)
    assert ready(records, schema, transform).get_single_element().numpy().tolist() == [6]


def test_without_a_transform_the_feature_label_is_the_target():
    assert features_and_label({"image": 1, "label": 2}) == (1, 2)
    assert features_and_label({"a": 1, "b": 2, "label": 3}) == ({"a": 1, "b": 2}, 3)
    assert features_and_label({"image": 1, "sold": 2}, "sold") == (1, 2)
    with pytest.raises(FinalError, match="no feature is called 'label' among image; name another"):
        features_and_label({"image": 1})


def test_a_shard_is_downloaded_once_and_again_when_it_was_damaged(digits, tmp_path):
    from aerotrain.data.dataset import load_dataset

    shards = load_dataset(digits.data).splits["test"].shards[:1]
    [path] = download(digits.data, shards, tmp_path)
    first = path.stat().st_mtime_ns
    download(digits.data, shards, tmp_path)
    assert path.stat().st_mtime_ns == first
    whole = path.read_bytes()
    for damaged in (b"damaged", whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        path.write_bytes(damaged)
        download(digits.data, shards, tmp_path)
        assert path.read_bytes() == whole
