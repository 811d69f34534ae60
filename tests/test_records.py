"""Records: bytes that TensorFlow reads back equal, and refusals that name the feature."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerotrain.dataset import Feature
from aerotrain.records import RecordError, check_fits, encode, frame, schema_of

#: One feature of every kind, with the values at which an encoding breaks.
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
    "double": Feature("float32"),
    "text": Feature("string"),
    "blob": Feature("string"),
    "words": Feature("string", (3,)),
    "label": Feature("int64"),
    "empty": Feature("float32", (0, 4)),
}


def test_the_schema_is_the_dtype_and_shape_of_each_feature() -> None:
    assert schema_of(RECORD) == SCHEMA


def test_equal_records_are_equal_bytes_whatever_the_order_of_their_features() -> None:
    backwards = dict(reversed(list(RECORD.items())))
    assert encode(RECORD, SCHEMA) == encode(backwards, schema_of(backwards))


def test_a_frame_is_length_checksum_data_checksum() -> None:
    # Written by tf.io.TFRecordWriter of TensorFlow 2.21 for the one record b"aerotrain".
    assert frame(b"aerotrain").hex() == "090000000000000037f971396165726f747261696e6e7455dd"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "it has no feature"),
        ({"x": None}, "'x' is NoneType"),
        ({"x": 1 + 2j}, "'x' is complex"),
        ({"x": np.uint64(1)}, "'x' is uint64"),
        ({"x": [b"a", 1]}, "'x' is list"),
        ({"x": {"y": 1}}, "'x' is dict"),
        ({"x": [[1], [1, 2]]}, "'x' is no array"),
    ],
)
def test_what_no_record_can_hold_is_refused_by_its_name(
    record: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(RecordError, match=words):
        schema_of(record)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"x": np.zeros(3, np.float32)}, "features are x, where the first record has label, x"),
        ({"x": np.zeros(3), "label": 1, "z": 1}, "features are label, x, z"),
        ({"x": np.zeros(4), "label": 1}, r"'x' is float32 of shape \(4,\), where .* \(3,\)"),
        ({"x": np.zeros(3), "label": 1.0}, "'label' is float32 .*, where .* int64"),
    ],
)
def test_a_record_unlike_the_first_is_refused(record: Mapping[str, Any], words: str) -> None:
    schema = schema_of({"x": np.zeros(3), "label": 0})
    with pytest.raises(RecordError, match=words):
        check_fits(record, schema)


@pytest.mark.process
def test_tensorflow_reads_back_what_was_encoded(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(encode(RECORD, SCHEMA)) * 2)
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
    assert stored["double"].float_list.value == [np.float32(0.1)]
    assert stored["text"].bytes_list.value == ["Grüße".encode()]
    assert stored["blob"].bytes_list.value == [b"ends in zeros\0\0"]
    assert stored["words"].bytes_list.value == [b"one", b"", b"three"]
    assert stored["empty"].float_list.value == []
