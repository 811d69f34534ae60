"""The server of gRPC: the method ``Predict`` of TensorFlow Serving."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from aerotrain.contract.errors import AerotrainError
from aerotrain.serving.development.models import Models, NotFoundError, outputs_of
from aerotrain.serving.protocol import (
    METHOD,
    PredictRequest,
    PredictResponse,
    arrays_of,
    response_of,
)
from aerotrain.serving.rest import BadRequestError

_THREADS = 8


@contextmanager
def grpc_server(models: Models, port: int) -> Iterator[int]:
    """Answer at a port of loopback until the block ends; 0 for a free one. Gives the port.

    Raises:
        OSError: the port cannot be used.
    """
    method = grpc.unary_unary_rpc_method_handler(
        partial(_predict, models), PredictRequest.FromString, PredictResponse.SerializeToString
    )
    _, service, name = METHOD.split("/")
    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        [grpc.method_handlers_generic_handler(service, {name: method})],
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 2**28)],
    )
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise OSError(f"gRPC cannot use port {port}") from error
    server.start()
    try:
        yield bound
    finally:
        server.stop(None)


def _predict(models: Models, request: Any, context: Any) -> Any:
    spec = request.model_spec
    try:
        number = spec.version.value if spec.HasField("version") else None
        loaded = models.get(spec.name, number)
        outputs = outputs_of(loaded.signature(spec.signature_name), arrays_of(request.inputs))
    except NotFoundError as error:
        context.abort(grpc.StatusCode.NOT_FOUND, str(error))
    except (BadRequestError, ValueError) as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except AerotrainError as error:
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    return response_of(spec.name, loaded.version, outputs)
