"""Lists of different lengths, which ``pad`` makes arrays of one length."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.data.dataset import Feature, load_dataset, load_statistics
from aerotrain.data.records.columns import column_of
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import framed, read_frames
from aerotrain.data.sources.tfrecord import features_of
from aerotrain.store import open_store
from support.prepared import Content, prepared

LINES = b'{"id": 0, "n": [5, 6]}\n{"id": 1, "n": [7]}\n{"id": 2, "n": []}\n{"id": 3}\n'
TABLE = pa.table({"id": [0, 1, 2, 3], "n": [[5, 6], [7], [], None]})


def examples() -> bytes:
    """A TFRecord file of the same records as ``LINES``."""
    rows: list[dict[str, list[int]]] = [{"n": [5, 6]}, {"n": [7]}, {"n": []}, {}]
    encoded = [
        encode({name: column_of(name, np.array([each], np.int64)) for name, each in row.items()})
        for row in ({"id": [number], **row} for number, row in enumerate(rows))
    ]
    return bytes(framed(pa.concat_arrays(encoded)).content)


def values_of(url: str, name: str = "n") -> list[list[Any]]:
    """The stored values of a column, one list for each record, by the column ``id``."""
    store, found = open_store(url), []
    for shard in load_dataset(url).splits["all"].shards:
        for _, record in read_frames(io.BytesIO(store.get(shard.file))):
            features = features_of(record)
            found.append((features["id"][1][0], list(features[name][1])))
    return [values for _, values in sorted(found)]


@pytest.mark.parametrize(
    ("name", "content"), [("x.jsonl", LINES), ("x.parquet", TABLE), ("x.tfrecord", examples())]
)
def test_lists_of_different_lengths_are_padded(
    tmp_path: Path, name: str, content: Content, capsys: pytest.CaptureFixture[str]
) -> None:
    url = prepared(tmp_path, {name: content}, pad={"n": 3}, rename={"n": "m"})
    assert load_dataset(url).schema["m"] == Feature("int64", (3,))
    assert values_of(url, "m") == [[5, 6, 0], [7, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert load_statistics(url)["m"]["missing"] == 1
    assert "column m   int64 × 3; lists, padded; called n in the files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lists", "pad", "types", "feature", "values"),
    [
        ([["a", "b"], []], 3, {}, Feature("string", (3,)), [[b"a", b"b", b""], [b"", b"", b""]]),
        (
            [[1], [2, 3]],
            {"length": 2, "value": 0.5},
            {"n": "float32"},
            Feature("float32", (2,)),
            [[1, 0.5], [2, 3]],
        ),
        (
            [[[1, 2]], [[3, 4], [5, 6]]],
            2,
            {"n": "int8"},
            Feature("int8", (2, 2)),
            [[1, 2, 0, 0], [3, 4, 5, 6]],
        ),
        (
            [[1, 2, 3], [4]],
            {"length": 2, "longer": "truncate"},
            {},
            Feature("int64", (2,)),
            [[1, 2], [4, 0]],
        ),
    ],
)
def test_padding_has_the_declared_type_value_and_length(
    tmp_path: Path, lists: Any, pad: Any, types: Any, feature: Feature, values: Any
) -> None:
    rows = [{"id": number, "n": each} for number, each in enumerate(lists)]
    lines = "".join(f"{row}\n".replace("'", '"') for row in rows).encode()
    table = pa.table({"id": [0, 1], "n": lists})
    for kind, content in (("jsonl", lines), ("parquet", table)):
        url = prepared(tmp_path / kind, {f"x.{kind}": content}, pad={"n": pad}, types=types)
        assert load_dataset(url).schema["n"] == feature
        assert values_of(url) == values


def test_a_list_that_is_longer_than_its_padding_is_rejected(tmp_path: Path) -> None:
    words = "column 'n' has more than the 1 values of 'pad'; give a greater length there"
    for name, content in (("x.jsonl", LINES), ("x.parquet", TABLE), ("x.tfrecord", examples())):
        with pytest.raises(FinalError, match=words):
            prepared(tmp_path, {name: content}, pad={"n": 1})
        (tmp_path / "in" / name).unlink()
    url = prepared(tmp_path, {"x.jsonl": LINES}, {"max_rejected": 1}, pad={"n": 1})
    assert values_of(url) == [[7], [0], [0]]


def test_lists_of_different_lengths_without_padding_name_the_option(tmp_path: Path) -> None:
    words = r"pad them.* 'pad' of the source, such as \{'n': 2\}"
    for name, content in (("x.jsonl", LINES), ("x.parquet", TABLE), ("x.tfrecord", examples())):
        with pytest.raises(FinalError, match=words):
            prepared(tmp_path / name, {name: content})


@pytest.mark.parametrize(
    ("pad", "words"),
    [
        (3, "pad of the source must be an object by columns"),
        ({"n": 0}, "of the column 'n', length of pad must be a whole number of 1 or more, got 0"),
        ({"n": {"value": 0}}, "pad needs length"),
        ({"n": {"length": 2, "longer": "drop"}}, "longer of pad must be 'reject' or 'truncate'"),
        ({"n": 3, "m": 3}, "has no column 'm'"),
        ({"id": 3}, "the column 'id' has no lists, which 'pad' takes"),
        ({"n": {"length": 3, "value": "x"}}, "the padding of 'n' cannot be 'x', because .* int64"),
        ({"n": {"length": 3, "value": 0.5}}, "the padding of 'n' cannot be 0.5"),
    ],
)
def test_padding_that_cannot_be_is_refused(tmp_path: Path, pad: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        prepared(tmp_path, {"x.jsonl": LINES}, pad=pad)
