"""The models of a store: the version of each pipeline that its alias names, loaded on demand."""

import re
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.contract.layout import VERSIONS, is_path_segment
from aerotrain.data.dataset import Feature
from aerotrain.serving.alias import served_number, tag_of
from aerotrain.serving.protocol import SIGNATURE, Arrays
from aerotrain.serving.rest import BadRequestError, difference
from aerotrain.store import MANIFEST, CorruptError, MissingError, fetch, open_store

#: Seconds between two looks at the alias of a pipeline.
_POLL = 2.0

#: The manifest of a version of a pipeline, which is written last.
_MODEL = re.compile(rf"[^/]+/{VERSIONS}/[0-9]+/{MANIFEST}$")

#: The most models that are loaded in advance.
_WARM = 3

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

    def signature(self, name: str) -> Any:
        """The signature of that name, by default ``serving_default``.

        Raises:
            BadRequestError: it has none of that name.
        """
        if (name := name or SIGNATURE) not in self.signatures:
            raise BadRequestError(f'Serving signature name: "{name}" not found in signature def')
        return self.signatures[name]


def outputs_of(signature: Any, arrays: Arrays) -> dict[str, Any]:
    """The outputs of a signature, as arrays by name.

    Raises:
        BadRequestError: the inputs are not those of the signature.
    """
    import tensorflow as tf

    specs = signature.structured_input_signature[1]
    if set(arrays) != set(specs):
        raise BadRequestError(
            f"input size does not match signature: {len(arrays)}!={len(specs)} len({{"
            f"{','.join(sorted(arrays))}}}) != len({{{','.join(sorted(specs))}}}). "
            f"({difference(arrays, {n: Feature(each.dtype.name) for n, each in specs.items()})})"
        )
    for name, array in arrays.items():
        if (given := tf.as_dtype(array.dtype)) != specs[name].dtype:
            raise BadRequestError(
                f"input {name} is {given.name}, expected {specs[name].dtype.name}"
            )
        if not specs[name].shape.is_compatible_with(array.shape):
            raise BadRequestError(
                f"input {name} has shape {list(array.shape)}, expected {specs[name].shape}"
            )
    try:
        tensors = {n: tf.constant(each, specs[n].dtype) for n, each in arrays.items()}
        return {name: each.numpy() for name, each in signature(**tensors).items()}
    except (tf.errors.OpError, TypeError, ValueError) as error:
        counts = {
            n: len(arrays[n]) for n in specs if specs[n].shape.rank and specs[n].shape[0] is None
        }
        if len({*counts.values()}) > 1:
            counted = ", ".join(f"{name} has {count}" for name, count in sorted(counts.items()))
            raise BadRequestError(f"inputs have different numbers of records: {counted}") from error
        raise BadRequestError(str(getattr(error, "message", error))) from error


class Models:
    """The models below ``store``, one for each pipeline; files are kept in ``folder``.

    Every ``poll`` seconds, a thread looks which versions are served. While a new one is loaded,
    requests are answered by the one before.
    """

    def __init__(self, store: str, folder: Path, *, poll: float = _POLL) -> None:
        self._store = store.rstrip("/")
        self._folder = folder
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}
        self._closed = threading.Event()
        self._poll = poll
        threading.Thread(target=self._follow, daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _follow(self) -> None:
        while not self._closed.wait(self._poll):
            for model in list(self._models.values()):
                model.follow()

    def warm_up(self) -> None:
        """Load the models that were exported last, before they are asked."""
        try:
            manifests = [each for each in open_store(self._store).list() if _MODEL.match(each.key)]
        except AerotrainError as error:
            print(f"no model is loaded in advance: {error}", flush=True)
            return
        manifests.sort(key=lambda each: -each.modified)
        names = dict.fromkeys(each.key.partition("/")[0] for each in manifests)
        for name in list(names)[:_WARM]:
            with suppress(NotFoundError):  # it was removed meanwhile
                self.get(name)

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
                model = _Model(f"{self._store}/{name}", name, self._folder)
                model.follow()  # the first request waits
                if not model.exists:
                    raise _not_found(name, version)
                self._models[name] = model
        return model.served() if version is None else model.version(version)


class _Model:
    """The versions of one model that are loaded, the last used last."""

    def __init__(self, pipeline: str, name: str, folder: Path) -> None:
        self._store, self._name = open_store(f"{pipeline}/{VERSIONS}"), name
        self._folder = folder / name
        self._loading = threading.Lock()
        self._loaded: dict[int, Loaded] = {}
        self._served: int | None = None
        self._tag: str | None = None

    @property
    def exists(self) -> bool:
        return self._served is not None

    def served(self) -> Loaded:
        assert self._served is not None
        return self._loaded[self._served]

    def version(self, number: int) -> Loaded:
        found = self._loaded.get(number)
        if found is None:
            with self._loading:
                found = self._load(number)
        return found

    def follow(self) -> None:
        """Load the version that is served, if it is another one."""
        with self._loading:
            try:
                tag = tag_of(self._store)
                if tag is not None and tag == self._tag:
                    return
                number = served_number(self._store)
                if number is not None and number != self._served:
                    self._load(number)
                    self._served = number
                    print(f"{self._name}: version {number} is served", flush=True)
                self._tag = tag
            except AerotrainError as error:
                print(f"{self._name}: version {self._served} stays: {error}", flush=True)

    def _load(self, number: int) -> Loaded:
        if number in self._loaded:
            return self._loaded[number]
        folder = self._folder / str(number)
        try:
            fetch(self._store, str(number), folder)
        except (MissingError, CorruptError) as error:
            raise _not_found(self._name, number) from error
        found = load(number, folder)
        self._loaded[number] = found
        for old in [each for each in self._loaded if each not in (number, self._served)]:
            if len(self._loaded) > _MOST:
                del self._loaded[old]
                shutil.rmtree(self._folder / str(old), ignore_errors=True)
        return found


def import_tensorflow() -> None:
    """Import it before the first model does, whose first request would wait for seconds."""
    import tensorflow  # noqa: F401 -- see above


def load(number: int, folder: Path) -> Loaded:
    """The version whose SavedModel is in ``folder``, which has answered its own requests.

    The first answer of each size takes longer. TensorFlow Serving does the same.
    """
    import tensorflow as tf  # when it is needed: it takes seconds and 300 MB

    from aerotrain.serving.requests import read_requests  # imports it, too

    module = tf.saved_model.load(str(folder))
    loaded = Loaded(number, module.signatures, module)
    for exchange in read_requests(folder):
        try:
            outputs_of(loaded.signature(SIGNATURE), dict(exchange.inputs))
        except BadRequestError as error:
            print(f"{folder}: it fails for its own request: {error}", flush=True)
    return loaded


def _not_found(name: str, version: int | None) -> NotFoundError:
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return NotFoundError(f"Servable not found for request: {which}")
