"""The server of the models of a local Airflow, for development (``aerotrain serve``)."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aerotrain.supervisor.ports import listens, reserved_ports
from devtools.environment import BUCKET, HOST, MARK, SERVER
from devtools.home import Home
from devtools.s3_server import S3Server
from devtools.servers import Server
from devtools.stack import Say

#: Seconds in which the server has to answer, which loads all models first.
_START_SECONDS = 600.0


class ModelServer(Server):
    """A process that serves what the pipelines of this home have promoted."""

    def __init__(self, home: Home, port: int, environment: Mapping[str, str]) -> None:
        super().__init__("model-server", home.logs / "model-server.log")
        self._port = port
        self._environment = dict(environment)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "aerotrain", "serve", f"s3://{BUCKET}"]
        self.launch([*command, "--port", str(self._port)], self._environment)


@contextmanager
def model_server(home: Home, s3: S3Server, say: Say) -> Iterator[ModelServer]:
    """A server during a block; its address is in ``home.models``.

    The home has the same one each time, if its port is free. ``say`` gets a sentence first.
    """
    say("starting the server of exported models, which loads the newest ones")
    marks = {MARK: str(home.root), SERVER: "models"}
    with reserved_ports(1, f"models of {home.root}") as [rest]:
        environment = {**os.environ, **s3.environment, **marks}
        server = ModelServer(home, rest.number, environment)
        try:
            server.wait_until(lambda: listens(rest.number), _START_SECONDS)
            home.models.write_text(f"http://{HOST}:{rest.number}/v1/models\n")
            yield server
        finally:
            home.models.unlink(missing_ok=True)
            server.stop()
