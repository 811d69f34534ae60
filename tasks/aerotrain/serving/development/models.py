"""The models of a store: the version of each pipeline that its alias names, loaded on demand."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.contract.names import is_path_segment
from aerotrain.serving.alias import served_version
from aerotrain.serving.versions import FOLDER
from aerotrain.store import CorruptError, MissingError, fetch, open_store

#: Seconds between two requests for the alias of a pipeline.
_POLL = 2.0

#: Versions of a pipeline that are loaded at once: the served one, the one before, one asked for.
_MOST = 3


class NotFoundError(FinalError):
    """A model or a version that does not exist: status 404."""


@dataclass(frozen=True)
class Loaded:
    """A version of a model, loaded as TensorFlow Serving loads it."""

    version: int
    signatures: Any
    #: Kept, because its functions do not keep its variables.
    module: Any


class Models:
    """The models below ``store``, one for each pipeline; files are kept in ``folder``.

    While a new version is loaded, requests are answered by the one before.
    """

    def __init__(
        self, store: str, folder: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store.rstrip("/")
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}

    def get(self, name: str, version: int | None = None) -> Loaded:
        """The version of a model that is served, or the given one.

        Raises:
            NotFoundError: there is no such model or version.
        """
        if not is_path_segment(name):
            raise _not_found(name, version)
        with self._lock:
            model = self._models.get(name)
            if model is None:
                url = f"{self._store}/{name}"
                model = self._models[name] = _Model(url, name, self._folder, self._clock)
        return model.served() if version is None else model.version(version)


class _Model:
    """The versions of one model that are loaded, the last used last."""

    def __init__(self, pipeline: str, name: str, folder: Path, clock: Callable[[], float]) -> None:
        self._pipeline, self._name = pipeline, name
        self._folder = folder / name
        self._clock = clock
        self._loading = threading.Lock()
        self._loaded: dict[int, Loaded] = {}
        self._served: int | None = None
        self._checked = -_POLL

    def served(self) -> Loaded:
        if self._served is None:
            self._follow()  # the first request waits
        elif self._clock() - self._checked >= _POLL and not self._loading.locked():
            threading.Thread(target=self._follow, daemon=True).start()
        number = self._served
        found = None if number is None else self._loaded.get(number)
        if found is None:
            raise _not_found(self._name, None)
        return found

    def version(self, number: int) -> Loaded:
        found = self._loaded.get(number)
        if found is None:
            with self._loading:
                found = self._load(number)
        return found

    def _follow(self) -> None:
        """Load the version that the alias names, if it is another one."""
        with self._loading:
            self._checked = self._clock()
            try:
                url = served_version(self._pipeline)
                if url is None:
                    raise _not_found(self._name, None)
                number = int(url.rpartition("/")[2])
                if number != self._served:
                    self._load(number)
                    self._served = number
                    print(f"{self._name}: version {number} is served", flush=True)
            except AerotrainError as error:
                if self._served is None:
                    raise
                print(f"{self._name}: version {self._served} stays: {error}", flush=True)

    def _load(self, number: int) -> Loaded:
        if number in self._loaded:
            return self._loaded[number]
        import tensorflow as tf  # when it is needed: it takes seconds and 300 MB

        folder = self._folder / str(number)
        try:
            fetch(open_store(f"{self._pipeline}/{FOLDER}"), str(number), folder)
        except (MissingError, CorruptError) as error:
            raise _not_found(self._name, number) from error
        module = tf.saved_model.load(str(folder))
        found = Loaded(number, module.signatures, module)
        self._loaded[number] = found
        for old in [each for each in self._loaded if each not in (number, self._served)]:
            if len(self._loaded) > _MOST:
                del self._loaded[old]
                shutil.rmtree(self._folder / str(old), ignore_errors=True)
        return found


def _not_found(name: str, version: int | None) -> NotFoundError:
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return NotFoundError(f"Servable not found for request: {which}")
