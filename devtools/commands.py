"""The commands ``run`` (one pipeline, then stop), ``up`` (keep running) and ``down`` (stop)."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain_airflow.backends.process.ports import reserved_ports
from devtools.api import AirflowApi
from devtools.following import await_dag, follow, why_failed
from devtools.home import USER, Home, Secrets, held, holder, wait_until_free
from devtools.processes import end_marked
from devtools.progress import console, display, utc_now
from devtools.report import keep
from devtools.settings import HOST, base_url
from devtools.stack import Stack, running_stack

#: Exit codes of ``run`` and ``up``.
OK, RUN_FAILED, COULD_NOT = 0, 1, 2

_READY = "ready"


class Interrupted(BaseException):
    """A signal ended this process. A BaseException, so that no handler of Exception catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"told to go by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def run(home: Home, project: Path, dag: str, conf: Mapping[str, Any]) -> int:
    """Start everything, run the DAG once, report, stop everything; returns the exit code.

    Raises:
        AerotrainError: the command could not be carried out; the message says why.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, once everything is stopped.
    """
    begin = time.monotonic()
    home.make()
    interrupt_on_signals()
    with reserved_ports(1) as ports:
        port = ports[0].number
        with held(home, "run", base_url(port)):
            since = utc_now()
            say(f"starting Airflow and its S3 server in {home.root} …")
            with running_stack(home, project, port, say) as stack:
                say(f"Airflow is up after {time.monotonic() - begin:.1f} s at {stack.api.url}")
                await_dag(stack.api, dag, since, stack.check)
                return run_once(stack, home, dag, conf, begin)


def run_once(stack: Stack, home: Home, dag: str, conf: Mapping[str, Any], begin: float) -> int:
    """Run the DAG once on a running stack, and report; returns the exit code.

    ``begin`` is the start of the command, a time of ``time.monotonic()``.
    """
    api = stack.api
    with _failed_unless_ended(api, dag, api.trigger(dag, conf)) as run_id:
        say(f"{dag} was triggered after {time.monotonic() - begin:.1f} s")
        with display(console()) as shown:
            state, training = follow(api, dag, run_id, shown, stack.check)
    if state != "success":
        say(why_failed(api, dag, run_id))
        say(f"{dag} failed; `make up` shows all of it in Airflow's UI")
        return RUN_FAILED
    report = keep(
        api,
        stack.s3,
        home,
        dag=dag,
        run=run_id,
        seconds=time.monotonic() - begin,
        seconds_a_step=training.seconds_a_step,
    )
    say(f"\n{report}")
    return OK


@contextmanager
def _failed_unless_ended(api: AirflowApi, dag: str, run_id: str) -> Iterator[str]:
    """Fail the run if it was not followed to its end; the next Airflow would resume it."""
    try:
        yield run_id
    except BaseException:  # usually Ctrl-C; raised again in any case
        say(f"stopping {dag} …")
        with suppress(AerotrainError):  # the API server may have ended already
            api.fail_run(dag, run_id)
        raise


def up(home: Home, project: Path, port: int) -> int:
    """Start everything in the background, and print its address; returns the exit code."""
    home.make()
    other = holder(home)
    if other is not None and other.command == "up":
        say(f"Airflow is already running.\n{_address(home, other.url)}")
        return OK
    interrupt_on_signals()
    say(f"starting Airflow and its S3 server in {home.root} …")
    answer = _answer_of_server(home, project, port)
    if answer != _READY:
        raise FinalError(answer or f"Airflow did not come up; its log is {home.logs / 'up.log'}")
    say(_address(home, base_url(port)))
    return OK


def _answer_of_server(home: Home, project: Path, port: int) -> str:
    """Start ``serve`` in a new session, and return what it writes into the pipe."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "devtools", "serve"]
    options = ["--home", str(home.root), "--port", str(port), "--ready", str(writing)]
    with (home.logs / "up.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *options],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(writing,),
        )
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            return pipe.read().strip()
    except Interrupted:
        server.terminate()
        server.wait()
        raise


def serve(home: Home, project: Path, port: int, ready: int) -> int:
    """The background process of ``up``: runs until SIGTERM or until a component has ended.

    Writes "ready", or an error message, to the file descriptor ``ready``.
    """
    home.make()
    interrupt_on_signals()
    with os.fdopen(ready, "w") as pipe:
        try:
            _check_free(port)
            with held(home, "up", base_url(port)), running_stack(home, project, port, say) as stack:
                pipe.write(_READY)
                pipe.close()
                _watch(stack)
        except AerotrainError as error:
            if not pipe.closed:
                pipe.write(str(error))
            raise


def _watch(stack: Stack) -> NoReturn:
    while True:
        stack.check()
        time.sleep(1)


def down(home: Home) -> int:
    """Stop what ``up`` started and all other processes of this home; returns the exit code.

    Raises:
        FinalError: a ``run`` is using the home.
    """
    other = holder(home)
    if other is not None and other.command == "run":
        raise FinalError(
            f"a `make run` (process {other.pid}) is using {home.root}; stop it with Ctrl-C there"
        )
    if other is not None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(other.pid, signal.SIGTERM)
        wait_until_free(home)
    left = end_marked(home.root)
    say("Airflow is stopped." if other is not None or left else "Airflow was not running.")
    return OK


def interrupt_on_signals() -> None:
    """Raise ``Interrupted`` at the first signal; ignore later ones, so that cleanup completes."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in numbers:
        signal.signal(each, interrupt)


def say(line: str) -> None:
    """Print a message for the user."""
    print(line, flush=True)


def _address(home: Home, url: str) -> str:
    password = Secrets.of(home).password
    return f"open   {url}\nlogin  {USER} / {password}\nstop   make down"


def _check_free(port: int) -> None:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise FinalError(
                f"port {port} of {HOST} is taken; name another one: `make up PORT={port + 1}`"
            ) from error
