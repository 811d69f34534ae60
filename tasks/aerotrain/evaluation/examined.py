"""What the predictions of a split show besides metrics: leaks, and the worst records."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Dataset, Feature, Schema, Shard
from aerotrain.evaluation.diagnostics import Diagnostics
from aerotrain.evaluation.leakage import SAMPLE, copied, leaking_columns
from aerotrain.evaluation.records import Predictor, content_of
from aerotrain.evaluation.slices import Statistics
from aerotrain.pages.axis import text_of
from aerotrain.pages.html import thumbnail
from aerotrain.serving.servable import Servable
from aerotrain.training.input.batches import RecordFiles, Transform, first_records, parse, streamed
from aerotrain.training.input.shards import TRAIN_SPLIT, enough, in_turn

#: The most characters of a text, and numbers of a vector, that are shown.
_TEXT, _NUMBERS = 200, 8

#: Pixels of at most this value are shown brighter: the picture would be black.
_DARK = 31

#: The least edge of an array of pixels.
_LEAST_EDGE = 4


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


def records_at(
    url: str, shards: Sequence[Shard], places: Collection[int], scratch: Path
) -> dict[int, bytes]:
    """The serialized records at some places of ``shards`` of the data set at ``url``.

    Only shards that hold one of them are downloaded, as by ``in_turn``.
    """
    held: list[tuple[Shard, int, list[int]]] = []
    first = 0
    for shard in shards:
        here = [each - first for each in places if first <= each < first + shard.records]
        if here:
            held.append((shard, first, here))
        first += shard.records
    found: dict[int, bytes] = {}
    files = in_turn(url, [shard for shard, _, _ in held], scratch)
    for (_, first, here), file in zip(held, files, strict=True):
        numbered = tf.data.TFRecordDataset(str(file)).enumerate()
        chosen = numbered.filter(_is_one_of(tf.constant(here, tf.int64)))
        found |= {first + int(place): record.numpy() for place, record in chosen}
    return found


def _is_one_of(places: tf.Tensor) -> Any:
    return lambda place, _: tf.reduce_any(place == places)


#: A text, or ``{"picture": …}`` with a PNG file in base64.
Shown = str | dict[str, str]


def described(
    record: bytes,
    schema: Schema,
    names: Mapping[str, Sequence[str]],
    units: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Shown]:
    """The features of a record, to be shown.

    ``names`` are the words of columns that hold their numbers, ``units`` those of dates, since
    1970.
    """
    features = parse(tf.constant([record]), schema)
    return {
        name: _shown(
            schema[name], np.asarray(features[name])[0], names.get(name, ()), units.get(name, "")
        )
        for name in sorted(schema)
    }


def _shown(feature: Feature, value: Any, words: Sequence[str], since_1970: str) -> Shown:
    if picture := _as_picture(feature, value):
        return {"picture": picture}
    if feature.dtype == "string" and not feature.shape:
        text = bytes(value[: 4 * _TEXT]).decode("utf-8", "replace")
        return text if len(text) <= _TEXT else text[:_TEXT] + "…"
    if feature.shape:
        flat = np.ravel(value)
        shown = _values(flat[:_NUMBERS], since_1970)
        return ", ".join(shown) + (", …" if len(flat) > _NUMBERS else "")
    if words and float(value).is_integer() and 0 <= value < len(words):
        return words[int(value)]
    return next(_values(np.ravel(value), since_1970))


def _values(values: Any, since_1970: str) -> Iterator[str]:
    for each in values:
        if isinstance(each, bytes):
            yield each.decode("utf-8", "replace")
        elif since_1970:
            yield text_of(int(each), since_1970)
        else:
            yield "missing" if np.isnan(each) else f"{each:.6g}"


def _as_picture(feature: Feature, value: Any) -> str | None:
    """A file of a picture, or pixels ``(height, width)`` or with channels; else nothing."""
    if feature.dtype == "string":
        return None if feature.shape else thumbnail(bytes(value))
    channels = value.shape[2:]
    if value.ndim not in (2, 3) or min(value.shape[:2]) < _LEAST_EDGE:
        return None
    if channels not in ((), (1,), (3,), (4,)):
        return None
    if value.dtype != np.uint8 or value.max() <= _DARK:
        known = value[np.isfinite(value)]
        least, span = known.min(initial=0), np.ptp(known) if len(known) else 0
        value = (np.nan_to_num(value - least) / (span or 1) * 255).clip(0, 255).astype(np.uint8)
    return thumbnail(value)
