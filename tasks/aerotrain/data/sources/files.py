"""The source of files at a URL, and the fragments of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa

from aerotrain.data.hashing import short_hash
from aerotrain.data.sources.declared import DeclaredType
from aerotrain.data.sources.input_file import InputFile
from aerotrain.data.sources.listing import files_of
from aerotrain.data.sources.protocol import Fragment, Gap, check_options

#: Decompressed bytes at a file's start by which its ratio is estimated.
_RATIO_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FileSource:
    """The base of sources that read the files at a URL, each a fragment unless the kind divides it.

    ``options`` are the further options that the kind takes.
    """

    description: Mapping[str, Any]

    options: ClassVar[Set[str]] = frozenset()

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """The source that a plan's arguments describe.

        Raises:
            SpecError: an option is missing or unknown.
        """
        check_options(description, {"url"}, cls.options)
        return cls(description)

    @cached_property
    def declared(self) -> DeclaredType:
        """What the description declares of the columns."""
        return DeclaredType.of(self.description)

    @cached_property
    def files(self) -> list[InputFile]:
        """All files, in a stable order."""
        return self.listed[0]

    @cached_property
    def listed(self) -> tuple[list[InputFile], list[str]]:
        """The files at the URL, and the names of those that are hidden."""
        hidden: list[str] = []
        return files_of(self.description["url"], hidden), hidden

    @cached_property
    def gaps(self) -> defaultdict[str, Gap]:
        """The integers that are missing in what ``schema`` has read, by column."""
        return defaultdict(Gap)

    def facts(self) -> dict[str, str]:
        size = sum(file.size for file in self.files)
        found = {"files": f"{some([each.url for each in self.files])}; {size:,} bytes"}
        if hidden := self.listed[1]:
            found["hidden files"] = f"{some(hidden)}; not read"
        return found

    def described(self) -> Mapping[str, Any]:
        return self.description

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


class Sampled(NamedTuple):
    """A part of a file that stands for all files: ``description`` is that of a fragment.

    ``size`` is in the unit of offsets, ``share`` is that of all bytes.
    """

    file: InputFile
    span: tuple[int, int]
    size: int
    share: float

    @property
    def description(self) -> Mapping[str, Any]:
        return {"file": self.file, "span": self.span}


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
    """The file and the span of a fragment, from the description by ``fragment_of``."""
    start, end = description["span"]
    return InputFile(*description["file"]), (start, end)
