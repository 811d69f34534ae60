"""Validation of a source's options against those of its kind."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.data.sources.protocol import SourceError


def checked(description: Mapping[str, Any], required: Set[str], optional: Set[str]) -> None:
    """Check that a description has the options that its kind requires, and no unknown ones.

    Raises:
        SpecError: a key is missing or unknown; the message names the nearest known one. Or an
            option that should be a list of column names is not.
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
    """Check that an option is a list of unique column names. Raises ``SpecError``."""
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise SpecError(f"{key!r} must be a list of names, got {names!r}")
    for name in names:
        if list(names).count(name) > 1:
            raise SpecError(f"{key!r} has {name!r} more than once; name each column once")


def check_once(url: str, name: str, found: Sequence[str]) -> None:
    """Check that only one column of a file has the requested name.

    Raises:
        SourceError: several columns have it.
    """
    if (count := list(found).count(name)) > 1:
        raise SourceError(
            f"{url} has {count} columns called {name!r}; give them different names, or "
            "name the columns to read in 'columns'"
        )
