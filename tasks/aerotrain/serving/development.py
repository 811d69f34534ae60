"""A server for development: TensorFlow Serving's REST API for the models of a store.

It answers ``POST /v1/models/NAME[/versions/N]:predict``, and ``GET`` of the same path without
``:predict`` by the status of the version. ``GET /v1/models``, which TensorFlow Serving does not
have, lists all models. It follows the alias of each pipeline.
"""

import json
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.contract.layout import is_path_segment
from aerotrain.reading import Pipeline
from aerotrain.serving.pull import POLL, Puller
from aerotrain.serving.requests import read_requests
from aerotrain.serving.rest import BadRequestError, inputs_of, response_of, taken
from aerotrain.serving.signature import SIGNATURE, Arrays, loaded_inputs
from aerotrain.store import open_store
from aerotrain.training.model.error_messages import sentence_of

_PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d{1,18}))?(:predict)?")

#: The most bytes of a request.
_MOST_BYTES = 2**28


class NotFoundError(FinalError):
    """A model or a version that does not exist: status 404."""


@dataclass(frozen=True)
class Loaded:
    """A version of a model, loaded as TensorFlow Serving loads it."""

    version: int
    #: With its variables, which its signatures do not keep.
    module: Any

    @classmethod
    def of(cls, folder: Path) -> "Loaded":
        """The SavedModel in a folder that its version names, which has answered its own requests.

        The first answer of each size takes longer. TensorFlow Serving does the same.
        """
        loaded = cls(int(folder.name), tf.saved_model.load(str(folder)))
        for exchange in read_requests(folder):
            try:
                _outputs(loaded.module.signatures[SIGNATURE], exchange.inputs)
            except BadRequestError as error:
                print(f"{folder}: it fails for its own request: {error}", flush=True)
        return loaded

    def predict(self, request: Any) -> dict[str, Any]:
        """The response to the JSON of a request for predictions.

        Raises:
            BadRequestError: it is not what the signature takes.
        """
        name = (isinstance(request, dict) and request.get("signature_name")) or SIGNATURE
        signatures = self.module.signatures
        if not isinstance(name, str) or name not in signatures:
            raise BadRequestError(
                f"the model has no signature {name!r}; it has {', '.join(signatures)}"
            )
        arrays, rows = inputs_of(request, loaded_inputs(signatures[name]))
        return response_of(_outputs(signatures[name], arrays), rows=rows)


def _outputs(signature: Any, inputs: Arrays) -> Arrays:
    specs = signature.structured_input_signature[1]
    try:
        tensors = {name: tf.constant(each, specs[name].dtype) for name, each in inputs.items()}
        return {name: each.numpy() for name, each in signature(**tensors).items()}
    except (tf.errors.OpError, TypeError, ValueError) as error:
        said = sentence_of(str(getattr(error, "message", error)))
        raise BadRequestError(
            f"the model cannot compute this request: {said}; {taken(loaded_inputs(signature))}"
        ) from error


class Models:
    """The models below ``store``, one for each pipeline; files are kept in ``folder``.

    Every ``poll`` seconds, a thread looks which versions are served. While a new one is loaded,
    requests are answered by the one before.
    """

    def __init__(self, store: str, folder: Path, *, poll: float = POLL) -> None:
        self._store, self._folder, self._poll = store.rstrip("/"), folder, poll
        self._lock = threading.Lock()
        #: By name and version, which is None for the one that is served.
        self._models: dict[tuple[str, int | None], tuple[Puller, Loaded]] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def get(self, name: str, version: int | None = None) -> Loaded:
        """The version of a model that is served, or the given one, once it is loaded.

        Raises:
            NotFoundError: there is no such model or version.
        """
        if not is_path_segment(name):
            raise NotFoundError(f"there is no model {name!r}")
        with self._lock:
            if (name, version) not in self._models:
                folder = self._folder / name / str(version or "served")
                try:
                    puller = Puller(f"{self._store}/{name}", folder, version)
                    puller.sync()
                except FinalError as error:
                    raise NotFoundError(str(error)) from error
                self._models[name, version] = puller, self._load(name, puller)
        return self._models[name, version][1]

    def listed(self) -> list[dict[str, Any]]:
        """The name of each model of the store, its versions, and the one that is served."""
        found, store = [], open_store(self._store)
        for name in store.folders():
            if versions := Pipeline(store.child(name)).versions():
                served = next((each.name for each in versions if each.is_served), None)
                numbers = [each.name for each in versions]
                found.append({"name": name, "version": served, "versions": numbers})
        return found

    def _load(self, name: str, puller: Puller) -> Loaded:
        loaded = Loaded.of(puller.folder / str(puller.version))
        print(f"{name}: version {loaded.version} is loaded", flush=True)
        return loaded

    def _follow(self) -> None:
        while not self._closed.wait(self._poll):
            for key, (puller, loaded) in list(self._models.items()):
                try:
                    puller.sync()
                    if puller.version != str(loaded.version):
                        self._models[key] = puller, self._load(key[0], puller)
                except AerotrainError as error:
                    print(f"{key[0]}: version {loaded.version} stays: {error}", flush=True)


_STATUS: Mapping[type[AerotrainError], HTTPStatus] = {
    NotFoundError: HTTPStatus.NOT_FOUND,
    BadRequestError: HTTPStatus.BAD_REQUEST,
}


class DevelopmentServer(ThreadingHTTPServer):
    """Answers for models, by default at loopback; port 0 is a free one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, models: Models, port: int, host: str = "127.0.0.1") -> None:
        self.models = models
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head and the body in one packet: for the second one, TCP would wait 40 ms.
    wbufsize = -1
    server: DevelopmentServer

    def do_GET(self) -> None:
        self._answer(self._status)

    def do_POST(self) -> None:
        self._answer(self._predict)

    def _status(self) -> dict[str, Any]:
        if self.path == "/v1/models":
            return {"models": self.server.models.listed()}
        version = str(self._loaded("GET", None).version)
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": version, "state": "AVAILABLE", "status": status}
        return {"model_version_status": [state]}

    def _predict(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MOST_BYTES:
            self.close_connection = True
            raise BadRequestError(
                f"the request needs a Content-Length of at most {_MOST_BYTES} bytes"
            )
        content = self.rfile.read(int(length))
        loaded = self._loaded("POST", ":predict")
        try:
            request = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadRequestError(
                f"the request is no JSON: {error}; send an object with 'instances', a list of "
                'records, in which bytes, such as an image, are {"b64": "…"}'
            ) from error
        return loaded.predict(request)

    def _loaded(self, method: str, verb: str | None) -> Loaded:
        """The version that the path names, which ends with ``verb``."""
        found = _PATH.fullmatch(self.path)
        if found is None or found[3] != verb:
            raise BadRequestError(f"there is no {method} {self.path} here")
        return self.server.models.get(found[1], None if found[2] is None else int(found[2]))

    def _answer(self, respond: Callable[[], dict[str, Any]]) -> None:
        status = HTTPStatus.OK
        try:
            document = respond()
        except AerotrainError as error:
            status = _STATUS.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)
            document = {"error": str(error)}
        content = json.dumps(document, ensure_ascii=False).encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: Any) -> None:
        """Log no line for each request."""


def serve(store: str, port: int) -> None:
    """Serve the models of all pipelines below ``store`` at a port of loopback, for ever.

    Raises:
        OSError: the port cannot be used.
    """
    with (
        tempfile.TemporaryDirectory(prefix="aerotrain-serving-") as folder,
        DevelopmentServer(Models(store, Path(folder)), port) as server,
    ):
        print(
            f"serving {store} for development: POST to "
            f"http://127.0.0.1:{server.server_port}/v1/models/PIPELINE:predict",
            flush=True,
        )
        server.serve_forever()
