"""TensorFlow Serving's REST API: requests and responses as arrays, and a client.

https://www.tensorflow.org/tfx/serving/api_rest describes it. The texts of errors are our own.
"""

import base64
import binascii
import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError, TemporaryError, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.serving.signature import Arrays, fits

#: Seconds until a request has failed.
_TIMEOUT = 30.0

#: What to send instead of a wrong value, by a part of the name of the input's dtype.
_ADVICE = {
    "string": 'send a text, a missing one as "", and bytes in base64 as {"b64": "…"}',
    "bool": "send true or false",
    "float": "send a number such as 1234.5, without quotes, unit and thousands marks, or NaN",
    "int": "send an integer such as 1234, without quotes: of a date, the days since 1970-01-01, of "
    "a time, the microseconds, and where it is missing, what it is filled with in the training",
}


class BadRequestError(FinalError):
    """A request that the model cannot answer: status 400."""


def inputs_of(request: Any, inputs: Schema) -> tuple[Arrays, bool]:
    """The inputs of a model, and whether they are rows: ``instances`` instead of ``inputs``.

    ``request`` is the JSON of its body, ``inputs`` are those of the signature.

    Raises:
        BadRequestError: they are not what the signature takes.
    """
    keys = {"instances", "inputs"}.intersection(request if isinstance(request, dict) else ())
    if len(keys) != 1:
        raise BadRequestError(
            "a request is an object with either 'instances', a list of records, or 'inputs', the "
            f"values of all records by input; {taken(inputs)}"
        )
    (key,) = keys
    if key == "inputs":
        columns = _by_input(request[key], inputs, "'inputs'")
    else:
        if not isinstance(request[key], list) or not request[key]:
            raise BadRequestError("'instances' must be a list of at least one record")
        rows = [
            _by_input(row, inputs, f"record {number}") for number, row in enumerate(request[key])
        ]
        columns = {name: [row[name] for row in rows] for name in inputs}
    arrays = {name: _array(name, columns[name], feature) for name, feature in inputs.items()}
    counts = {name: len(each) for name, each in arrays.items()}
    if len({*counts.values()}) > 1:
        counted = ", ".join(f"{name} has {count}" for name, count in sorted(counts.items()))
        raise BadRequestError(f"inputs have different numbers of records: {counted}")
    return arrays, key == "instances"


def _by_input(values: Any, inputs: Schema, title: str) -> Mapping[str, Any]:
    """The values by the name of the input, which may be omitted if there is one only."""
    if not isinstance(values, dict) or _is_base64(values):
        if len(inputs) > 1:
            raise BadRequestError(f"{title} must name its inputs; {taken(inputs)}")
        return dict.fromkeys(inputs, values)
    if values.keys() != inputs.keys():
        missing = sorted(inputs.keys() - values)
        unknown = [
            # An input has underscores for what its column has besides letters and digits of ASCII.
            name + (nearest(name, missing) or nearest(re.sub("[^A-Za-z0-9]", "_", name), missing))
            for name in sorted(values.keys() - inputs)
        ]
        parts = {"missing": missing, "unknown": unknown}
        said = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
        raise BadRequestError(f"{title} has other inputs: {'; '.join([*said, taken(inputs)])}")
    return values


def taken(inputs: Schema) -> str:
    """The inputs that a model takes; bytes, such as a file, are base64 in JSON."""
    named = ", ".join(f"{name} ({inputs[name].dtype})" for name in sorted(inputs))
    texts = any(each.dtype == "string" for each in inputs.values())
    return f"the model takes {named}" + '; bytes, such as an image, as {"b64": "…"}' * texts


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _array(name: str, values: Any, feature: Feature) -> Any:
    """Nested lists as an array ``(records, *shape)`` of the feature's dtype.

    Raises:
        BadRequestError: a value has another type, or the lists another shape.
    """
    try:
        nested = np.array(values, dtype=object)
    except ValueError:  # lists and values at one level
        nested = np.empty(1, dtype=object)
        nested[0] = values
    kinds = {"string": (bytes,), "bool": (bool,)}
    accepted = kinds.get(feature.dtype, (int, float) if "float" in feature.dtype else (int,))
    converted = []
    for place, value in enumerate(nested.ravel().tolist()):
        found = _bytes_of(value) if feature.dtype == "string" else value
        if type(found) not in accepted:
            shown = json.dumps(value, ensure_ascii=False)
            raise BadRequestError(
                f"the input {name!r} of record {place // max(1, prod(nested.shape[1:]))}, counted "
                f"from 0: {shown if len(shown) <= 200 else f'{shown[:200]}…'} is not of the type "
                f"{feature.dtype}{', or beside lists of another length' * (type(value) is list)}; "
                + next(advice for kind, advice in _ADVICE.items() if kind in feature.dtype)
            )
        converted.append(found)
    if not nested.ndim or not fits(nested.shape[1:], feature.shape):
        raise BadRequestError(
            f"the input {name!r} has the shape {nested.shape}, and must have {feature.shape} for "
            "each record"
        )
    dtype = object if feature.dtype == "string" else feature.dtype
    try:
        return np.array(converted, dtype).reshape(nested.shape)
    except OverflowError as error:
        raise BadRequestError(f"the input {name!r} has a number beyond {dtype}: {error}") from error


def _bytes_of(value: Any) -> Any:
    """A text, or bytes in base64, as bytes; anything else as it is."""
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["b64"], validate=True) if _is_base64(value) else value
    except binascii.Error:
        return value


def response_of(outputs: Arrays, *, rows: bool) -> dict[str, Any]:
    """The response with the outputs, as rows or as columns; a single output has no name."""
    listed = {
        name: _listed(np.asarray(each), as_bytes=name.endswith("_bytes"))
        for name, each in outputs.items()
    }
    if rows:
        return {"predictions": _rows(listed)}
    return {"outputs": next(iter(listed.values())) if len(listed) == 1 else listed}


def instances_of(inputs: Arrays) -> list[Any]:
    """The rows of a request, from which ``inputs_of`` makes these inputs again."""
    return _rows(
        {
            name: _listed(each, as_bytes=each.dtype.kind in "OS" and not _is_text(each))
            for name, each in inputs.items()
        }
    )


def _rows(listed: Mapping[str, list[Any]]) -> list[Any]:
    """Columns as rows; those of a single column have no name."""
    if len(listed) == 1:
        return next(iter(listed.values()))
    return [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]


def _is_text(strings: Any) -> bool:
    try:
        return all(isinstance(each.decode(), str) for each in strings.ravel())
    except UnicodeDecodeError:
        return False


def _listed(array: Any, *, as_bytes: bool) -> Any:
    """An array as nested lists of what JSON has."""
    if array.dtype.kind in "OS":
        values = [
            {"b64": base64.b64encode(each).decode()} if as_bytes else each.decode(errors="replace")
            for each in array.ravel().tolist()
        ]
        return np.array(values, object).reshape(array.shape).tolist()
    if array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)
    if array.dtype == np.float32:  # the shortest decimals that are the same float32
        shortest = np.array([float(str(each)) for each in array.ravel()], np.float64)
        array = shortest.reshape(array.shape)
    return array.tolist()


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
        self._path = endpoint.path
        self._connection = http.client.HTTPConnection(
            endpoint.host, endpoint.port, timeout=_TIMEOUT
        )

    def is_ready(self) -> bool:
        """Whether the server has loaded the version.

        Raises:
            FinalError: it has refused to load it.
        """
        try:
            status = self._ask("GET", self._path)
        except (TemporaryError, FinalError):
            return False  # it is not up, or does not know the version yet
        state = status["model_version_status"][0]
        if state["state"] == "END":
            raise FinalError(f"the server cannot load the version: {state['status']}")
        return bool(state["state"] == "AVAILABLE")

    def predict(self, inputs: Arrays) -> Arrays:
        """The outputs by name; a single one may have the empty name.

        Raises:
            FinalError: the server refuses the request.
            TemporaryError: it does not answer.
        """
        body = json.dumps({"instances": instances_of(inputs)}).encode()
        rows = self._ask("POST", f"{self._path}:predict", body)["predictions"]
        if not isinstance(rows[0], dict) or _is_base64(rows[0]):
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
