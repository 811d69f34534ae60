"""Examples of a column's values: the begins of texts, some numbers, or small pictures."""

from collections.abc import Sequence
from typing import TypeAlias

from aerotrain.data.dataset import Feature
from aerotrain.data.records.columns import Column
from aerotrain.pages.html import thumbnail

#: The examples of a column, and those of one that may have pictures.
EXAMPLES, PICTURES = 5, 32

#: How many characters of an example are kept: of texts, of others, and of the label of a picture.
_TEXT_LENGTH, _EXAMPLE_LENGTH, _LABEL_LENGTH = 400, 60, 60

#: A string with a zero byte in this many bytes is no text.
_TEXT_BEGIN = 64

#: The least edge of an array of pixels.
_LEAST_EDGE = 4

Label: TypeAlias = int | str | None

#: A text; or a picture: the label of its record, or None, and a PNG file in base64.
Example: TypeAlias = str | tuple[Label, str]


def number_of_examples(feature: Feature) -> int:
    """How many examples are kept of a column."""
    is_file = feature.dtype == "string" and not feature.shape
    return PICTURES if is_file or _has_pixels(feature) else EXAMPLES


def examples_of(column: Column, labels: Column | None) -> list[Example]:
    """An example of each record, of which ``labels`` are the labels."""
    feature, values = column.feature, column.values
    if _has_pixels(feature):
        found = zip(_labels(labels, len(column)), map(thumbnail, values), strict=True)
        return [(label, png or "") for label, png in found]
    if not column.is_text:
        return [str(each.tolist() if each.shape else each)[:_EXAMPLE_LENGTH] for each in values]
    files, size = values.to_pylist(), len(values) // max(1, len(column))
    if feature.shape:
        texts = [_text(each) for each in files]
        rows = (texts[first : first + size] for first in range(0, len(texts), size))
        return [" ".join(row)[:_TEXT_LENGTH] for row in rows]
    pictures = zip(files, _labels(labels, len(files)), map(thumbnail, files), strict=True)
    return [(label, png) if png else _text(file) for file, label, png in pictures]


def _text(value: bytes) -> str:
    """The begin of a text, or the size of what is none."""
    if b"\0" in value[:_TEXT_BEGIN]:
        return f"{len(value):,} bytes"
    return value[: 4 * _TEXT_LENGTH].decode("utf-8", "replace")[:_TEXT_LENGTH]


def _labels(labels: Column | None, records: int) -> Sequence[Label]:
    """The label of each record, if that is one number or text."""
    if labels is None or labels.feature.shape or labels.feature.is_float:
        return [None] * records
    if not labels.is_text:
        return [int(each) for each in labels.values]
    texts = (each.decode("utf-8", "replace") for each in labels.values.to_pylist())
    return [text[:_LABEL_LENGTH] for text in texts]


def _has_pixels(feature: Feature) -> bool:
    """Whether the values are rows of grey, RGB or RGBA pixels."""
    edges, channels = feature.shape[:2], feature.shape[2:]
    return (
        feature.dtype == "uint8"
        and len(edges) == 2
        and min(edges) >= _LEAST_EDGE
        and channels in ((), (1,), (3,), (4,))
    )
