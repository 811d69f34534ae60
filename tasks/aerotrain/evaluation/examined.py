"""What the predictions of a split show besides metrics, for the card of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Dataset, Schema
from aerotrain.evaluation.diagnostics import Diagnostics
from aerotrain.evaluation.leakage import SAMPLE, copied, leaking_columns
from aerotrain.evaluation.records import Predictor, content_of
from aerotrain.evaluation.slices import Statistics
from aerotrain.evaluation.worst import described, records_at
from aerotrain.serving.servable import Servable
from aerotrain.training.input.batches import RecordFiles, Transform, first_records, parse, streamed
from aerotrain.training.input.shards import TRAIN_SPLIT, enough


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Warnings, and columns that give the label away, as sentences; what each output shows, and its
    worst records, as JSON by its name."""

    warnings: Sequence[str] = ()
    leaks: Sequence[str] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    worst: Mapping[str, Any] = field(default_factory=dict)


def examined(
    diagnostics: Diagnostics,
    model: keras.Model,
    transform: Transform,
    dataset: Dataset,
    name: str,
    *,
    predictor: Predictor,
    statistics: Statistics,
    url: str,
    scratch: Path,
) -> Examined:
    """What ``diagnostics`` has gathered of the split ``name``, and what some records show.

    ``predictor`` has predicted it. Shards of the ``dataset`` at ``url`` that hold records which are
    looked at are downloaded below ``scratch``.
    """
    split = dataset.splits[name]
    with streamed(url, enough(split.shards, SAMPLE), scratch) as files:
        columns = _scalars(model, transform, dataset.schema, files)
    warnings = diagnostics.warnings()
    trained = dataset.splits.get(TRAIN_SPLIT, split)
    if trained is not split:
        with streamed(url, enough(trained.shards, SAMPLE), scratch) as files:
            features = parse(first_records(files, SAMPLE), dataset.schema)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(transform(features))
        if (contents := content_of((x, y))) is not None:
            warnings += copied(name, *predictor.chosen(np.asarray(contents)))
    leaks = [each for y in diagnostics.targets.values() for each in leaking_columns(columns, y)]
    places = {each.place for found in diagnostics.worst.values() for each in found}
    records = records_at(url, split.shards, places, scratch)
    schema, names = dataset.schema, dataset.names
    units = {name: each.get("since_1970", "") for name, each in statistics.items()}
    return Examined(
        warnings=warnings,
        leaks=list(dict.fromkeys(leaks)),
        outputs=diagnostics.outputs,
        worst={
            output: [
                {**asdict(each), "features": described(records[each.place], schema, names, units)}
                for each in found
            ]
            for output, found in diagnostics.worst.items()
        },
    )


def _scalars(
    model: keras.Model, transform: Transform, schema: Schema, files: RecordFiles
) -> dict[str, Any]:
    """The values of the first records, of the columns of single values that predictions need."""
    try:
        needed = Servable(model, transform, schema).needed
    except FinalError:
        return {}  # predictions depend on no column: the export says so
    scalars = {name: each for name, each in needed.items() if not each.shape}
    if not scalars:
        return {}
    parsed = parse(first_records(files, SAMPLE), scalars)
    return {name: np.asarray(each) for name, each in parsed.items()}
