"""The requests that an export carries: real records, with the predictions of the training.

``tf_serving_warmup_requests`` is a TFRecord file of PredictionLog. TensorFlow Serving answers these
requests before it serves the version, so that the first user does not wait:
https://www.tensorflow.org/tfx/serving/saved_model_warmup. The responses are for ``serve_check``.
``request.json`` has some of the records as the body of a POST.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from aerotrain.serving.protocol import (
    Arrays,
    PredictionLog,
    arrays_of,
    request_of,
    response_of,
)
from aerotrain.serving.rest import instances_of
from aerotrain.serving.versions import BODY, WARMUP

#: Records of the file: in one request, alone in requests of their own, and in the body of a POST.
RECORDS, _ALONE, _SHOWN = 32, 8, 2


@dataclass(frozen=True)
class Exchange:
    """The inputs of a request, ``(batch, *shape)`` by name, and the outputs that are expected."""

    inputs: Arrays
    outputs: Arrays


def write_requests(saved: Path, model: str, inputs: Arrays, outputs: Arrays) -> None:
    """Write the files for at most ``RECORDS`` records next to the SavedModel in ``saved``."""
    count = len(next(iter(inputs.values())))
    slices = [slice(0, count), *(slice(n, n + 1) for n in range(min(count, _ALONE)))]
    (saved / WARMUP).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(saved / WARMUP)) as file:
        for part in slices:
            log = PredictionLog()
            given = {name: array[part] for name, array in inputs.items()}
            log.predict_log.request.CopyFrom(request_of(model, None, given))
            expected = {name: array[part] for name, array in outputs.items()}
            log.predict_log.response.CopyFrom(response_of(model, None, expected))
            file.write(log.SerializeToString(deterministic=True))
    rows = instances_of({name: array[:_SHOWN] for name, array in inputs.items()})
    lines = ",\n  ".join(map(json.dumps, rows))
    (saved / BODY).write_text(f'{{"instances": [\n  {lines}\n]}}\n')


def read_requests(saved: Path) -> Iterator[Exchange]:
    """What ``write_requests`` wrote into a SavedModel; nothing if it wrote nothing."""
    if not (saved / WARMUP).exists():
        return
    for content in tf.data.TFRecordDataset(str(saved / WARMUP)).as_numpy_iterator():
        log = PredictionLog.FromString(content).predict_log
        yield Exchange(arrays_of(log.request.inputs), arrays_of(log.response.outputs))
