"""The kinds of source, in one table."""

from collections.abc import Callable, Mapping
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.data.sources.archives import ArchiveSource
from aerotrain.data.sources.arrays import ArraySource
from aerotrain.data.sources.examples import ExampleSource
from aerotrain.data.sources.images import ImageSource
from aerotrain.data.sources.parquet import ParquetSource
from aerotrain.data.sources.protocol import Source
from aerotrain.data.sources.python import PythonSource
from aerotrain.data.sources.text import TextSource

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
