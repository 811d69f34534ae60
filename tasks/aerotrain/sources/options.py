"""The options of a source, as its kind takes them."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.sources.protocol import SourceError


def checked(description: Mapping[str, Any], required: Set[str], optional: Set[str]) -> None:
    """Make sure that a description has what its kind needs, and nothing else.

    Raises:
        SpecError: a key is missing or unknown; the message holds the nearest that is known.
            Or what should name columns does not.
    """
    kind, given = description["kind"], set(description) - {"kind"}
    known = sorted(required | optional)
    for key in sorted(given - required - optional):
        raise SpecError(
            f"a source of kind {kind!r} has no {key!r}{nearest(key, known)}; "
            f"it has {', '.join(known)}"
        )
    for key in sorted(given & {"columns", "names"}):
        check_names(key, description[key])
    for key in sorted(required - given):
        raise SpecError(
            f"a source of kind {kind!r} needs {key!r}; it has "
            f"{', '.join(sorted(given)) or 'nothing'}"
        )


def check_names(key: str, names: Any) -> None:
    """Make sure that an option names columns, none of them twice. Raises ``SpecError``."""
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise SpecError(f"{key!r} must be a list of names, got {names!r}")
    for name in names:
        if list(names).count(name) > 1:
            raise SpecError(f"{key!r} has {name!r} more than once; name each column once")


def check_once(url: str, name: str, found: Sequence[str]) -> None:
    """Refuse a file in which two columns have the name of one that is wanted.

    Raises:
        SourceError: it is such a file.
    """
    if (count := list(found).count(name)) > 1:
        raise SourceError(
            f"{url} has {count} columns that are called {name!r}; give them different names, or "
            "name the columns that are wanted in 'columns'"
        )
