"""Data sets of small files, and the records in them."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.data.dataset import load_dataset
from aerotrain.data.records.framing import read_frames
from aerotrain.data.sources.tfrecord import features_of
from aerotrain.standalone import prepare
from aerotrain.store import open_store

Content = bytes | pa.Table

#: One split, and no comparison with an earlier data set.
PLAIN: dict[str, Any] = {"splits": {"all": 1}, "allow_drift": True}

KINDS = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet", ".tfrecord": "tfrecord"}


def written(folder: Path, files: Mapping[str, Content]) -> dict[str, Any]:
    """The source of these files, whose kind is that of their names."""
    for name, content in files.items():
        path = folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path)
    kind = KINDS.get(Path(next(iter(files))).suffix, "images")
    return {"kind": kind, "url": (folder / "in").as_uri()}


def prepared(folder: Path, files: Mapping[str, Content], rules: Any = (), **options: Any) -> str:
    """The URL of the data set of these files."""
    source = written(folder, files) | options
    return prepare((folder / "store").as_uri(), folder, source, **{**PLAIN, **dict(rules)})


def records(url: str, split: str) -> list[dict[str, Any]]:
    """The records of a split as they are stored, scalars as plain values."""
    found = []
    store = open_store(url)
    for shard in load_dataset(url).splits[split].shards:
        for _, record in read_frames(io.BytesIO(store.get(shard.file))):
            found.append({name: values[0] for name, (_, values) in features_of(record).items()})
    return found
