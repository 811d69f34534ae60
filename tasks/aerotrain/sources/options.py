"""The options of a source, as its kind takes them."""

from collections.abc import Mapping, Set
from typing import Any

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest


def checked(description: Mapping[str, Any], required: Set[str], optional: Set[str]) -> None:
    """Make sure that a description has what its kind needs, and nothing else.

    Raises:
        SpecError: a key is missing or unknown; the message holds the nearest that is known.
    """
    kind, given = description["kind"], set(description) - {"kind"}
    known = sorted(required | optional)
    for key in sorted(given - required - optional):
        raise SpecError(
            f"a source of kind {kind!r} has no {key!r}{nearest(key, known)}; "
            f"it has {', '.join(known)}"
        )
    for key in sorted(required - given):
        raise SpecError(
            f"a source of kind {kind!r} needs {key!r}; it has "
            f"{', '.join(sorted(given)) or 'nothing'}"
        )
