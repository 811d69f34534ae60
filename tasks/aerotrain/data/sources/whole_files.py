"""The base class of sources whose input is the files at a URL."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from aerotrain.data.sources.files import InputFile, files_of
from aerotrain.data.sources.naming import fragment_of
from aerotrain.data.sources.options import checked
from aerotrain.data.sources.protocol import Fragment


@dataclass(frozen=True)
class WholeFiles:
    """The files at the ``url`` of a description, each a fragment unless the kind divides them.

    ``options`` are the further options that the kind takes.
    """

    description: Mapping[str, Any]

    options: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """The source that a plan's arguments describe.

        Raises:
            SpecError: an option is missing or unknown.
        """
        checked(description, {"url"}, cls.options)
        return cls(description)

    @cached_property
    def files(self) -> list[InputFile]:
        """All files, in a stable order."""
        return files_of(self.description["url"])

    def described(self) -> Mapping[str, Any]:
        return self.description

    def fragments(self) -> Iterator[Fragment]:
        for file in self.files:
            yield fragment_of(file, (0, -1), file.size)
