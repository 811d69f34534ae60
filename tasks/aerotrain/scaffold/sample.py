"""The first records of the user's data, read as ``prepare`` reads them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError, counted
from aerotrain.data.records import FLATTEN, is_list_type
from aerotrain.data.sources import DeclaredSource, open_source
from aerotrain.data.sources.input_file import InputFile
from aerotrain.data.sources.listing import files_of
from aerotrain.scaffold.columns import Column
from aerotrain.scaffold.csv_format import csv_options

#: The most records that are read, and the most values.
_MOST_RECORDS, _MOST_VALUES = 10_000, 2_000_000

#: The fewest records of which each split gets some.
FEWEST = 30

#: Bytes at the start of a file by which the options of its kind are found.
_BEGINNING = 2**20

#: The kind of source by the end of a file's name.
_KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".jpg": "images",
    ".jpeg": "images",
    ".png": "images",
}

_COMPRESSED = (".gz", ".zst", ".bz2")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first records of a source.

    ``description`` is that of the source, as ``prepare`` takes it. ``left_out`` are the columns
    that cannot be read, with the reasons; ``rejected`` counts the records that cannot be, of which
    ``rejection`` is where the first is, and why.
    ``is_whole`` is whether these are all records.
    """

    description: Mapping[str, Any]
    columns: Mapping[str, Column]
    records: int
    is_whole: bool
    left_out: Mapping[str, str] = field(default_factory=dict)
    rejected: int = 0
    rejection: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageSample:
    """A folder of images: how many there are of each class."""

    description: Mapping[str, Any]
    counts: Mapping[str, int]

    @property
    def records(self) -> int:
        return sum(self.counts.values())


def url_of(address: str) -> str:
    """The URL of a path on this machine, or of a glob of such; a URL is one already."""
    if "://" in address:
        return address
    path = Path(address).resolve()
    return path.as_uri() if path.exists() else f"file://{path}"


def look_at(address: str) -> Sample | ImageSample:
    """The first records at a path or a URL.

    Raises:
        FinalError: there is nothing, or nothing that can be read, or too little.
    """
    url = url_of(address)
    files = files_of(url)
    kind = _kind_of(files, address)
    found = _images(url) if kind == "images" else _records(kind, url, files[0])
    if found.records < FEWEST:
        raise FinalError(
            f"{address} has {counted(found.records, 'record')}, and a training, its validation and "
            f"its test need at least {FEWEST} together; collect more"
        )
    return found


def _kind_of(files: list[InputFile], address: str) -> str:
    """The kind that most of the files have by their names.

    Raises:
        SpecError: none has a name of a kind that ``aerotrain new`` reads.
    """
    kinds = Counter(_KINDS.get(_suffix(file.key)) for file in files)
    known = [(kind, count) for kind, count in kinds.most_common() if kind is not None]
    if not known:
        raise SpecError(
            f"{files[0].key}, the first file of {address}, has no name that ends in "
            f"{', '.join(_KINDS)}; rename it, or write the DAG by hand, as docs/data.md shows"
        )
    return known[0][0]


def _suffix(name: str) -> str:
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def _images(url: str) -> ImageSample:
    source = open_source({"kind": "images", "url": url})
    classes = source.described()["classes"]
    counts = Counter(
        InputFile(*file).folder
        for fragment in source.fragments()
        for file in fragment.description["files"]
    )
    if len(classes) < 2:
        raise SpecError(
            f"all images are of one class, {classes[0]!r}, so there is nothing to learn; put those "
            "of each class into a folder of its own, and give the folder above them"
        )
    return ImageSample(description=source.described(), counts=dict(sorted(counts.items())))


def _records(kind: str, url: str, first: InputFile) -> Sample:
    description: dict[str, Any] = {"kind": kind, "url": url}
    if kind == "csv":
        with first.stream() as stream:
            description |= csv_options(stream.read(_BEGINNING))
    left_out = _nested(first) if kind == "parquet" else {}
    if left_out:
        description["skip"] = list(left_out)
    try:
        _ = open_source(description).found
    except AerotrainError as error:
        unreadable = _unreadable(description, first)
        if not unreadable:
            raise
        left_out |= unreadable
        description["skip"] = [*description.get("skip", []), *unreadable]
        if not _names(description, first) - set(description["skip"]):
            raise FinalError(f"no column can be read: {error}") from error
    return _read(open_source(description), left_out)


def _nested(file: InputFile) -> dict[str, str]:
    """The columns of a Parquet file that are lists or have parts, with their types as reasons."""
    with file.open() as stream:
        fields = list(pq.read_schema(stream))
    nested = (each for each in fields if pa.types.is_nested(each.type))
    return {each.name: f"is {each.type}, {_why_left_out(each.type)}" for each in nested}


def _why_left_out(kind: pa.DataType) -> str:
    if is_list_type(kind) and not pa.types.is_nested(kind.value_type):
        return "which transform would have to use"
    return f"which no record can hold; {FLATTEN}"


def _unreadable(description: Mapping[str, Any], first: InputFile) -> dict[str, str]:
    """The columns that cannot be read even alone, with the reasons."""
    reasons = {}
    for name in sorted(_names(description, first) - set(description.get("skip", []))):
        try:
            _ = open_source({**description, "columns": [name]}).found
        except AerotrainError as error:
            reasons[name] = str(error)
    return reasons


def _names(description: Mapping[str, Any], file: InputFile) -> set[str]:
    """The names of the columns of a file."""
    source: Any = open_source(description).source
    if description["kind"] == "csv":
        return set(source.header(file))
    if description["kind"] == "parquet":
        with file.open() as stream:
            return set(pq.read_schema(stream).names)
    with file.stream() as stream:
        lines = stream.read(_BEGINNING).splitlines()
    names = {name for line in lines[:100] for name in _fields(line)}
    # A field may be null on some lines, and an object on others.
    return {name for name in names if not any(each.startswith(f"{name}.") for each in names)}


def _fields(line: bytes) -> Iterator[str]:
    try:
        record = json.loads(line)
    except ValueError:
        return
    if isinstance(record, dict):
        yield from _paths(record)


def _paths(record: Mapping[str, Any]) -> Iterator[str]:
    """The names of a record's columns, of which those of a nested object are paths."""
    for name, value in record.items():
        if isinstance(value, dict) and not any("." in each for each in (name, *value)):
            yield from (f"{name}.{path}" for path in _paths(value))
        else:
            yield name


def _read(source: DeclaredSource, left_out: Mapping[str, str]) -> Sample:
    schema = source.schema()
    assert schema is not None  # files have one
    most = min(_MOST_RECORDS, _MOST_VALUES // max(1, len(schema)))
    chunks: dict[str, list[Any]] = {name: [] for name in schema}
    records = rejected = 0
    rejection = ""
    is_whole = True
    for fragment in source.fragments():
        for batch in source.read(fragment.description, schema):
            rejected += len(batch.rejected)
            if batch.rejected and not rejection:
                rejection = f"{batch.rejected[0].place}: {batch.rejected[0].reason}"
            part = batch[slice(0, most - records)]
            is_whole = is_whole and len(part) == len(batch)
            records += len(part)
            for name in schema:
                chunks[name] += _chunks(part.columns[name])
            if not is_whole:
                break
        if not is_whole:
            break
    columns = {
        name: Column.of(name, pa.chunked_array(each)) for name, each in chunks.items() if each
    }
    return Sample(
        description=source.described(),
        columns=columns,
        records=records,
        is_whole=is_whole,
        left_out=left_out,
        rejected=rejected,
        rejection=rejection,
    )


def _chunks(values: Any) -> list[Any]:
    """Arrow's arrays of values, without dictionaries, of which each batch has its own."""
    arrays = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return [
        each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in arrays
    ]
