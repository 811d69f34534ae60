"""The server of the models of a local Airflow, for development (``aerotrain serve``)."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aerotrain.supervisor.ports import listens, reserved_ports
from devtools.environment import BUCKET, HOST, MARK, SERVER
from devtools.home import Home
from devtools.restarts import Restartable
from devtools.s3_server import S3Server
from devtools.stack import Say

_ASK_EVERY = 0.05


class ModelServer(Restartable):
    """A process that serves what the pipelines of this home have promoted."""

    def __init__(self, home: Home, port: int, environment: Mapping[str, str]) -> None:
        super().__init__("model-server", home.logs / "model-server.log")
        self._command = [sys.executable, "-m", "aerotrain", "serve", f"s3://{BUCKET}"]
        self._command += ["--port", str(port)]
        self._environment = dict(environment)
        self._port = port
        self.start()

    def wait_until_up(self) -> None:
        """Return once it answers requests.

        Raises:
            FinalError: it has ended.
        """
        while not listens(self._port):
            self.check()
            time.sleep(_ASK_EVERY)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def exit_code(self) -> int:
        return self.process.wait()


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
            server.wait_until_up()
            home.models.write_text(f"http://{HOST}:{rest.number}/v1/models\n")
            yield server
        finally:
            home.models.unlink(missing_ok=True)
            server.process.kill()
            server.process.wait()
