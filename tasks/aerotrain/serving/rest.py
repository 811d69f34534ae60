"""Requests and responses of TensorFlow Serving's REST API: JSON to arrays, and arrays to JSON.

https://www.tensorflow.org/tfx/serving/api_rest describes it. Errors begin as there:
https://github.com/tensorflow/serving/blob/master/tensorflow_serving/util/json_tensor.cc.
"""

import base64
import binascii
import json
import re
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Feature, Schema

#: Inputs and outputs as arrays by name.
Arrays = dict[str, Any]

#: TensorFlow's names of types in messages, where they are not NumPy's.
_TYPES = {"float32": "float", "float64": "double"}


class BadRequestError(FinalError):
    """A request that the model cannot answer: status 400."""


def request_of(body: bytes) -> dict[str, Any]:
    """The JSON object of a request's body. Raises ``BadRequestError``."""
    if not body:
        raise BadRequestError("JSON Parse error: The document is empty")
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"JSON Parse error: {error}") from error
    if not isinstance(request, dict):
        raise BadRequestError(f"JSON Value: {_text(request)} Is not object")
    return request


def inputs_of(request: Mapping[str, Any], inputs: Schema) -> tuple[Arrays, bool]:
    """The inputs of a model, and whether they are rows: ``instances`` instead of ``inputs``.

    ``inputs`` are those of the signature.

    Raises:
        BadRequestError: they are not what the signature takes.
    """
    if "instances" in request and "inputs" in request:
        raise BadRequestError(
            "JSON Value: Not formatted correctly expecting only one of 'inputs' or 'instances' "
            "keys to exist"
        )
    if "instances" in request:
        return _of_rows(request["instances"], inputs), True
    if "inputs" in request:
        return _of_columns(request["inputs"], inputs), False
    raise BadRequestError("Missing 'inputs' or 'instances' key")


def _of_rows(rows: Any, inputs: Schema) -> Arrays:
    if not isinstance(rows, list):
        raise BadRequestError("JSON Value: Excepting 'instances' to be an list/array")
    if not rows:
        raise BadRequestError("JSON Value: No values in 'instances' array")
    if not _is_object(rows[0]):
        if len(inputs) > 1:
            raise BadRequestError(
                "instances is a plain list, but expecting list of objects as multiple input "
                "tensors required as per tensorinfo_map"
            )
        (name,) = inputs
        rows = [{name: each} for each in rows]
    for number, row in enumerate(rows):
        if not _is_object(row):
            raise BadRequestError(f"Expecting object but got list at item {number} of input list")
        for name in row:
            if name not in inputs:
                raise BadRequestError(
                    f"Failed to process element: {number} key: {name} of 'instances' list. Error: "
                    f"INVALID_ARGUMENT: JSON object: does not have named input: {name} "
                    f"({difference(row, inputs)})"
                )
        if set(row) != set(inputs):
            raise BadRequestError(
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{_text(row)} keys must be equal to: {','.join(sorted(inputs))} "
                f"({difference(row, inputs)})"
            )
    return {name: _array(name, [row[name] for row in rows], each) for name, each in inputs.items()}


def _of_columns(columns: Any, inputs: Schema) -> Arrays:
    if not _is_object(columns):
        if len(inputs) > 1:
            raise BadRequestError(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        (name,) = inputs
        columns = {name: columns}
    for name in inputs:
        if name not in columns:
            raise BadRequestError(
                f"Missing named input: {name} in 'inputs' object. ({difference(columns, inputs)})"
            )
    return {name: _array(name, columns[name], each) for name, each in inputs.items()}


def difference(given: Collection[str], inputs: Schema) -> str:
    """Which inputs are missing in ``given``, which there are not, and which the model takes."""
    absent = inputs.keys() - given
    missing = ", ".join(sorted(absent))
    unknown = ", ".join(
        # An input has underscores for what its column has besides letters and digits of ASCII.
        name + (nearest(name, absent) or nearest(re.sub("[^A-Za-z0-9]", "_", name), absent))
        for name in sorted({*given} - inputs.keys())
    )
    takes = ", ".join(f"{name} ({inputs[name].dtype})" for name in sorted(inputs))
    parts = [f"missing: {missing}" if missing else "", f"unknown: {unknown}" if unknown else ""]
    return "; ".join([*filter(None, parts), f"the model takes {takes}"])


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _array(name: str, values: Any, feature: Feature) -> Any:
    """Nested lists as an array of the feature's dtype; messages call it the input ``name``."""
    shape = _shape(values)
    flat: list[Any] = []
    try:
        _flatten(values, shape, feature.dtype, flat)
    except BadRequestError as error:
        number = len(flat) // max(1, prod(shape[1:]))
        raise BadRequestError(
            f"{error}; this is the input {name!r} of record {number}, counted from 0"
        ) from error
    dtype = object if feature.dtype == "string" else feature.dtype
    try:
        return np.array(flat, dtype).reshape(shape)
    except OverflowError as error:
        raise BadRequestError(f"JSON Value: {error}; this is in the input {name!r}") from error


def _shape(values: Any) -> list[int]:
    if not isinstance(values, list):
        return []
    return [len(values), *(_shape(values[0]) if values else [])]


def _flatten(values: Any, shape: Sequence[int], dtype: str, flat: list[Any]) -> None:
    if not isinstance(values, list):
        if shape:
            raise BadRequestError(f"JSON Value: {_text(values)} found at incorrect level")
        flat.append(_value(values, dtype))
        return
    if not shape:
        raise BadRequestError("Encountered list at unexpected level")
    if len(values) != shape[0]:
        raise BadRequestError(
            f"Encountered list at unexpected size: {len(values)} expected size: {shape[0]}"
        )
    for each in values:
        _flatten(each, shape[1:], dtype, flat)


def _value(value: Any, dtype: str) -> Any:
    if dtype == "string":
        if _is_base64(value):
            try:
                return base64.b64decode(value["b64"], validate=True)
            except binascii.Error as error:
                raise BadRequestError("Unable to base64 decode") from error
        if isinstance(value, str):
            return value.encode()
    elif dtype == "bool":
        if isinstance(value, bool):
            return value
    elif (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and ("float" in dtype or isinstance(value, int))
    ):
        return value
    missing = '; send a missing text as ""' if dtype == "string" else ""
    if "float" in dtype:
        missing = "; send a missing number as NaN"
    raise BadRequestError(
        f"JSON Value: {_text(value)} Type: {_json_type(value)} is not of expected type: "
        f"{_TYPES.get(dtype, dtype)}{missing if value is None else ''}"
    )


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    kinds = {type(None): "Null", dict: "Object", list: "Array", str: "String"}
    return kinds.get(type(value), "Number")


def _text(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 500 else f"{text[:500]}…"


def response_of(outputs: Mapping[str, Any], *, rows: bool) -> dict[str, Any]:
    """The response with the outputs, as rows or as columns; a single output has no name."""
    listed = {
        name: _listed(np.asarray(each), as_bytes=name.endswith("_bytes"))
        for name, each in outputs.items()
    }
    if rows:
        return {"predictions": _rows(listed)}
    return {"outputs": next(iter(listed.values())) if len(listed) == 1 else listed}


def instances_of(inputs: Mapping[str, Any]) -> list[Any]:
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
        for each in strings.ravel():
            each.decode()
    except UnicodeDecodeError:
        return False
    return True


def _listed(array: Any, *, as_bytes: bool) -> Any:
    if array.dtype.kind in "OS":
        return _texts(array.tolist(), as_bytes=as_bytes)
    if array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)
    if array.dtype == np.float32:  # the shortest decimals that are the same float32
        shortest = np.array([float(str(each)) for each in array.ravel()], np.float64)
        array = shortest.reshape(array.shape)
    return array.tolist()


def _texts(value: Any, *, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_texts(each, as_bytes=as_bytes) for each in value]
    if as_bytes:
        return {"b64": base64.b64encode(value).decode()}
    return value.decode("utf-8", "replace")


def json_of(document: Mapping[str, Any]) -> bytes:
    """A response as JSON, with NaN and Infinity as JavaScript writes them."""
    return json.dumps(document, indent=4, allow_nan=True).encode()
