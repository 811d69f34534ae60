"""``python -m devtools run|up|down``: a complete Airflow on this machine."""

import argparse
import json
import os
import shlex
import signal
import socket
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.store.errors import FULL
from aerotrain.supervisor.processes import is_alive, send
from devtools.dag_run import run_once
from devtools.environment import BUCKET, HOST, PORT, base_url
from devtools.home import USER, Home, Secrets, held, holder
from devtools.stack import check_project, end_marked, model_server, running_stack

#: Exit codes.
_OK, _RUN_FAILED, _ERROR = 0, 1, 2

#: The highest number of a TCP port.
_PORTS = 65535

#: What the background process of ``up`` reports once its Airflow is up.
_READY = "ready"

#: Seconds between two checks whether the background process has ended.
_END_EVERY = 0.05

#: How a line begins that names a phase of a start.
_PHASE = "  "


class Interrupted(BaseException):
    """A signal ended this process. A BaseException, so that no handler of Exception catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def main() -> int:
    """Carry out the command; returns the exit code."""
    options = _parser().parse_args()
    home, project = Home(options.home.resolve()), Path.cwd()
    try:
        match options.command:
            case "run":
                return _run(home, project, options.dag, options.conf)
            case "up":
                return up(home, project, options.port)
            case _:
                return _down(home)
    except AerotrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return _ERROR
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: the disk of {home.root} is full: {error}; free some of it", file=sys.stderr)
        return _ERROR
    except Interrupted as interrupted:
        print(f"{interrupted}; everything is stopped", file=sys.stderr)
        return interrupted.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devtools", description=__doc__)
    subcommands = parser.add_subparsers(dest="command", required=True)
    run = subcommands.add_parser("run", help="run a pipeline once, and stop everything again")
    up = subcommands.add_parser("up", help="start Airflow, and leave it running")
    down = subcommands.add_parser("down", help="stop what `up` started")
    for each in (run, up, down):
        each.add_argument(
            "--home", type=Path, default=Path(".local"), help="where everything is kept"
        )
    run.add_argument("--dag", default="digits", help="the pipeline, by the name of its DAG")
    run.add_argument("--conf", type=_conf, default={}, help="params of the run, as JSON")
    up.add_argument("--port", type=_port, help=f"where the UI answers; by default {PORT}")
    return parser


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= _PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; use a number from 1 to {_PORTS}")
    return number


def _conf(text: str) -> dict[str, Any]:
    try:
        conf = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(conf, dict):
        raise argparse.ArgumentTypeError(f"""{text!r} is no JSON object; write '{{"epochs": 3}}'""")
    return conf


def _run(home: Home, project: Path, dag: str, conf: dict[str, Any]) -> int:
    """Start everything, run the DAG once, report, and stop everything."""
    home.check_owner()
    begin = time.monotonic()
    check_project(project)
    home.make()
    _interrupt_on_signals()
    with held(home, "run"):
        _say(f"starting Airflow and its S3 server in {home.root} …")
        with running_stack(home, project, say=_say_phase) as stack:
            _say(f"Airflow is up after {time.monotonic() - begin:.1f} s at {stack.api.url}")
            _say_phase(f"waiting until the DAG processor has read {dag}")
            stack.wait_for_dag(dag)
            return _OK if run_once(stack, home, dag, conf, begin) else _RUN_FAILED


def up(home: Home, project: Path, port: int | None) -> int:
    """Start everything in the background, unless it is running, and print its address.

    Raises:
        FinalError: it cannot start, or it is running at another port than the given one.
    """
    home.check_owner()
    other = holder(home)
    if other is not None and other.command == "up":
        if port is not None and other.url != base_url(port):
            raise FinalError(
                f"the Airflow of {home.root} is already running at {other.url}, so it is not at "
                f"port {port}; to move it: `make down`, then `make up PORT={port}`, and for a "
                "second one name another folder by HOME_DIR=FOLDER"
            )
        _say(f"Airflow is already running.\n{_login(home, other.url)}")
        _show_restarts(home)
        return _OK
    port = port or PORT
    check_project(project)
    _check_free(port)  # here, so that a command that is refused leaves no folder
    home.make()
    _interrupt_on_signals()
    _say(f"starting Airflow and its S3 server in {home.root} …")
    answer = _answer_of_server(home, project, port)
    if answer != _READY:
        raise FinalError(answer or f"Airflow did not come up; its log is {home.logs / 'up.log'}")
    _say(_login(home, base_url(port)))
    return _OK


def _login(home: Home, url: str) -> str:
    return (
        f"open   {url}\nlogin  {USER} / {Secrets.of(home).password}\n"
        f"data   s3://{BUCKET}, for AWS clients after: set -a; . {shlex.quote(str(home.s3))}\n"
        f"{_models(home)}stop   make down{home.option}\n"
        "Airflow pauses new DAGs: turn a pipeline on before its first run."
    )


def _models(home: Home) -> str:
    """How to ask for predictions of what a pipeline has exported."""
    try:
        address = home.models.read_text().strip()
    except FileNotFoundError:
        return ""
    return f"models {address}/DAG, once a run of it has exported one; POST to DAG:predict\n"


def _answer_of_server(home: Home, project: Path, port: int) -> str:
    """Fork the server of ``up``, print the phases of its start, and return what it says last."""
    reading, writing = os.pipe()
    if (server := os.fork()) == 0:
        os.close(reading)
        _detach(home.logs / "up.log")
        _serve(home, project, port, writing)
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            answer = []
            for line in pipe:
                if line.startswith(_PHASE):
                    _say(line.rstrip())
                else:
                    answer.append(line)
            return "".join(answer).strip()
    except Interrupted:
        send([server], signal.SIGTERM)
        os.waitpid(server, 0)
        raise


def _detach(log: Path) -> None:
    """Become a process of its own session, whose output goes to the log."""
    os.setsid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = os.open(os.devnull, os.O_RDONLY), os.open(log, flags, 0o600)
    for number, stream in zip((0, 1, 2), (*streams, streams[1]), strict=True):
        os.dup2(stream, number)


def _serve(home: Home, project: Path, port: int, ready: int) -> NoReturn:
    """The background process of ``up``: runs until SIGTERM, and restarts components that end.

    Writes the phases of the start, and then "ready" or an error message, to the file descriptor
    ``ready``, and each restart to a file that a next ``up`` and ``down`` show.
    """
    home.restarts.unlink(missing_ok=True)
    with os.fdopen(ready, "w", buffering=1) as pipe:

        def say(phase: str) -> None:
            print(f"{_PHASE}{phase} …", file=pipe)

        try:
            _check_free(port)
            with (
                held(home, "up", base_url(port)),
                running_stack(home, project, port, say) as stack,
                model_server(home, stack.s3, say) as models,
            ):
                print(_READY, file=pipe)
                pipe.close()
                was_full = ""
                while True:
                    full = home.why_full()
                    news = [full] if full and not was_full else []
                    was_full = full
                    news += [*stack.restart_ended(), *filter(None, [models.restart_if_ended()])]
                    for line in news:
                        with suppress(OSError), home.restarts.open("a") as file:
                            file.write(f"{time.strftime('%H:%M:%S')} {line}\n")
                    time.sleep(1)
        except AerotrainError as error:
            if not pipe.closed:
                pipe.write(str(error))
            raise


def _show_restarts(home: Home) -> None:
    """Show which components have ended since ``up``."""
    if home.restarts.exists():
        _say(home.restarts.read_text().rstrip())


def _check_free(port: int) -> None:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            other = max(port + 1, PORT)  # those below 1024 are root's
            raise FinalError(
                f"port {port} of {HOST} cannot be used ({error.strerror}); name another one: "
                f"`make up PORT={other}`"
            ) from error


def _down(home: Home) -> int:
    """Stop what ``up`` started and all other processes of this home.

    Raises:
        FinalError: a ``run`` is using the home.
    """
    home.check_owner()
    other = holder(home)
    if other is not None and other.command == "run":
        raise FinalError(
            f"a `make run` (process {other.pid}) is using {home.root}; stop it with Ctrl-C there"
        )
    if other is not None:
        send([other.pid], signal.SIGTERM)
        _show_restarts(home)
        while is_alive(other.pid):
            time.sleep(_END_EVERY)
    left = end_marked(home.root)
    _say("Airflow is stopped." if other is not None or left else "Airflow was not running.")
    return _OK


def _interrupt_on_signals() -> None:
    """Raise ``Interrupted`` at the first signal; ignore later ones, so that cleanup completes."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in numbers:
        signal.signal(each, interrupt)


def _say_phase(phase: str) -> None:
    _say(f"{_PHASE}{phase} …")


def _say(line: str) -> None:
    """Print a message for the user at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
