"""Check an exported version in the server that will serve it: its answers, and their latencies."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.contract.layout import VERSIONS
from aerotrain.contract.steps import (
    REST_PORT,
    SERVED,
    SIDECAR_MODEL,
    ServeCheckArguments,
)
from aerotrain.replica import Replica
from aerotrain.serving.requests import Exchange, read_requests
from aerotrain.serving.rest import Client, Endpoint
from aerotrain.serving.verify import close
from aerotrain.serving.versions import model_name
from aerotrain.store import CorruptError, MissingError, fetch, open_store
from aerotrain.supervisor.ports import reserved_ports

_HOST = "127.0.0.1"

#: Clients that ask at once, each one request at a time.
_CLIENTS = 8

#: Seconds between two looks whether the server is up.
_ASK_EVERY = 0.2


def run(replica: Replica) -> dict[str, float]:
    """Start the server, or wait for the one in this replica's pod, and check its answers.

    Returns:
        The 50th and 99th percentiles of the latencies in milliseconds, and the number of requests.

    Raises:
        FinalError: the server does not load the version, refuses a request, answers otherwise than
            the trained model, or is too slow.
    """
    arguments = ServeCheckArguments.from_dict(replica.job.arguments)
    url, _, version = arguments.version.rstrip("/").rpartition("/")
    pipeline = url.removesuffix(f"/{VERSIONS}")
    name = SIDECAR_MODEL if replica.has_server else model_name(pipeline)
    folder = replica.scratch / SERVED / name
    exchanges, tolerance = _fetch(url, version, folder)
    with _server(replica, arguments, pipeline, folder) as (port, check):
        endpoint = Endpoint(_HOST, port, name, int(version))
        wait_until_ready(endpoint, arguments.start, check)
        with closing(Client(endpoint)) as client:
            for number, exchange in enumerate(exchanges):
                _compare(client, exchange, tolerance, f"request {number}")
        alone = [each.inputs for each in exchanges[1:]]
        milliseconds = latencies(endpoint, alone, rate=arguments.rate, seconds=arguments.seconds)
    figures = {f"p{each}_ms": float(np.percentile(milliseconds, each)) for each in (50, 99)}
    figures["requests"] = len(milliseconds)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    print(f"the server answers as the trained model: {shown}", flush=True)
    if arguments.p99 and figures["p99_ms"] > arguments.p99:
        raise FinalError(f"the 99th percentile is above {arguments.p99:g} ms: {shown}")
    return figures


def _fetch(url: str, version: str, folder: Path) -> tuple[list[Exchange], float]:
    """The version in ``folder``, where it appears whole; its requests, and their tolerance."""
    partial = folder / f".partial-{version}"
    try:
        about = fetch(open_store(url), version, partial).about
    except (MissingError, CorruptError) as error:
        raise FinalError(f"version {version} of {url} cannot be loaded: {error}") from error
    exchanges = list(read_requests(partial))
    partial.rename(folder / version)
    return exchanges, float(about["tolerance"])


@contextmanager
def _server(
    replica: Replica, arguments: ServeCheckArguments, pipeline: str, folder: Path
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Its port of REST, and a function that raises an error once it has ended."""
    if replica.has_server:
        yield REST_PORT, lambda: None
        return
    store = pipeline.rpartition("/")[0]
    development = [sys.executable, "-P", "-m", "aerotrain", "serve", store, "--port", "{rest_port}"]
    log = replica.scratch / "server.log"
    with reserved_ports(2) as (rest, grpc), log.open("wb") as output:
        values = {"rest_port": str(rest.number), "grpc_port": str(grpc.number)}
        command = [
            word.format(name=folder.name, folder=folder, **values)
            for word in arguments.command or development
        ]
        try:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise FinalError(f"the server cannot be started by {command[0]!r}: {error}") from error

        def check() -> None:
            if server.poll() is not None:
                said = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise FinalError(f"the server ended with {server.returncode}:\n{said}")

        try:
            yield rest.number, check
        finally:
            server.kill()
            server.wait()


def wait_until_ready(endpoint: Endpoint, seconds: float, check: Callable[[], None]) -> None:
    """Return once the server has loaded the version.

    Raises:
        FinalError: it has ended, or has not within that time.
    """
    end = time.monotonic() + seconds
    with closing(Client(endpoint)) as client:
        while not client.is_ready():
            check()
            if time.monotonic() > end:
                raise FinalError(
                    f"the server has not loaded {endpoint.model}, version {endpoint.version}, "
                    f"within {seconds:g} s; see its log, or give it more time by start"
                )
            time.sleep(_ASK_EVERY)


def _compare(client: Client, exchange: Exchange, tolerance: float, title: str) -> None:
    """Check that the server gives the expected outputs. Raises ``FinalError``."""
    answered = client.predict(exchange.inputs)
    for name, expected in exchange.outputs.items():
        value = answered.get(name, answered.get("") if len(exchange.outputs) == 1 else None)
        if value is None:
            raise FinalError(f"{title}: there is no output {name!r}, only {', '.join(answered)}")
        if not close(value.astype(expected.dtype), expected, tolerance):
            ours, theirs = (each.ravel()[:4] for each in (value, expected))
            raise FinalError(
                f"{title}: the output {name!r} differs from the trained model's by more than "
                f"{tolerance:g}: {ours} instead of {theirs}"
            )


def latencies(
    endpoint: Endpoint, requests: Sequence[Any], *, rate: float, seconds: float
) -> list[float]:
    """The milliseconds until each answer, where ``rate`` requests a second are sent.

    Each is counted from when it should have been sent, not from when a client was free: otherwise
    a server that stops for a second would delay one request only.

    Raises:
        FinalError: a request failed.
    """
    count = max(1, round(rate * seconds))
    began = time.monotonic() + 0.1
    numbers, lock = iter(range(count)), threading.Lock()
    taken: list[float] = []
    failed: list[AerotrainError] = []

    def ask() -> None:
        with closing(Client(endpoint)) as client:
            while not failed:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                due = began + number / rate
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    client.predict(requests[number % len(requests)])
                except AerotrainError as error:
                    failed.append(error)
                taken.append(1000 * (time.monotonic() - due))

    threads = [threading.Thread(target=ask) for _ in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise FinalError(f"a request failed while {rate:g} a second were sent: {failed[0]}")
    return taken
