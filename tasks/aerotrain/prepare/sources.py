"""The kinds of source that ``prepare`` reads, in one table."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, Self

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.prepare.layout import fingerprint_of
from aerotrain.user_module import user_module

#: A record's stable key, and its features by name.
Record = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """One part of a source: JSON that says how to read it, and the fingerprint of its content."""

    description: Mapping[str, Any]
    fingerprint: str


class Source(Protocol):
    """Where raw records come from."""

    def parts(self) -> Sequence[Part]:
        """Every part of it as it is now, always in the same order."""
        ...

    def read(self, description: Mapping[str, Any]) -> Iterator[Record]:
        """The records of one part, always in the same order; its keys are the source's own."""
        ...


@dataclass(frozen=True)
class PythonSource:
    """A module of the user's with ``list_parts()`` and ``read_part(part)``.

    A part is any JSON object. Whatever tells one content from another (a checksum, a version
    id) belongs in it: its fingerprint is made of it and of the code of both functions, so a
    change of either prepares the data anew, while a change of the model does not.
    """

    module: ModuleType

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """The source that ``{"kind": "python", "module": ...}`` describes."""
        if set(description) != {"kind", "module"}:
            raise SpecError(
                "a source of kind 'python' has a 'module' and nothing else; it has "
                f"{', '.join(sorted(set(description) - {'kind'})) or 'nothing'}"
            )
        name = description["module"]
        module = user_module(name, "to read the data")
        for function in ("list_parts", "read_part"):
            if not callable(getattr(module, function, None)):
                raise FinalError(
                    f"module {name!r} has no function {function}"
                    f"{nearest(function, dir(module))}; a source needs list_parts() and "
                    "read_part(part)"
                )
        return cls(module)

    def parts(self) -> Sequence[Part]:
        code = [inspect.getsource(self.module.list_parts), inspect.getsource(self.module.read_part)]
        try:
            listed = [json.loads(json.dumps(dict(part))) for part in self.module.list_parts()]
        except AerotrainError:
            raise
        except Exception as error:  # it is the user's code and may raise anything
            raise FinalError(
                f"list_parts of module {self.module.__name__!r} did not return a list of JSON "
                f"objects: {type(error).__name__}: {error}"
            ) from error
        return [Part(part, fingerprint_of([part, code])) for part in listed]

    def read(self, description: Mapping[str, Any]) -> Iterator[Record]:
        return iter(self.module.read_part(description))


SOURCES: Mapping[str, Callable[[Mapping[str, Any]], Source]] = {
    "python": PythonSource.of,
}


def open_source(description: Mapping[str, Any]) -> Source:
    """The source that a plan's arguments describe.

    Raises:
        SpecError: there is no such kind, or it needs something else.
    """
    kind = description["kind"]
    if kind not in SOURCES:
        raise SpecError(
            f"there is no kind of source {kind!r}{nearest(kind, SOURCES)}; "
            f"the kinds are {', '.join(SOURCES)}"
        )
    return SOURCES[kind](description)
