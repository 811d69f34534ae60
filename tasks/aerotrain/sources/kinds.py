"""The kinds of source, in one table."""

from collections.abc import Callable, Mapping
from typing import Any

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.sources.archives import ArchiveSource
from aerotrain.sources.arrays import ArraySource
from aerotrain.sources.examples import ExampleSource
from aerotrain.sources.images import ImageSource
from aerotrain.sources.parquet import ParquetSource
from aerotrain.sources.protocol import Source
from aerotrain.sources.python import PythonSource
from aerotrain.sources.text import TextSource

SOURCES: Mapping[str, Callable[[Mapping[str, Any]], Source]] = {
    "parquet": ParquetSource.of,
    "csv": TextSource.csv,
    "jsonl": TextSource.jsonl,
    "images": ImageSource.of,
    "npy": ArraySource.of,
    "npz": ArchiveSource.of,
    "idx": ArraySource.of,
    "tfrecord": ExampleSource.of,
    "python": PythonSource.of,
}


def open_source(description: Mapping[str, Any]) -> Source:
    """The source that a plan's arguments describe. Nothing is listed or read yet.

    Raises:
        SpecError: the kind is unknown, or its options are wrong.
    """
    kind = description["kind"]
    if kind not in SOURCES:
        raise SpecError(
            f"there is no kind of source {kind!r}{nearest(kind, SOURCES)}; "
            f"the kinds are {', '.join(SOURCES)}"
        )
    return SOURCES[kind](description)
