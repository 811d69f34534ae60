"""Records: TensorFlow reads back equal values, and errors name the feature."""

import io
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Feature
from aerotrain.data.records.columns import (
    Column,
    RecordError,
    check_fits,
    column_of,
    schema_of,
    stacked,
)
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import encoded_frames, framed, read_frames
from support.nasty_inputs import flipped, frame, head

#: One feature of every kind, with edge cases of its encoding.
RECORD: Mapping[str, Any] = {
    "image": np.arange(128, 192, dtype=np.uint8).reshape(8, 8),
    "turned": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
    "level": np.uint8(7),
    "numbers": np.array([0, 1, -1, 127, 128, 2**63 - 1, -(2**63)]),
    "small": np.array([[-5], [5]], np.int16),
    "yes": True,
    "weights": np.array([[0.5, -1.5], [np.inf, 1e-40]], np.float32),
    "double": 0.1,
    "text": "Grüße",
    "blob": b"ends in zeros\0\0",
    "words": ["one", "", "three"],
    "label": 3,
    "empty": np.zeros((0, 4), np.float32),
}

SCHEMA = {
    "image": Feature("uint8", (8, 8)),
    "turned": Feature("uint8", (3, 2)),
    "level": Feature("uint8"),
    "numbers": Feature("int64", (7,)),
    "small": Feature("int16", (2, 1)),
    "yes": Feature("bool"),
    "weights": Feature("float32", (2, 2)),
    "double": Feature("float64"),
    "text": Feature("string"),
    "blob": Feature("string"),
    "words": Feature("string", (3,)),
    "label": Feature("int64"),
    "empty": Feature("float32", (0, 4)),
}


def ragged_columns(count: int) -> dict[str, Column]:
    """Records of many lengths, which need varints of every width."""
    random = np.random.default_rng(0)
    numbers = random.integers(-(2**63), 2**63, (count, 3)) >> random.integers(0, 64, (count, 3))
    words = [random.bytes(length) for length in random.integers(0, 300, 2 * count)]
    return {
        "numbers": column_of("numbers", numbers),
        "words": Column(Feature("string", (2,)), pa.array(words, pa.large_binary())),
        "text": Column(Feature("string"), pa.array(words[:count], pa.large_binary())),
        "weights": column_of("weights", random.random((count, 40), np.float32)),
        "doubles": column_of("doubles", random.random((count, 2))),
    }


def test_the_schema_is_the_dtype_and_shape_of_each_feature() -> None:
    assert schema_of(RECORD) == SCHEMA


def test_equal_records_are_equal_bytes_for_any_order_of_their_features() -> None:
    backwards = dict(reversed(list(RECORD.items())))
    assert encode(stacked([RECORD], SCHEMA)) == encode(stacked([backwards], schema_of(backwards)))


def test_a_record_is_the_same_bytes_alone_and_among_others() -> None:
    columns = ragged_columns(200)
    alone = [
        encode({name: column.take(np.array([row])) for name, column in columns.items()})[0]
        for row in range(200)
    ]
    assert encode(columns).to_pylist() == [each.as_py() for each in alone]


@pytest.mark.parametrize("count", [1, 200])
def test_frames_are_the_same_whether_all_are_equally_long_or_not(count: int) -> None:
    even = {
        "x": column_of("x", np.arange(count) % 100),
        "t": column_of("t", pa.array(["é"] * count, pa.string())),
    }
    for columns in (even, ragged_columns(count)):
        frames, expected = encoded_frames(columns), framed(encode(columns))
        assert frames.rows.equals(expected.rows)
        assert frames.checksums.tolist() == expected.checksums.tolist()
        assert bytes(frames.content) == bytes(expected.content)


def test_a_frame_is_length_checksum_data_checksum() -> None:
    # Written by tf.io.TFRecordWriter of TensorFlow 2.21 for the one record b"aerotrain".
    frames = framed(pa.array([b"aerotrain"], pa.large_binary()))
    expected = "090000000000000037f971396165726f747261696e6e7455dd"
    assert bytes(frames.content).hex() == expected


@pytest.mark.parametrize("records", [[b"one", b"", b"three"], [b"one", b"two"], []])
def test_frames_are_read_back(records: list[bytes]) -> None:
    frames = framed(pa.array(records, pa.large_binary()))
    assert [each for _, each in read_frames(io.BytesIO(frames.content))] == records


def read_damaged(content: bytes) -> tuple[list[bytes], str]:
    """The records of a file before its damage, and the message."""
    found = []
    try:
        for _, record in read_frames(io.BytesIO(content)):
            found.append(record)
    except FinalError as error:
        return found, str(error)
    return found, ""


RECORDS = [b"record %d" % number for number in range(200)]
FRAMES = [frame(each) for each in RECORDS]


@pytest.mark.parametrize("number", [0, 50, 199])
def test_damage_to_any_byte_of_a_record_and_a_cut_are_named_with_the_records_before(
    number: int,
) -> None:
    content = b"".join(FRAMES)
    begin = sum(map(len, FRAMES[:number]))
    end = begin + len(FRAMES[number])
    damaged = [flipped(content, place) for place in range(begin, end)]
    for file in (*damaged, *(content[:place] for place in range(begin + 1, end))):
        whole, said = read_damaged(file)
        assert whole == RECORDS[:number]
        assert re.match(rf"after {number} records?, at byte {begin}, (it|the|a) .*; write", said)


@pytest.mark.parametrize("damage", [head(2**60), head(2**30), bytes(3000), frame(b"a" * 100)[:60]])
def test_bytes_that_are_not_a_record_are_named_and_need_no_memory(damage: bytes) -> None:
    whole, said = read_damaged(b"".join([*FRAMES[:150], damage, *FRAMES[150:]]))
    assert whole == RECORDS[:150]
    assert said.startswith("after 150 records, at byte ")


@pytest.mark.parametrize(
    ("values", "feature", "held"),
    [
        (pa.array([1.5, 2.5], pa.float64()), Feature("float64"), [1.5, 2.5]),
        (pa.array([1.5, 2.5], pa.float32()), Feature("float32"), [1.5, 2.5]),
        (pa.array([True, False]), Feature("bool"), [True, False]),
        (pa.array(["a", "b"]).dictionary_encode(), Feature("string"), [b"a", b"b"]),
        (pa.array([[1, 2], [3, 4]]), Feature("int64", (2,)), [[1, 2], [3, 4]]),
        (pa.array([["a", "b"]]), Feature("string", (2,)), [b"a", b"b"]),
        (
            pa.array([[[1], [2]]], pa.list_(pa.list_(pa.uint8(), 1))),
            Feature("uint8", (2, 1)),
            [[[1], [2]]],
        ),
        (pa.array([datetime(1970, 1, 1, 0, 0, 1)]), Feature("int64"), [1_000_000]),
        (pa.array([date(1970, 1, 3)]), Feature("int32"), [2]),
        (pa.array([Decimal("1.25")]), Feature("float64"), [1.25]),
        (np.array(["a", "b"]), Feature("string"), [b"a", b"b"]),
    ],
)
def test_every_type_of_column_has_one_form_in_a_record(
    values: Any, feature: Feature, held: list[Any]
) -> None:
    column = column_of("x", values)
    assert column.feature == feature
    assert column.values.tolist() == held


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([{"a": 1}]), "'x' is of type struct"),
        (pa.array([[1], [1, 2]]), "'x' holds lists of 1 and of 2 values"),
        (pa.array([2**63], pa.uint64()), "'x' is of type uint64, with the value 9223372036"),
    ],
)
def test_a_column_that_no_record_can_hold_is_refused_by_its_name(values: Any, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        column_of("x", values)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "it has no feature"),
        ({"x": None}, "'x' is NoneType"),
        ({"x": 1 + 2j}, "'x' is complex"),
        ({"x": np.uint64(1)}, "'x' is uint64"),
        ({"x": [b"a", 1]}, "'x' is list"),
        ({"x": {"y": 1}}, "'x' is dict"),
        ({"x": [[1], [1, 2]]}, "'x' is not an array"),
    ],
)
def test_a_feature_that_no_record_can_hold_is_refused_by_its_name(
    record: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(RecordError, match=words):
        schema_of(record)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"x": np.zeros(3, np.float32)}, "features are x, where the first record has label, x"),
        ({"x": np.zeros(3), "label": 1, "z": 1}, "features are label, x, z"),
        ({"x": np.zeros(4), "label": 1}, r"'x' is float64 of shape \(4,\), where .* \(3,\)"),
        ({"x": np.zeros(3), "label": 1.0}, "'label' is float64 .*, where .* int64"),
    ],
)
def test_a_record_unlike_the_first_is_refused(record: Mapping[str, Any], words: str) -> None:
    schema = schema_of({"x": np.zeros(3), "label": 0})
    with pytest.raises(RecordError, match=words):
        check_fits(schema_of(record), schema)


@pytest.mark.process
def test_tensorflow_reads_back_what_was_encoded(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "x.tfrecord"
    path.write_bytes(framed(encode(stacked([RECORD, RECORD], SCHEMA))).content)
    first, second = tf.data.TFRecordDataset([str(path)])
    assert first == second
    stored = tf.train.Example.FromString(first.numpy()).features.feature
    assert stored.keys() == SCHEMA.keys()
    assert stored["image"].bytes_list.value == [RECORD["image"].tobytes()]
    assert stored["turned"].bytes_list.value == [bytes([0, 3, 1, 4, 2, 5])]
    assert stored["level"].bytes_list.value == [b"\7"]
    assert stored["numbers"].int64_list.value == RECORD["numbers"].tolist()
    assert stored["small"].int64_list.value == [-5, 5]
    assert stored["yes"].int64_list.value == [1]
    assert stored["weights"].float_list.value == RECORD["weights"].ravel().tolist()
    assert stored["double"].bytes_list.value == [np.float64(0.1).tobytes()]
    assert stored["text"].bytes_list.value == ["Grüße".encode()]
    assert stored["blob"].bytes_list.value == [b"ends in zeros\0\0"]
    assert stored["words"].bytes_list.value == [b"one", b"", b"three"]
    assert stored["empty"].float_list.value == []


@pytest.mark.process
def test_tensorflow_reads_a_batch_back_equal(tmp_path: Path) -> None:
    import tensorflow as tf

    from aerotrain.training.input.batches import parse

    columns = ragged_columns(500)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(framed(encode(columns)).content)
    read = tf.data.TFRecordDataset([str(path)]).batch(1000).get_single_element()
    for name, value in parse(read, {name: each.feature for name, each in columns.items()}).items():
        expected = columns[name]
        held = expected.values.to_pylist() if expected.is_text else expected.values.ravel().tolist()
        assert value.numpy().ravel().tolist() == held, name
