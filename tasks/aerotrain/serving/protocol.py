"""The messages of TensorFlow Serving by which a version carries requests.

The package ``tensorflow-serving-api`` has all of them, but it requires the package ``tensorflow``,
which would be installed over ``tensorflow-cpu``. Tensors are bytes here, which is the same on the
wire as the message ``TensorProto`` that they contain.

https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis: model.proto,
predict.proto, prediction_log.proto.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: The signature of an exported model that takes its features.
SIGNATURE = "serving_default"

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {"string": _FIELD.TYPE_STRING, "bytes": _FIELD.TYPE_BYTES, "int64": _FIELD.TYPE_INT64}

#: Fields by message: number and type. An entry is the pair of a map.
_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Version": {"value": (1, "int64")},  # google.protobuf.Int64Value
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "Version"),
        "signature_name": (3, "string"),
    },
    "Entry": {"key": (1, "string"), "value": (2, "bytes")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "Entry")},
    "PredictResponse": {"outputs": (1, "Entry"), "model_spec": (2, "ModelSpec")},
    "PredictLog": {"request": (1, "PredictRequest"), "response": (2, "PredictResponse")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
}


def _messages() -> dict[str, Any]:
    # In a pool of its own, where tensorflow-serving-api may not have the same names.
    file = descriptor_pb2.FileDescriptorProto(
        name="aerotrain/serving.proto", package="tensorflow.serving", syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = described.field.add(name=name, number=number)
            field.label = _FIELD.LABEL_REPEATED if kind == "Entry" else _FIELD.LABEL_OPTIONAL
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{file.package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    found = pool.Add(file) or pool.FindFileByName(file.name)
    return {
        name: message_factory.GetMessageClass(found.message_types_by_name[name])
        for name in _MESSAGES
    }


_CLASSES = _messages()
PredictRequest, PredictResponse = _CLASSES["PredictRequest"], _CLASSES["PredictResponse"]
PredictionLog = _CLASSES["PredictionLog"]

Arrays = Mapping[str, Any]


def request_of(model: str, version: int | None, inputs: Arrays) -> Any:
    """A request for predictions by a version of a model, or by the one that is served."""
    request = PredictRequest()
    _specify(request.model_spec, model, version)
    _set(request.inputs, inputs)
    return request


def response_of(model: str, version: int | None, outputs: Arrays) -> Any:
    """The response of a version of a model."""
    response = PredictResponse()
    _specify(response.model_spec, model, version)
    _set(response.outputs, outputs)
    return response


def arrays_of(entries: Any) -> dict[str, Any]:
    """The arrays of a request's inputs, or of a response's outputs, by name.

    Raises:
        ValueError: a tensor cannot be read.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import tensor_pb2

    arrays = {}
    for each in entries:
        try:
            arrays[each.key] = tf.make_ndarray(tensor_pb2.TensorProto.FromString(each.value))
        except (DecodeError, TypeError, ValueError) as error:
            raise ValueError(f"the tensor {each.key!r} cannot be read: {error}") from error
    return arrays


def _specify(spec: Any, model: str, version: int | None) -> None:
    spec.name, spec.signature_name = model, SIGNATURE
    if version is not None:
        spec.version.value = version


def _set(entries: Any, arrays: Arrays) -> None:
    import tensorflow as tf

    for name, array in sorted(arrays.items()):
        tensor = tf.make_tensor_proto(np.asarray(array))
        entries.add(key=name, value=tensor.SerializeToString(deterministic=True))
