"""The base of the sources of files: their fragments, samples of them, and Hive partitions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.contract.errors import counted
from aerotrain.data.hashing import short_hash
from aerotrain.data.sources.batch import Fragment, SourceError
from aerotrain.data.sources.files import InputFile, files_of
from aerotrain.data.sources.source import Source

#: Decompressed bytes at a file's start by which its ratio is estimated.
_RATIO_BYTES = 4 * 2**20


class FileSource(Source):
    """The base of sources of the files at a URL; each is a fragment, unless the kind divides it."""

    @cached_property
    def files(self) -> list[InputFile]:
        """All files, in a stable order."""
        return self.listed[0]

    @cached_property
    def listed(self) -> tuple[list[InputFile], list[str]]:
        """The files at the URL, and the names of those that are hidden."""
        hidden: list[str] = []
        return files_of(self.description["url"], hidden), hidden

    def facts(self) -> dict[str, str]:
        size = sum(file.size for file in self.files)
        found = {"files": f"{some([each.url for each in self.files])}; {size:,} bytes"}
        if hidden := self.listed[1]:
            found["hidden files"] = f"{some(hidden)}; not read"
        return {**found, **super().facts()}

    def empty(self, what: str, why: str = "") -> SourceError:
        """The error of a source without any ``what`` in its files."""
        return SourceError(
            f"the source is empty: there is no {what} in {counted(len(self.files), 'file')}, "
            f"{self.files[0].url} the first{why}; check that the input is where the source looks "
            "for it"
        )

    @cached_property
    def compression_ratio(self) -> int:
        """How many times larger compressed files are when read, by the first one: a power of 2.

        Rounded, it and the partitions seldom change when files are added.
        """
        file = next((file for file in self.files if file.compression and file.size), None)
        return 1 if file is None else power_of_2(_ratio_of(file))

    def content_bytes(self, file: InputFile) -> int:
        """About how many bytes the file has when it is read."""
        return file.size * (1 if file.compression is None else self.compression_ratio)

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            yield fragment_of(file, (0, -1), self.content_bytes(file))

    def with_partitions(
        self, file: InputFile, columns: Mapping[str, Any], count: int
    ) -> dict[str, Any]:
        """The ``columns`` of ``count`` records of a file, and those of its Hive partitions.

        Raises:
            SourceError: a column has the name of a partition and other values, or a partition is
                not of its declared type.
        """
        added = {}
        for name, value in file.partitions.items():
            if name in columns and not _all_equal(columns[name], value):
                raise SourceError(
                    f"{file.url} has a column {name!r} with other values than that of its folder, "
                    f"{value!r}; correct one of them, or leave both out with 'skip'"
                )
            repeated = pa.repeat(pa.scalar(value, pa.string()), count)
            try:
                added[name] = self.declared.converted(name, repeated)
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{file.url} is in a folder {name}={value}, which is not of the type "
                    f"{self.declared.types[name]!r} that 'types' declares: {error}"
                ) from error
        return {**columns, **added}


def _ratio_of(file: InputFile) -> int:
    """The ratio of sizes of the beginning of a compressed file, 0 if it is below 1."""
    stored = file.open()
    with pa.CompressedInputStream(pa.PythonFile(stored, "r"), file.compression) as stream:
        try:
            content = len(stream.read(_RATIO_BYTES))
        except OSError:  # reported when it is read
            return 0
        return content // max(1, stored.tell())


def power_of_2(number: int) -> int:
    """The greatest power of 2 up to ``number``, or 1."""
    return 1 << max(1, number).bit_length() - 1


def some(names: Sequence[str]) -> str:
    """A count of files, and the name of the first."""
    return f"{len(names):,}, {names[0]} the first" if len(names) > 1 else names[0]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Up to so many of the items, the first and the last among them."""
    last = len(items) - 1
    places = {n * last // max(1, most - 1) for n in range(most)} if items else ()
    return [items[each] for each in sorted(places)]


def fragment_of(file: InputFile, span: tuple[int, int], content: int) -> Fragment:
    """The fragment ``span`` of ``file``, in the unit of its kind, of about ``content`` bytes."""
    name = f"{file.url}:{span[0]}-{span[1]}"
    return Fragment(
        name=name,
        fingerprint=short_hash(name, file.etag),
        bytes=content,
        description={"file": file, "span": span},
    )


def file_and_span(description: Mapping[str, Any]) -> tuple[InputFile, tuple[int, int]]:
    """The file and the span of a fragment, from its description."""
    start, end = description["span"]
    return InputFile(*description["file"]), (start, end)


def _all_equal(column: Any, value: str | None) -> bool:
    """Whether all values of a column are ``value``, as texts or as numbers."""
    if value is None or column.null_count:
        return value is None and column.null_count == len(column)
    for kind in (pa.string(), pa.float64()):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if pc.all(pc.equal(column.cast(kind), pa.scalar(value).cast(kind))).as_py():
                return True
    return not len(column)
