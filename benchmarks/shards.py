"""Data sets that benchmarks write themselves, to know what is in each shard."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from aerotrain.data.dataset import Schema, Shard
from aerotrain.data.records import Column, encoded_frames
from aerotrain.store.manifest import StoredFile


def write_shards(
    folder: Path, schema: Schema, columns: Mapping[str, np.ndarray], count: int
) -> list[Shard]:
    """Write the records of ``columns``, in their order, as so many shards into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    records = len(next(iter(columns.values())))
    shards = []
    for number, (first, last) in enumerate(
        pairwise(records * n // count for n in range(count + 1))
    ):
        part = {key: Column(schema[key], values[first:last]) for key, values in columns.items()}
        file = folder / f"train-{number:05d}"
        file.write_bytes(encoded_frames(part).content)
        stored = asdict(StoredFile.of(file))
        shards.append(Shard(file=file.name, records=last - first, **stored))
    return shards
