"""Names, fingerprints and descriptions of fragments that are ranges of a file."""

import hashlib
from collections.abc import Mapping
from typing import Any

from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.protocol import Fragment


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


def short_hash(*texts: str) -> str:
    """A short hash of the texts, as hexadecimal digits."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=10).hexdigest()
