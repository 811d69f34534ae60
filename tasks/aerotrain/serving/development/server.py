"""The server of REST: ``/v1/models/NAME[/versions/N]:predict``, ``…/metadata``, and the status."""

import re
import tempfile
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError
from aerotrain.data.dataset import Feature
from aerotrain.serving.development.models import (
    Loaded,
    Models,
    NotFoundError,
    import_tensorflow,
    outputs_of,
)
from aerotrain.serving.protocol import SIGNATURE
from aerotrain.serving.rest import (
    BadRequestError,
    inputs_of,
    json_of,
    request_of,
    response_of,
)

_MODEL = r"/v1/models/([^/:]+)(?:/versions/(\d{1,18}))?"
_PREDICT, _STATUS = re.compile(f"{_MODEL}:predict"), re.compile(f"{_MODEL}(/metadata)?")

#: The most bytes of a request.
_MOST = 2**28


class DevelopmentServer(ThreadingHTTPServer):
    """Answers for the models in a store, by default at loopback; port 0 is a free one."""

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
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self) -> dict[str, Any]:
        found = _STATUS.fullmatch(self.path)
        if found is None:
            raise BadRequestError(f"Malformed request: GET {self.path}")
        loaded = self._loaded(found[1], found[2])
        return metadata_of(found[1], loaded) if found[3] else _status(loaded.version)

    def _post(self) -> dict[str, Any]:
        body = self._body()
        found = _PREDICT.fullmatch(self.path)
        if found is None:
            raise BadRequestError(f"Malformed request: POST {self.path}")
        return predict(self._loaded(found[1], found[2]), request_of(body))

    def _loaded(self, name: str, version: str | None) -> Loaded:
        return self.server.models.get(name, None if version is None else int(version))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MOST:
            self.close_connection = True
            raise BadRequestError(f"the request needs a Content-Length of at most {_MOST} bytes")
        return self.rfile.read(int(length))

    def _answer(self, respond: Any) -> None:
        status = HTTPStatus.OK
        try:
            document = respond()
        except NotFoundError as error:
            status, document = HTTPStatus.NOT_FOUND, {"error": str(error)}
        except BadRequestError as error:
            status, document = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except AerotrainError as error:
            status, document = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
        content = json_of(document)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: Any) -> None:
        """Log no line for each request."""


def predict(loaded: Loaded, request: Mapping[str, Any]) -> dict[str, Any]:
    """The response to a request for predictions.

    Raises:
        BadRequestError: it is not what the signature takes.
    """
    name = request.get("signature_name", SIGNATURE)
    if not isinstance(name, str):
        raise BadRequestError(
            "JSON Value: not formatted correctly. 'signature_name' key must be a string value."
        )
    signature = loaded.signature(name)
    specs = signature.structured_input_signature[1]
    arrays, rows = inputs_of(request, {n: Feature(s.dtype.name) for n, s in specs.items()})
    return response_of(outputs_of(signature, arrays), rows=rows)


def _status(version: int) -> dict[str, Any]:
    status = {"error_code": "OK", "error_message": ""}
    return {
        "model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": status}]
    }


def metadata_of(name: str, loaded: Loaded) -> dict[str, Any]:
    """The model's signatures, as TensorFlow Serving's ``GetModelMetadata`` shows them."""
    signatures = {
        each: {
            "inputs": {n: _info(s) for n, s in found.structured_input_signature[1].items()},
            "outputs": {n: _info(s) for n, s in found.structured_outputs.items()},
            "method_name": "tensorflow/serving/predict",
        }
        for each, found in loaded.signatures.items()
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(loaded.version)},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _info(spec: Any) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    dims = [{"size": str(-1 if n is None else n), "name": ""} for n in spec.shape]
    number = tf.as_dtype(spec.dtype).as_datatype_enum
    return {
        "dtype": types_pb2.DataType.Name(number),
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": spec.name,
    }


def serve(store: str, port: int) -> None:
    """Serve the models of all pipelines below ``store`` at a port of loopback, for ever.

    It listens when the newest models are loaded.

    Raises:
        OSError: the port cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="aerotrain-serving-") as folder:
        models = Models(store, Path(folder))
        models.warm_up()
        with DevelopmentServer(models, port) as server:
            print(
                f"serving {store} for development at 127.0.0.1, port {server.server_port}",
                flush=True,
            )
            threading.Thread(target=import_tensorflow, daemon=True).start()
            server.serve_forever()
