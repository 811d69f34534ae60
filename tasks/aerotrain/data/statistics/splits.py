"""How the splits of a data set differ, by the single values of random records of each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np

from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import TRAIN_SPLIT, Dataset, Feature, Schema, Split
from aerotrain.data.records.columns import stacked
from aerotrain.data.records.framing import FramingError, read_frames
from aerotrain.data.sources.tfrecord import features_of
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.drift import ColumnChange, Summary, compared
from aerotrain.store import Store
from aerotrain.store.manifest import each_of

#: The most shards of a split that are read, the bytes at the start of each, and the most records.
_SHARDS, _BYTES, _RECORDS = 20, 2**18, 2000


def differences(
    store: Store, dataset: Dataset, summary: Summary, rules: PlanArguments
) -> dict[str, Sequence[ColumnChange]]:
    """How the columns of each other split differ from those of the train split.

    The column that decides the split is left out. ``summary`` has the statistics of all records.
    """
    decides = rules.split_by.get("column") if rules.split_by["way"] != "stratified" else None
    scalars = {n: each for n, each in dataset.schema.items() if not each.shape and n != decides}
    times = {name: each["since_1970"] for name, each in summary.items() if each["is_time"]}
    found: dict[str, Summary] = {}
    for name, split in sorted(dataset.splits.items()):
        if records := list(_records(store, split, scalars)):
            statistics = Statistics()
            numbers = np.arange(len(records), dtype=np.uint64)
            statistics.add(stacked(records, scalars), {}, numbers, times=times)
            found[name] = statistics.summary()
    train = found.pop(TRAIN_SPLIT, None)
    if train is None:
        return {}
    return {name: compared("", train, each, rules).changes for name, each in found.items()}


def _records(store: Store, split: Split, scalars: Schema) -> Iterator[Mapping[str, Any]]:
    """The single values of some records of a split; none if they are too long."""
    shards = split.shards[:: -(-len(split.shards) // _SHARDS)] if scalars else ()
    keys = [shard.file for shard in shards]
    for beginning in each_of(lambda k: store.get_range(k, 0, _BYTES, store.stat(k).etag), keys):
        with suppress(FramingError):  # the last one is cut
            for _, record in islice(read_frames(BytesIO(beginning)), _RECORDS // len(shards)):
                found = features_of(record)
                yield {name: _value(found[name][1][0], each) for name, each in scalars.items()}


def _value(stored: Any, feature: Feature) -> Any:
    return np.frombuffer(stored, feature.dtype)[0] if feature.is_raw else stored
