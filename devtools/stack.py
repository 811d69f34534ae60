"""A complete Airflow with its S3 server, for the duration of a block."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.errors import FinalError, TemporaryError
from devtools.api import AirflowApi
from devtools.home import Home, Secrets
from devtools.processes import Process, airflow, end_marked
from devtools.s3_server import S3Server, start_s3_server
from devtools.settings import (
    BUCKET,
    MARK,
    base_url,
    component_environment,
    store_environment,
)

Say = Callable[[str], None]

#: Seconds in which the API server has to respond; it takes 7 on two idle cores.
_API_SECONDS = 180.0
#: Seconds between two checks while waiting for a server.
_ASK_EVERY = 0.1


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What is running: a client of Airflow's API, the S3 server, and Airflow's components."""

    api: AirflowApi
    s3: S3Server
    password: str
    components: list[Process]

    def check(self) -> None:
        """Raise a FinalError with the end of its log if a component has ended."""
        for component in self.components:
            component.check()


@contextmanager
def running_stack(home: Home, project: Path, port: int, say: Say) -> Iterator[Stack]:
    """Start everything in the home, and stop all of it when the block ends, in whatever way.

    ``project`` is the clone whose DAGs run; ``say`` prints a message for the user.

    Raises:
        FinalError: a program is missing or has ended; the end of its log is in the message.
        TemporaryError: a server did not start in time.
    """
    if not (project / "dags").is_dir():
        raise FinalError(f"{project} has no folder dags/; run this where the clone is")
    home.make()
    os.environ[MARK] = str(home.root)  # the S3 server inherits this environment
    left = end_marked(home.root)
    if left:
        say(f"ended {left} processes that an earlier run had left")
    started: list[Process | S3Server] = []
    try:
        yield _start(home, project, port, started)
    finally:
        end_marked(home.root)
        for each in started:
            each.stop()
        os.environ.pop(MARK, None)


def _start(home: Home, project: Path, port: int, started: list[Process | S3Server]) -> Stack:
    """Start first what others wait for longest.

    The API server imports for seconds before it needs tables, so it starts in parallel with the
    migration that creates them. The triggerer starts last, because no run needs it immediately.
    """
    secrets = Secrets.of(home)
    environment = component_environment(home, project, port, secrets, os.environ)

    def start(name: str, subcommand: str, extra: dict[str, str]) -> Process:
        process = Process(name, airflow(subcommand), environment | extra, home)
        started.append(process)
        return process

    unchecked = {"AIRFLOW__DATABASE__CHECK_MIGRATIONS": "False"}
    api_server = start("api-server", "api-server", unchecked)
    migration = start("migration", "db migrate", {})
    s3 = start_s3_server(home.store)
    started.append(s3)
    s3.make_bucket(BUCKET)
    migration.wait()
    store = store_environment(s3.endpoint, s3.access_key, s3.secret_key)
    components = [
        api_server,
        start("dag-processor", "dag-processor", store),
        start("scheduler", "scheduler --skip-serve-logs", store),
    ]
    api = AirflowApi(base_url(port), secrets.password)
    stack = Stack(api=api, s3=s3, password=secrets.password, components=components)
    _wait_for_api(stack)
    components.append(start("triggerer", "triggerer --skip-serve-logs", store))
    return stack


def _wait_for_api(stack: Stack) -> None:
    deadline = time.monotonic() + _API_SECONDS
    while not stack.api.answers():
        stack.check()
        if time.monotonic() > deadline:
            raise TemporaryError(
                f"Airflow's API server did not answer within {_API_SECONDS:.0f} s; "
                "is the machine very busy? Its log is logs/api-server.log"
            )
        time.sleep(_ASK_EVERY)
