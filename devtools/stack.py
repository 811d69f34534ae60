"""A complete Airflow with its database and S3 server, as processes that run during a block.

All of them carry the mark of their home in their environment, by which they are found and ended,
whatever their parent is by then.
"""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from aerotrain.contract.errors import FinalError, TemporaryError, nearest
from aerotrain.supervisor.ports import listens, reserved_ports
from devtools.airflow_api import AirflowApi
from devtools.components import Component, Preloaded
from devtools.environment import (
    BUCKET,
    DATABASE,
    HOST,
    MARK,
    SERVER,
    base_url,
    component_environment,
    config_text,
    store_environment,
)
from devtools.home import Home, Secrets, write_private
from devtools.postgres import Postgres, postgres
from devtools.s3_server import OwnS3Server, S3Server, s3_server
from devtools.servers import Restartable, Server

#: Says a sentence to the user.
Say = Callable[[str], None]

#: Seconds in which the API server has to respond; it takes 7 on two idle cores.
_API_SECONDS = 180.0
#: Seconds in which the server of models has to answer, which loads all models first.
_MODELS_SECONDS = 600.0
#: Seconds between two checks while waiting for a server.
_ASK_EVERY = 0.1
#: Seconds between two requests for what the DAG processor has parsed.
_PARSED_EVERY = 0.2
#: Seconds to wait for a DAG to be parsed: in all, and after the last new DAG was parsed.
_PARSE_SECONDS = 120.0
_STRAGGLER_SECONDS = 20.0

#: Seconds that replicas get to save a checkpoint and end; then seconds for the servers.
_GRACE = 10.0
_SERVER_GRACE = 6.0
#: A process may start another one just before it is killed.
_KILL_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What is running: a client of Airflow's API, the S3 server, and what is restarted.

    ``since`` is when its start began.
    """

    api: AirflowApi
    s3: S3Server
    components: Sequence[Restartable]
    since: datetime

    def check(self) -> None:
        """Raise a FinalError with the end of its log if a component has ended."""
        for component in self.components:
            component.check()

    @property
    def has_ended(self) -> bool:
        """Whether a component has ended and was not started again yet."""
        return any(each.has_ended for each in self.components)

    def restart_ended(self) -> list[str]:
        """Start components again that have ended; returns a sentence about each.

        Tasks and trainings continue meanwhile, in processes of their own.
        """
        return [said for each in self.components if (said := each.restart_if_ended())]

    def wait_for_api(self) -> None:
        """Return once the API server responds.

        Raises:
            TemporaryError: it does not.
        """
        deadline = time.monotonic() + _API_SECONDS
        while not self.api.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise TemporaryError(
                    f"Airflow's API server did not answer within {_API_SECONDS:.0f} s; "
                    "is the machine very busy? Its log is logs/api-server.log"
                )
            time.sleep(_ASK_EVERY)

    def wait_for_dag(self, dag: str) -> None:
        """Return once this Airflow has parsed the DAG.

        What an earlier Airflow stored in the database may be older than the file.

        Raises:
            FinalError: its file cannot be imported, or the DAG does not exist.
        """
        deadline = latest = time.monotonic() + _PARSE_SECONDS
        known = 0
        while True:
            parsed = [name for name, at in self.api.parsed().items() if at > self.since]
            if dag in parsed:
                return
            if errors := self.api.import_errors():
                shown = "\n".join(f"{path}:\n{trace}" for path, trace in errors.items())
                raise FinalError(f"DAG {dag!r} is not there, and dags/ has errors:\n{shown}")
            if len(parsed) > known:
                known = len(parsed)
                deadline = min(latest, time.monotonic() + _STRAGGLER_SECONDS)
            if time.monotonic() > deadline:
                raise FinalError(
                    f"dags/ has no DAG {dag!r}{nearest(dag, parsed)}; "
                    f"it has {', '.join(sorted(parsed)) or 'none'}"
                )
            self.check()
            time.sleep(_PARSED_EVERY)


def check_project(project: Path) -> None:
    """Check that this is the folder of a clone. Raises ``FinalError``."""
    if not (project / "dags").is_dir():
        raise FinalError(f"{project} has no folder dags/; run this where the clone is")


@contextmanager
def running_stack(
    home: Home, project: Path, port: int | None = None, say: Say = lambda _: None
) -> Iterator[Stack]:
    """Start everything in the home, and stop all of it when the block ends, in whatever way.

    ``project`` is the clone whose DAGs run; ``port`` is where the UI answers, by default a free
    one. ``say`` gets a sentence before each phase that takes long.

    Raises:
        FinalError: a program is missing or has ended; the end of its log is in the message.
        TemporaryError: a server did not start in time.
    """
    check_project(project)
    home.make()
    if left := end_marked(home.root):
        print(f"ended processes that an earlier run had left: {left}", flush=True)
    with ExitStack() as exits:
        if port is None:
            port = exits.enter_context(reserved_ports(1))[0].number
        try:
            yield _start(home, project, port, exits, say)
        finally:
            end_marked(home.root)


def _start(home: Home, project: Path, port: int, exits: ExitStack, say: Say) -> Stack:
    """Start first what others wait for longest.

    The servers start while the modules of Airflow are imported, and the migration runs while those
    of the API server are. The triggerer starts last, because no run needs it immediately. If there
    are runs to continue, the scheduler waits for the API server, without which tasks fail.
    """
    since, secrets, database = datetime.now(UTC), Secrets.of(home), None
    if DATABASE not in os.environ:
        log, password = home.logs / "postgres.log", secrets.database_password
        marks = {MARK: str(home.root), SERVER: "postgres"}
        database = exits.enter_context(postgres(home.postgres, log, password, **marks))
    is_new = database is not None and database.is_new
    url = database.url if database else os.environ[DATABASE]
    environment = component_environment(home, project, port, secrets, os.environ, url)
    write_private(home.config, config_text(environment))
    airflow = Preloaded(environment, home)
    exits.callback(airflow.end)

    def start(name: str, extra: dict[str, str]) -> Component:
        component = Component(name, environment | extra, airflow, home)
        exits.callback(component.kill)  # leaves no zombie
        return component

    say("starting the S3 server, and a database" + (" that is still empty" if is_new else ""))
    s3 = _start_servers(database, home, exits)
    say(f"{'creating' if is_new else 'checking'} the tables of the database, and importing Airflow")
    migration = start("migration", {})
    store = store_environment(s3.endpoint, s3.access_key, s3.secret_key)
    api_server = start("api-server", {"AIRFLOW__DATABASE__CHECK_MIGRATIONS": "False"} | store)
    migration.wait()
    early, late = ["dag-processor"], ["triggerer"]
    (early if is_new else late).insert(0, "scheduler")
    servers: list[Restartable] = [database, s3] if database else [s3]
    components = [*servers, api_server, *(start(name, store) for name in early)]
    api = AirflowApi(base_url(port), secrets.password)
    stack = Stack(api=api, s3=s3, components=components, since=since)
    say("waiting until Airflow's API server answers: 10 s, longer on a busy machine")
    stack.wait_for_api()
    components += [start(name, store) for name in late]
    return stack


@contextmanager
def model_server(home: Home, s3: S3Server, say: Say) -> Iterator[Server]:
    """What the pipelines have promoted is served during a block; ``home.models`` has the address.

    The home has the same one each time, if its port is free. ``say`` gets a sentence first.
    """
    say("starting the server of exported models, which loads the newest ones")
    marks = {MARK: str(home.root), SERVER: "models"}
    command = [sys.executable, "-m", "aerotrain", "serve", f"s3://{BUCKET}", "--port"]
    with reserved_ports(1, f"models of {home.root}") as [rest]:
        command.append(str(rest.number))
        environment = {**os.environ, **s3.environment, **marks}
        server = Server("model-server", home.logs / "model-server.log", command, environment)
        try:
            server.start()  # again, if it ends: without waiting until it has loaded all models
            server.wait_until(lambda: listens(rest.number), _MODELS_SECONDS)
            home.models.write_text(f"http://{HOST}:{rest.number}/v1/models\n")
            yield server
        finally:
            home.models.unlink(missing_ok=True)
            server.stop()


def _start_servers(database: Postgres | None, home: Home, exits: ExitStack) -> OwnS3Server:
    """Start the S3 server, which has the bucket then, and the database meanwhile."""
    with ThreadPoolExecutor(1) as background:
        starting = background.submit(database.start) if database else None
        marks = {MARK: str(home.root), SERVER: "s3"}
        s3 = exits.enter_context(s3_server(home.store, **marks))
        s3.make_bucket(BUCKET)
        if starting:
            starting.result()
    write_private(home.s3, "".join(f"{name}={value}\n" for name, value in s3.environment.items()))
    return s3


def marked(root: Path, chosen: Callable[[dict[str, str]], bool] = bool) -> list[psutil.Process]:
    """Every process of the home at ``root`` except this one, whatever its parent is now.

    ``chosen`` decides by the environment of a process.
    """
    found = []
    sessions = _sessions(root)
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:  # owned by another user, or by Airflow's supervision of a task
            if not _is_hidden_member(process, sessions):
                continue
            environment = {MARK: str(root), "AIRFLOW_HOME": ""}
        if (
            environment.get(MARK) == str(root)
            and process.pid != os.getpid()
            and chosen(environment)
        ):
            found.append(process)
    return found


def _sessions(root: Path) -> set[int]:
    """The sessions of the components that were started since all processes were ended."""
    try:
        return set(map(int, Home(root).sessions.read_text().split()))
    except FileNotFoundError:
        return set()


def _is_hidden_member(process: psutil.Process, sessions: Collection[int]) -> bool:
    """Whether a process is of this user, and of a component's session.

    Airflow hides the environment of a process that supervises a task, even from its own user
    (PR_SET_DUMPABLE). The id of a session is not given to another process while it has members.
    """
    try:
        return process.uids().real == os.getuid() and os.getsid(process.pid) in sessions
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def end_marked(root: Path) -> int:
    """End every process of the home at ``root``, such that a next Airflow goes on.

    Airflow is killed at once, before its tasks can end their replicas and record a failure. Then
    the replicas are preempted, so they save checkpoints, and the servers end last.

    Returns:
        How many there were.
    """
    count = len(marked(root))
    _kill(root, lambda process: "AIRFLOW_HOME" in process and SERVER not in process)
    _terminate(root, lambda process: SERVER not in process, _GRACE)
    _terminate(root, bool, _SERVER_GRACE)
    Home(root).sessions.unlink(missing_ok=True)
    return count


def _terminate(root: Path, chosen: Callable[[dict[str, str]], bool], grace: float) -> None:
    """Terminate processes, and kill those that remain after ``grace`` seconds."""
    first = marked(root, chosen)
    for process in first:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(first, timeout=grace)
    _kill(root, chosen)


def _kill(root: Path, chosen: Callable[[dict[str, str]], bool]) -> None:
    # Listed again, for processes that were started while others were ending.
    for _ in range(_KILL_ROUNDS):
        stubborn = marked(root, chosen)
        if not stubborn:
            return
        for process in stubborn:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stubborn, timeout=1)
