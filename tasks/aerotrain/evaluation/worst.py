"""The records that a model predicts worst, with their features, for people to look at."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.data.dataset import Feature, Schema, Shard
from aerotrain.pages.axis import text_of
from aerotrain.pages.html import thumbnail
from aerotrain.training.input.batches import parse
from aerotrain.training.input.shards import in_turn

#: The most characters of a text, and numbers of a vector, that are shown.
_TEXT, _NUMBERS = 200, 8

#: Pixels of at most this value are shown brighter: the picture would be black.
_DARK = 31

#: The least edge of an array of pixels.
_LEAST_EDGE = 4


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
