"""NumPy's ``.npz`` archives: the arrays of one file are the features of its records."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from aerotrain.data.dataset import Schema
from aerotrain.data.sources.arrays import Rows, batches_of, check_counts, feature_of, header_of
from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.naming import file_and_span
from aerotrain.data.sources.protocol import Batch, SourceError
from aerotrain.data.sources.whole_files import WholeFiles


@dataclass(frozen=True)
class ArchiveSource(WholeFiles):
    """``.npz`` files below a URL, each a fragment."""

    def schema(self) -> Schema:
        """The schema of the first file."""
        with _arrays(self.files[0]) as arrays:
            return {name: feature_of(name, rows.header) for name, rows in arrays.items()}

    def read(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        file, _ = file_and_span(description)
        with _arrays(file) as arrays:
            count = check_counts({name: rows.header for name, rows in arrays.items()})
            yield from batches_of(arrays, 0, count, file.url)


@contextmanager
def _arrays(file: InputFile) -> Iterator[dict[str, Rows]]:
    """The arrays of an archive, each as a stream positioned at its first row."""
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(file.open())))
            arrays = {}
            for member in archive.namelist():
                stream = stack.enter_context(archive.open(member))
                url = f"{file.url}/{member}"
                arrays[member.removesuffix(".npy")] = Rows(
                    stream, header_of(url, "npy", stream), url
                )
            yield arrays
    except zipfile.BadZipFile as error:
        raise SourceError(
            f"{file.url} is not a complete .npz archive: {error}; it may be truncated: write it "
            "again"
        ) from error
