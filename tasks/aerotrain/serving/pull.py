"""A local folder with the version of a model that is served, for TensorFlow Serving to watch.

TensorFlow Serving reads no bucket, and serves the greatest number in the folder that it watches. So
the folder has one version at a time, which appears whole by a rename; only then those before are
removed. A server loads the new version before it unloads the one that it has in memory.
"""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.layout import VERSIONS
from aerotrain.serving.alias import served_number, tag_of
from aerotrain.store import CorruptError, MissingError, fetch, open_store

#: Seconds between two looks at the alias.
POLL = 2.0

_VERSION = re.compile(r"[1-9][0-9]*")

#: The prefix of a folder that is being written or removed; a server ignores what is no number.
_PARTIAL = ".partial-"


class Puller:
    """Keeps ``folder`` as the version that the pipeline with the store ``pipeline`` serves.

    With ``pinned``, it is that version, whatever is served.
    """

    def __init__(self, pipeline: str, folder: Path, pinned: int | None = None) -> None:
        self._pinned = pinned
        self._store = open_store(f"{pipeline.rstrip('/').removesuffix(f'/{VERSIONS}')}/{VERSIONS}")
        self.folder = folder
        self._tag: str | None = None
        self.version: str | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left)

    def sync(self) -> bool:
        """Bring the folder up to date; returns whether it changed.

        One request, where the alias has not changed.

        Raises:
            FinalError: no version is served, or it is damaged.
            TemporaryError: the store is unavailable; the folder stays as it is.
        """
        tag = None if self._pinned else tag_of(self._store)
        if tag is not None and tag == self._tag:
            return False
        number = self._pinned or served_number(self._store)
        if number is None:
            raise FinalError(f"{self._store.url} has no version yet: export one")
        version = str(number)
        changed = not (self.folder / version).exists()
        if changed:
            self._fetch(version)
        for other in self.folder.iterdir():
            if _VERSION.fullmatch(other.name) and other.name != version:
                # Not in place: what a killed puller leaves of it must not look like a version.
                removed = self.folder / f"{_PARTIAL}{other.name}"
                other.rename(removed)
                shutil.rmtree(removed)
                changed = True
        self._tag, self.version = tag, version
        return changed

    def _fetch(self, version: str) -> None:
        partial = self.folder / f"{_PARTIAL}{version}"
        try:
            fetch(self._store, version, partial)
            partial.rename(self.folder / version)
        except (MissingError, CorruptError) as error:
            raise FinalError(f"version {version} cannot be pulled: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def follow(
    puller: Puller, *, poll: float = POLL, pause: Callable[[float], None] = time.sleep
) -> None:
    """Keep the folder up to date until the process ends, whatever happens to the store."""
    while True:
        try:
            if puller.sync():
                print(f"the folder has version {puller.version}", flush=True)
        except (TemporaryError, FinalError) as error:
            print(f"the folder stays as it is: {error}", flush=True)
        pause(poll)
