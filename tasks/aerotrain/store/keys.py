"""Validation of store keys: relative, without a way out of the store."""

from aerotrain.contract.errors import SpecError


def checked_key(key: str) -> str:
    """Return ``key`` if it consists of segments separated by single slashes.

    Raises:
        SpecError: the key is empty or absolute, or has a segment that is empty, ``.`` or ``..``.
    """
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise SpecError(
            f"{key!r} is not a valid key: it must be relative, with no empty segment, "
            "'.' or '..'; name it like 'runs/1/result.json'"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """Return ``prefix`` as ``""`` or with one slash at its end: prefixes are whole folders."""
    return f"{checked_key(prefix.rstrip('/'))}/" if prefix else ""
