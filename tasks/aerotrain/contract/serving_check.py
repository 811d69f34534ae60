"""The arguments of the check of an exported version in the server that will serve it."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.options import Arguments, check_types, is_number

#: A server as a sidecar of the check: the name of its model, the folder of models in the scratch
#: folder, and its ports of REST and gRPC.
SIDECAR_MODEL, SERVED, REST_PORT, GRPC_PORT = "model", "served", 8501, 8500

#: What a command may contain in braces.
PLACES = ("name", "folder", "rest_port", "grpc_port")


@dataclass(frozen=True, kw_only=True)
class ServeCheckArguments(Arguments):
    """Check an exported version in a server.

    ``version`` is the URL of the version. ``command`` starts the server: ``{folder}`` in it is
    replaced by the folder of the versions of the model ``{name}``, and ``{rest_port}`` and
    ``{grpc_port}`` by the ports of REST and gRPC. Without a command, it is a server for
    development.

    The requests that the export carries must be answered with the predictions of the training. Then
    one record at a time is asked for, ``rate`` times a second for ``seconds`` seconds, by REST.
    ``p99`` is the longest accepted 99th percentile of the latencies, in milliseconds.

    Raises:
        SpecError: a value is not accepted; the message says what was expected.
    """

    TITLE: ClassVar = "serve_check"

    version: str
    command: Sequence[str] = ()
    rate: float = 50.0
    seconds: float = 5.0
    p99: float | None = None
    start: float = 300.0

    def __post_init__(self) -> None:
        check_types(self, version=str)
        if isinstance(self.command, str) or not all(isinstance(each, str) for each in self.command):
            raise SpecError(f"command of serve_check must be a list of words, got {self.command!r}")
        places = {place for word in self.command for _, place, *_ in Formatter().parse(word)}
        if unknown := places - {None, *PLACES}:
            raise SpecError(
                f"command of serve_check has {{{min(map(str, unknown))}}}, and can have "
                f"{', '.join(f'{{{each}}}' for each in PLACES)}"
            )
        for name in ("rate", "seconds", "p99", "start"):
            value = getattr(self, name)
            if not (value is None and name == "p99") and (not is_number(value) or value <= 0):
                raise SpecError(f"{name} of serve_check must be above zero, got {value!r}")
        if not self.version.rstrip("/").rpartition("/")[2].isdigit():
            raise SpecError(
                f"version of serve_check must be the URL of a version, such as "
                f"s3://bucket/flats/serving/7, got {self.version!r}"
            )
