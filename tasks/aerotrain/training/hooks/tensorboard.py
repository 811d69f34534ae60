"""Event files for TensorBoard."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf


class Events:
    """Writes scalars into event files below ``folder``.

    On a full disk, scalars are dropped with one warning, because training matters more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = tf.summary.create_file_writer(str(folder))
        self._has_lost = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the ``values``, by name, of ``step``."""
        with self._outliving_a_full_disk(), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def flush(self) -> None:
        """Write everything that is buffered to the files."""
        with self._outliving_a_full_disk():
            self._writer.flush()

    def files(self) -> Iterator[Path]:
        """The current files."""
        return self._folder.iterdir()

    @contextmanager
    def _outliving_a_full_disk(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            if not self._has_lost:
                print(f"warning: curves for TensorBoard are lost: {error.message}", flush=True)
            self._has_lost = True
