"""The requests that an export carries: real records, with the predictions of the training.

``tf_serving_warmup_requests`` is a TFRecord file of PredictionLog. TensorFlow Serving answers these
requests before it serves the version, so that the first user does not wait:
https://www.tensorflow.org/tfx/serving/saved_model_warmup. The responses are for ``serve_check``.
``request.json`` has some of the records as the body of a POST.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2

from aerotrain.serving.rest import instances_of
from aerotrain.serving.signature import SIGNATURE, Arrays
from aerotrain.serving.versions import BODY, WARMUP

#: Records of the file: in one request, alone in requests of their own, and in the body of a POST.
RECORDS, _ALONE, _SHOWN = 32, 8, 2

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {"string": _FIELD.TYPE_STRING, "bytes": _FIELD.TYPE_BYTES}

#: Fields by message: number and type. An entry is the pair of a map, of which the tensor is the
#: bytes of the message ``TensorProto``, which is the same on the wire.
_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ModelSpec": {"name": (1, "string"), "signature_name": (3, "string")},
    "Entry": {"key": (1, "string"), "value": (2, "bytes")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "Entry")},
    "PredictResponse": {"outputs": (1, "Entry"), "model_spec": (2, "ModelSpec")},
    "PredictLog": {"request": (1, "PredictRequest"), "response": (2, "PredictResponse")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
}


def _prediction_log() -> Any:
    """TensorFlow Serving's message PredictionLog, as far as it is used here.

    The package ``tensorflow-serving-api`` has all of it, but it requires the package
    ``tensorflow``, which would be installed over ``tensorflow-cpu``.
    https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis: model.proto,
    predict.proto, prediction_log.proto.
    """
    # In a pool of its own, where tensorflow-serving-api may not have the same names.
    file = descriptor_pb2.FileDescriptorProto(
        name="aerotrain/serving.proto", package="tensorflow.serving", syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = described.field.add(name=name, number=number)
            field.label = _FIELD.LABEL_REPEATED if kind == "Entry" else _FIELD.LABEL_OPTIONAL
            field.type = _TYPES.get(kind, _FIELD.TYPE_MESSAGE)
            if kind not in _TYPES:
                field.type_name = f".{file.package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{file.package}.PredictionLog")
    return message_factory.GetMessageClass(found)


PredictionLog = _prediction_log()


@dataclass(frozen=True)
class Exchange:
    """The inputs of a request, ``(batch, *shape)`` by name, and the outputs that are expected."""

    inputs: Arrays
    outputs: Arrays

    def to_bytes(self, model: str) -> bytes:
        """A PredictionLog of this request to ``model``."""
        log = PredictionLog()
        request, response = log.predict_log.request, log.predict_log.response
        for message, entries, arrays in (
            (request, request.inputs, self.inputs),
            (response, response.outputs, self.outputs),
        ):
            message.model_spec.name, message.model_spec.signature_name = model, SIGNATURE
            for name, array in sorted(arrays.items()):
                tensor = tf.make_tensor_proto(np.asarray(array))
                entries.add(key=name, value=tensor.SerializeToString(deterministic=True))
        return log.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, content: bytes) -> "Exchange":
        log = PredictionLog.FromString(content).predict_log
        return cls(*map(_arrays_of, (log.request.inputs, log.response.outputs)))


def _arrays_of(entries: Any) -> Arrays:
    return {
        each.key: tf.make_ndarray(tensor_pb2.TensorProto.FromString(each.value)) for each in entries
    }


def write_requests(saved: Path, model: str, inputs: Arrays, outputs: Arrays) -> None:
    """Write the files for at most ``RECORDS`` records next to the SavedModel in ``saved``."""
    count = len(next(iter(inputs.values())))
    (saved / WARMUP).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(saved / WARMUP)) as file:
        for rows in [slice(0, count), *(slice(n, n + 1) for n in range(min(count, _ALONE)))]:
            parts = ({name: array[rows] for name, array in a.items()} for a in (inputs, outputs))
            file.write(Exchange(*parts).to_bytes(model))
    rows_of_body = instances_of({name: array[:_SHOWN] for name, array in inputs.items()})
    lines = ",\n  ".join(map(json.dumps, rows_of_body))
    (saved / BODY).write_text(f'{{"instances": [\n  {lines}\n]}}\n')


def read_requests(saved: Path) -> Iterator[Exchange]:
    """What ``write_requests`` wrote into a SavedModel; nothing if it wrote nothing."""
    if (saved / WARMUP).exists():
        for content in tf.data.TFRecordDataset(str(saved / WARMUP)).as_numpy_iterator():
            yield Exchange.from_bytes(content)
