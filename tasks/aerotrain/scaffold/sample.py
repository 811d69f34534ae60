"""Records from all over the user's data, read as ``prepare`` reads them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from aerotrain.contract.errors import FinalError, SpecError, counted
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Schema
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.prepare.plan import make_plan
from aerotrain.data.sources import open_source
from aerotrain.data.sources.batch import Batch, Rejected
from aerotrain.data.sources.files import InputFile, files_of
from aerotrain.data.sources.parquet import ParquetSource
from aerotrain.data.sources.source import Source
from aerotrain.data.sources.text import TextSource
from aerotrain.scaffold.columns import SampledColumn
from aerotrain.scaffold.csv_format import csv_options

#: The most records that are looked at, the most values of them, and the most values that are read.
_MOST_RECORDS, _MOST_VALUES, _MOST_READ = 100_000, 2_000_000, 32_000_000

#: The most bytes of images that are read.
_MOST_IMAGE_BYTES = 2**29

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
class SourceSample:
    """Some records of a source, or all.

    ``description`` is that of the source, as ``prepare`` takes it. ``left_out`` are the columns
    that cannot be read, with the reasons, ``doubts`` those of columns that are read as texts for
    now. ``is_whole`` is whether these are all records.
    """

    description: Mapping[str, Any]
    columns: Mapping[str, SampledColumn]
    records: int
    is_whole: bool
    left_out: Mapping[str, str] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImageSample:
    """A folder of images: how many files there are of each class.

    ``rejected`` are those that ``prepare`` will not store; if not ``is_whole``, then of those
    that were read. ``not_read`` names the files that are no images.
    """

    description: Mapping[str, Any]
    counts: Mapping[str, int]
    rejected: Sequence[Rejected]
    is_whole: bool
    not_read: str

    @property
    def records(self) -> int:
        return sum(self.counts.values())


def url_of(address: str) -> str:
    """The URL of a path on this machine, or of a glob of such; a URL is one already."""
    if "://" in address:
        return address
    path = Path(address).resolve()
    return path.as_uri() if path.exists() else f"file://{path}"


def look_at(address: str, nulls: Collection[str] = ()) -> SourceSample | ImageSample:
    """The first records at a path or a URL, of which ``nulls`` are words for a missing value.

    Raises:
        FinalError: there is nothing, or nothing that can be read, or too little.
    """
    url = url_of(address)
    files = files_of(url)
    kind = _kind_of(files, address)
    found = _images(url) if kind == "images" else _records(kind, url, files[0], nulls)
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
    fragments = list(source.fragments())  # each has images from all over the folder
    files = [InputFile(*file) for each in fragments for file in each.description["files"]]
    if len(classes) < 2:
        raise SpecError(
            f"all images are of one class, {classes[0]!r}, so there is nothing to learn; put those "
            "of each class into a folder of its own, and give the folder above them"
        )
    rejected: list[Rejected] = []
    read = bytes_read = 0
    while read < len(fragments) and bytes_read < _MOST_IMAGE_BYTES:
        for batch in source.batches(fragments[read].description, None):
            rejected += batch.rejected
        bytes_read += fragments[read].bytes or 0
        read += 1
    return ImageSample(
        description=source.described(),
        counts=dict(sorted(Counter(file.folder for file in files).items())),
        rejected=rejected,
        is_whole=read == len(fragments),
        not_read=source.facts().get("other files", ""),
    )


def _records(kind: str, url: str, first: InputFile, nulls: Collection[str]) -> SourceSample:
    description: dict[str, Any] = {"kind": kind, "url": url}
    if kind == "csv":
        with first.stream() as stream:
            description |= csv_options(stream.read(_BEGINNING))
    if words := sorted({*description.get("nulls", ()), *nulls}):
        description["nulls"] = words
    source, left_out = open_source(description).readable()
    if kind == "csv" and left_out:  # each value is a text at least
        as_texts = {**description, "types": dict.fromkeys(left_out, "string")}
        doubts = left_out
        source, left_out = open_source(as_texts).readable()
        return replace(_read(source, left_out), doubts=doubts)
    return _read(source, left_out)


def _read(source: Source, left_out: Mapping[str, str]) -> SourceSample:
    """Records from all over the source."""
    schema = source.schema()
    assert isinstance(source, TextSource | ParquetSource)
    assert schema is not None  # files have one
    places, is_whole = source.sampled()
    most = min(_MOST_RECORDS, _MOST_VALUES // len(schema)) // len(places)
    chunks: dict[str, list[Any]] = {name: [] for name in schema}
    read = kept = 0
    for batches in _batches(source, schema):
        count = sum(map(len, batches))
        read += count
        for batch in batches:
            rows = pa.array(range(0, len(batch), -(-count // most) or 1), pa.int64())
            kept += len(rows)
            for name in schema:
                chunks[name] += _chunks(batch.columns[name].take(rows))
    return SourceSample(
        description=source.described(),
        columns={
            name: SampledColumn.of(name, pa.chunked_array(arrays))
            for name, arrays in chunks.items()
            if arrays
        },
        records=kept,
        is_whole=is_whole and kept == read,
        left_out=left_out,
    )


def _batches(source: TextSource | ParquetSource, schema: Schema) -> Iterator[list[Batch]]:
    """The batches that are read at each place of the source."""
    places, _ = source.sampled()
    enough = _MOST_READ // len(places) // len(schema)
    for place in places:
        batches: list[Batch] = []
        for batch in source.read(place, schema):
            batches.append(batch)
            if sum(map(len, batches)) >= enough:
                break
        yield batches


def rejected_by(arguments: PlanArguments) -> Sequence[Rejected]:
    """The records that ``prepare`` will reject by these rules, of those that are read here.

    Raises:
        FinalError: ``prepare`` cannot read the source by these rules.
    """
    plan, _ = make_plan(arguments)
    source = open_source(arguments.source)
    assert isinstance(source, TextSource | ParquetSource)
    assert plan.schema is not None  # files have one
    return [
        each
        for batch in chain.from_iterable(_batches(source, plan.schema))
        for each in (*batch.rejected, *cast_to_schema(batch, plan.schema, arguments).rejected)
    ]


def _chunks(values: Any) -> list[Any]:
    """Arrow's arrays of values, without dictionaries, of which each batch has its own."""
    arrays = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return [
        array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        for array in arrays
    ]
