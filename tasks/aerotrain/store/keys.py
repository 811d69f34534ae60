"""Which keys a store takes: relative, and never able to leave the store."""

from aerotrain.contract.errors import SpecError


def checked_key(key: str) -> str:
    """``key`` itself, if it is segments with single slashes between them.

    Raises:
        SpecError: the key is empty or absolute, or has a segment that is empty, ``.`` or ``..``.
    """
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        raise SpecError(
            f"{key!r} is no key of a store: it must be relative, with no empty part, "
            "'.' or '..'; name it like 'runs/1/result.json'"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """``prefix`` as ``""`` or a key that ends in one slash: prefixes are whole folders."""
    return f"{checked_key(prefix.rstrip('/'))}/" if prefix else ""
