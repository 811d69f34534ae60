"""A server of StatsD that remembers what it receives."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class StatsdServer:
    """The metrics that were received: ``name,tag=value,…:value|type``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received: list[str] = []

    @property
    def environment(self) -> Mapping[str, str]:
        """The settings of an Airflow that sends its metrics here, with their tags."""
        values = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(self.port)}
        values["INFLUXDB_ENABLED"] = "True"
        return {f"AIRFLOW__METRICS__STATSD_{name}": value for name, value in values.items()}

    def of(self, name: str) -> list[str]:
        """The received metrics whose name begins so."""
        return [each for each in self.received if each.startswith(name)]


@contextmanager
def statsd_server() -> Iterator[StatsdServer]:
    """A server on a free port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        server = StatsdServer(udp.getsockname()[1])

        def receive() -> None:
            while content := udp.recv(65536):
                server.received += content.decode().splitlines()

        thread = threading.Thread(target=receive)
        thread.start()
        try:
            yield server
        finally:
            udp.sendto(b"", udp.getsockname())  # an empty packet ends the thread
            thread.join()
