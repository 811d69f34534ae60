"""A client of a server with TensorFlow Serving's REST API."""

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.serving.protocol import Arrays
from aerotrain.serving.rest import instances_of, json_of

#: Seconds until a request has failed.
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Endpoint:
    """A version of a model at a server.

    If ``version`` is None, it is the one that is served.
    """

    host: str
    port: int
    model: str
    version: int | None = None

    @property
    def path(self) -> str:
        path = f"/v1/models/{self.model}"
        return path if self.version is None else f"{path}/versions/{self.version}"


class Client:
    """Asks for predictions, with rows as JSON; for one thread at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection = http.client.HTTPConnection(
            endpoint.host, endpoint.port, timeout=_TIMEOUT
        )

    def is_ready(self) -> bool:
        """Whether the server has loaded the version.

        Raises:
            FinalError: it has refused to load it.
        """
        try:
            status = self._ask("GET", self._endpoint.path)
        except (TemporaryError, FinalError):
            return False  # it is not up, or does not know the version yet
        state = status["model_version_status"][0]
        if state["state"] == "END":
            raise FinalError(f"the server cannot load the version: {state['status']}")
        return bool(state["state"] == "AVAILABLE")

    def predict(self, inputs: Arrays) -> Mapping[str, Any]:
        """The outputs by name; a single one may have the empty name.

        Raises:
            FinalError: the server refuses the request.
            TemporaryError: it does not answer.
        """
        body = json_of({"instances": instances_of(inputs)})
        rows = self._ask("POST", f"{self._endpoint.path}:predict", body)["predictions"]
        if not isinstance(rows[0], dict) or set(rows[0]) == {"b64"}:
            return {"": np.array(_decoded(rows))}
        return {name: np.array(_decoded([row[name] for row in rows])) for name in rows[0]}

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        try:
            self._connection.request(method, path, body)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise TemporaryError(f"{method} {path}: the server does not answer: {error}") from error
        if response.status != http.HTTPStatus.OK:
            raise FinalError(
                f"{method} {path}: {response.status} {content.decode(errors='replace').strip()}"
            )
        return json.loads(content)


def _decoded(values: Any) -> Any:
    """Nested lists, with base64 as bytes and texts as UTF-8."""
    if isinstance(values, list):
        return [_decoded(each) for each in values]
    if isinstance(values, dict):
        return base64.b64decode(values["b64"])
    return values.encode() if isinstance(values, str) else values
