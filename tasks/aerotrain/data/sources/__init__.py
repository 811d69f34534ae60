"""Sources of raw records, by kind: each lists its fragments and reads one as batches of columns.

``source`` is what all kinds have in common, ``files`` the input files of most of them, ``declared``
the options about columns, ``batch`` what is read. A module for each kind: ``parquet``, ``csv`` and
``jsonl`` (both are ``text``; all three are ``table``), ``tfrecord``, ``images``, ``arrays``,
``python``. Splits, shards and serialized records are the concern of ``aerotrain.data.prepare``.
"""

from collections.abc import Mapping
from typing import Any

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.data.sources.arrays import ArraySource
from aerotrain.data.sources.csv import CsvSource
from aerotrain.data.sources.images import ImageSource
from aerotrain.data.sources.jsonl import JsonLinesSource
from aerotrain.data.sources.parquet import ParquetSource
from aerotrain.data.sources.python import PythonSource
from aerotrain.data.sources.source import Source
from aerotrain.data.sources.tfrecord import ExampleSource

#: The kinds of source.
SOURCES: Mapping[str, type[Source]] = {
    "parquet": ParquetSource,
    "csv": CsvSource,
    "jsonl": JsonLinesSource,
    "images": ImageSource,
    "npy": ArraySource,
    "tfrecord": ExampleSource,
    "python": PythonSource,
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
