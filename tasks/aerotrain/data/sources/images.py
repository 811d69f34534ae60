"""The source of image folders, one for each class; image bytes are stored unchanged."""

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from PIL.PngImagePlugin import PngImageFile

from aerotrain.contract.errors import counted
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.hashing import short_hash
from aerotrain.data.sources.batch import Batch, Fragment, Rejected, SourceError
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.source import FileSource, Inferred, some
from aerotrain.store.manifest import in_order

_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png")

#: The suffixes of images that are not read.
_UNREAD = (".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".tif", ".tiff", ".webp")

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"

#: The markers of a JPEG before its pixels and at its end, which its pixels cannot contain:
#: https://www.w3.org/Graphics/JPEG/itu-t81.pdf, B.1.1.
_PIXELS, _END = b"\xff\xda", b"\xff\xd9"

#: About how many images are in one fragment, and how many are read concurrently.
_FRAGMENT_IMAGES = 256
_CONCURRENT_READS = 8


class ImageSource(FileSource):
    """JPEG and PNG files; the name of a file's folder is its class.

    A record is ``image``, the bytes of the file, and ``label``, the index of its class in
    ``classes``, which are the folders' names, sorted, unless they are given.
    """

    options = frozenset({"classes"})

    @cached_property
    def files(self) -> list[InputFile]:
        files = self.listed[0]
        images = [file for file in files if _is_image(file)]
        if not images:
            raise SourceError(
                f"the source is empty: there is no name that ends in {', '.join(_SUFFIXES)} in "
                f"{counted(len(files), 'file')} at {self.description['url']}"
            )
        _check_others([file for file in files if not _is_image(file)], images)
        return images

    def facts(self) -> dict[str, str]:
        found = {**super().facts(), "classes": ", ".join(self._classes)}
        if others := [file.url for file in self.listed[0] if not _is_image(file)]:
            found["other files"] = f"{some(others)}; not read"
        return found

    @cached_property
    def _classes(self) -> list[str]:
        given = self.description.get("classes")
        return list(given) if given else sorted({file.folder for file in self.files})

    def described(self) -> Mapping[str, Any]:
        return {**self.description, "classes": self._classes}

    def fragments(self) -> Iterator[Fragment]:
        """Bundles of images by a hash of their keys; a new image changes only its own bundle."""
        count = 1
        while count * _FRAGMENT_IMAGES < len(self.files):
            count *= 2
        bundles: list[list[InputFile]] = [[] for _ in range(count)]
        for file in self.files:
            bundles[int(short_hash(file.key)[:8], 16) % count].append(file)
        for number, bundle in enumerate(bundles):
            if bundle:
                versions = (text for each in bundle for text in (each.url, each.etag))
                yield Fragment(
                    name=f"{self.description['url']}:bundle-{number}-of-{count}",
                    fingerprint=short_hash(*versions),
                    bytes=sum(file.size for file in bundle),
                    description={"files": bundle},
                )

    def infer(self) -> Inferred:
        return Inferred({"image": Feature("string"), "label": Feature("int64")})

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        numbers = {name: number for number, name in enumerate(self._classes)}
        files = [InputFile(*each) for each in description["files"]]
        with ThreadPoolExecutor(_CONCURRENT_READS) as pool:
            read = in_order(pool, lambda each: each.read(0, each.size), files, _CONCURRENT_READS)
            for file, data in zip(files, read, strict=True):
                reason = _why_no_image(data)
                if file.folder not in numbers:
                    reason = f"its class {file.folder!r} is not one of {', '.join(numbers)}"
                images, labels = ([], []) if reason else ([data], [numbers[file.folder]])
                yield Batch(
                    columns={
                        "image": pa.array(images, pa.large_binary()),
                        "label": np.array(labels, np.int64),
                    },
                    file=file.url,
                    offsets=np.zeros(len(images), np.int64),
                    unit="byte",
                    rejected=[Rejected(file.url, 0, "byte", reason)] if reason else [],
                )


def _is_image(file: InputFile) -> bool:
    return file.key.lower().endswith(_SUFFIXES)


def _check_others(others: Sequence[InputFile], images: Sequence[InputFile]) -> None:
    """Check that ``others``, which are not read, are no images and no class.

    Raises:
        SourceError: some are.
    """
    unread = [file.url for file in others if file.key.lower().endswith(_UNREAD)]
    classes = {file.folder for file in images}
    empty = [file.url for file in others if "/" in file.key and file.folder not in classes]
    if unread or empty:
        what = (
            "images in a format that is not read"
            if unread
            else f"in folders without an image ({', '.join(_SUFFIXES)}), which would be no class"
        )
        raise SourceError(
            f"{len(unread or empty):,} of {len(images) + len(others):,} files are {what}: "
            f"{some(unread or empty)}; convert them to JPEG or PNG, move them elsewhere, or name "
            "the others in 'url' by globs"
        )


def _why_no_image(data: bytes) -> str:
    """Why these bytes are not a complete JPEG or PNG; empty if they are.

    The checksums of a PNG show all damage. A JPEG has none, and is not decoded, which takes 100
    times as long: what is looked for is an end after the begin of its pixels.
    """
    if not data:
        return "the file is empty"
    if data.startswith(_JPEG):
        pixels, end = data.rfind(_PIXELS), data.rfind(_END)
        return "" if 0 <= pixels < end else "it is a truncated JPEG"
    if not data.startswith(_PNG):
        return f"it is neither JPEG nor PNG: it begins with {data[:8]!r}"
    try:
        PngImageFile(io.BytesIO(data)).verify()
    except (OSError, SyntaxError, ValueError):  # which quote the damaged bytes
        return "it is a damaged PNG"
    return ""
