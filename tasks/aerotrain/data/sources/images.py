"""The source of image folders, one for each class; image bytes are stored unchanged."""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

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

#: A marker that is not within the pixels of a JPEG, as a stuffed zero or a restart are.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")

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
            read = in_order(pool, _whole, files, _CONCURRENT_READS)
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
    if unread:
        raise SourceError(
            f"{len(unread):,} of {len(images) + len(others):,} files are images in a format that "
            f"is not read: {some(unread)}; convert them to JPEG or PNG, move them elsewhere, or "
            "name the others in 'url' by globs"
        )
    classes = {file.folder for file in images}
    empty = [file.url for file in others if "/" in file.key and file.folder not in classes]
    if empty:
        raise SourceError(
            f"folders have files, but no image ({', '.join(_SUFFIXES)}), so they would be no "
            f"class: {some(empty)}; rename their images, or name the others in 'url' by globs"
        )


def _whole(file: InputFile) -> bytes:
    return file.read(0, file.size)


def _why_no_image(data: bytes) -> str:
    """Why these bytes are not a complete JPEG or PNG; empty if they are.

    The checksums of a PNG show all damage. A JPEG has none: its segments, and the markers within
    its pixels, show what is cut off or missing. Neither is decoded, which takes 100 times as long.
    """
    if not data:
        return "the file is empty"
    if data.startswith(_JPEG):
        return _why_no_jpeg(data)
    if data.startswith(_PNG):
        return _why_no_png(data)
    return f"it is neither JPEG nor PNG: it begins with {data[:8]!r}"


def _why_no_png(data: bytes) -> str:
    """https://www.w3.org/TR/png-3/#5Chunk-layout."""
    place = len(_PNG)
    while place < len(data):
        length = int.from_bytes(data[place : place + 4])
        kind, end = data[place + 4 : place + 8], place + 8 + length
        checksum = data[end : end + 4]
        if len(checksum) < 4:
            break
        if zlib.crc32(memoryview(data)[place + 4 : end]) != int.from_bytes(checksum):
            return f"it is a damaged PNG: the checksum at byte {end} is wrong"
        if kind == b"IEND":
            return ""
        place = end + 4
    return "it is a truncated PNG"


def _why_no_jpeg(data: bytes) -> str:
    """https://www.w3.org/Graphics/JPEG/itu-t81.pdf, B.1.1: each segment has a marker and a length.

    The pixels follow the segment SOS, up to the next marker that is not within them.
    """
    place, has_size, has_pixels = 2, False, False
    while place + 4 <= len(data):
        marker = data[place + 1]
        if data[place] != 0xFF or marker in (0x00, 0xD8):
            return f"it is a damaged JPEG: there is no marker at byte {place}"
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD7:  # fill bytes, no length
            place += 1 if marker == 0xFF else 2
            continue
        if marker == 0xD9:
            break
        has_size = has_size or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC))
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
        if marker == 0xDA:
            has_pixels = True
            found = _MARKER.search(data, place)
            place = found.start() if found else len(data)
    if data[place : place + 2] != b"\xff\xd9":
        return "it is a truncated JPEG"
    return "" if has_size and has_pixels else "it is a damaged JPEG: it has no pixels"
