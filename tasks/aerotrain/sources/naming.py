"""What a piece of a file is called, and how it is found again."""

import hashlib
from collections.abc import Mapping
from typing import Any

from aerotrain.sources.files import InputFile
from aerotrain.sources.protocol import Fragment


def fragment_of(file: InputFile, span: tuple[int, int], content: int) -> Fragment:
    """The piece of ``file`` from one place to another; where they are, its kind knows."""
    name = f"{file.url}:{span[0]}-{span[1]}"
    return Fragment(
        name=name,
        fingerprint=short_hash(name, file.etag),
        bytes=content,
        description={"file": file, "span": span},
    )


def file_and_span(description: Mapping[str, Any]) -> tuple[InputFile, tuple[int, int]]:
    """The file and the span of a piece that ``fragment_of`` described."""
    start, end = description["span"]
    return InputFile(*description["file"]), (start, end)


def short_hash(*texts: str) -> str:
    """A short name for these texts: equal texts, equal names."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=10).hexdigest()
