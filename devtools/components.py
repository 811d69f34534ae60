"""Airflow's components: processes that are forked from one that has imported Airflow."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from aerotrain.contract.errors import FinalError
from aerotrain.supervisor.processes import is_alive, send, session_of
from devtools import preloaded
from devtools.home import Home
from devtools.servers import Restartable, last_lines

_ALL = ("airflow.__main__", "airflow.cli.cli_parser", "airflow.models", "airflow.serialization")
_OF_TASKS = (
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "aerotrain_airflow.steps",
    "aerotrain_airflow.params",
    "aerotrain.launch.process.backend",
    "aerotrain.store.s3",
    "airflow.providers.amazon.aws.hooks.base_aws",
)
_COMMANDS = "airflow.cli.commands"
_PROCESSOR = (f"{_COMMANDS}.dag_processor_command", "airflow.dag_processing.processor")
_SCHEDULER = (f"{_COMMANDS}.scheduler_command", "airflow.executors.local_executor")
_API_SERVER = ("uvicorn", f"{_COMMANDS}.api_server_command", "airflow.api_fastapi.app")

#: How ``airflow`` is called for each component, and the modules that it imports at its start, or
#: before it serves.
COMPONENTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "migration": ("db migrate", (*_ALL, f"{_COMMANDS}.db_command", "airflow.utils.db")),
    "api-server": ("api-server", (*_ALL, *_API_SERVER)),
    "dag-processor": ("dag-processor", (*_ALL, *_OF_TASKS, *_PROCESSOR)),
    "scheduler": ("scheduler --skip-serve-logs", (*_ALL, *_OF_TASKS, *_SCHEDULER)),
    "triggerer": (
        "triggerer --skip-serve-logs",
        (*_ALL, f"{_COMMANDS}.triggerer_command"),
    ),
}


class Preloaded:
    """The client of a process that has imported Airflow, in a session of its own."""

    def __init__(self, environment: Mapping[str, str], home: Home) -> None:
        self._log = home.logs / "preloaded.log"
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", preloaded.__file__, str(theirs.fileno())],
                env=environment,
                cwd=home.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        with ours:
            self._stream = ours.makefile("rw")

    def ask(self, request: Mapping[str, Any]) -> int:
        """The answer to a request, as ``preloaded`` describes them.

        Raises:
            FinalError: the process has ended; its last lines are in the message.
        """
        with suppress(OSError):
            print(json.dumps(request), file=self._stream, flush=True)
            if answer := self._stream.readline():
                return int(answer)
        raise FinalError(f"Airflow could not start; {self._log} ends:\n{last_lines(self._log)}")

    def end(self) -> None:
        """End it; the components continue."""
        with suppress(OSError):
            self._stream.close()
        self._process.kill()
        self._process.wait()


class Component(Restartable):
    """A process of Airflow in a session of its own, with its output in a log file.

    The id of the session, which is that of the process, is added to the home's ``sessions``.
    Ctrl-C in the terminal does not reach it.
    """

    def __init__(
        self, name: str, environment: Mapping[str, str], airflow: Preloaded, home: Home
    ) -> None:
        super().__init__(name, home.logs / f"{name}.log")
        subcommand, modules = COMPONENTS[name]
        self._airflow = airflow
        self._start = {
            "words": subcommand.split(),
            "environment": dict(environment),
            "log": str(self._log),
            "modules": modules,
        }
        self._log.unlink(missing_ok=True)
        self._sessions = home.sessions
        self._dead: set[int] = set()
        self.start()

    def start(self) -> None:
        self.pid = self._airflow.ask({"start": self._start})
        with self._sessions.open("a") as file:
            print(self.pid, file=file)
        self._exit_code: int | None = None

    @property
    def has_ended(self) -> bool:
        """Until it is waited for, its process id is that of no other process."""
        return self._exit_code is not None or not is_alive(self.pid)

    def exit_code(self) -> int:
        if self._exit_code is None:
            self._exit_code = self._airflow.ask({"wait": self.pid})
        return self._exit_code

    def restart_if_ended(self) -> str:
        self._dead = {each for each in self._dead if _end_idle(each)}
        pid = self.pid
        if said := super().restart_if_ended():
            self._dead.add(pid)
        return said

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            FinalError: it failed; its last lines are in the message.
        """
        if self.exit_code() != 0:
            raise self._failure()

    def kill(self) -> None:
        """Kill the process, but none of its children."""
        if self._exit_code is None:
            send([self.pid], signal.SIGKILL)  # not waited for, so that it is no other one
            with suppress(FinalError):
                self.exit_code()


def _end_idle(session: int) -> bool:
    """Kill the orphans of a component that has ended, except those with children of their own.

    These are the workers of the scheduler that supervise a task, which continues. Returns whether
    there are any.
    """
    parents = {each.pid: each.info["ppid"] for each in psutil.process_iter(["ppid"])}
    members = [pid for pid in parents if session_of(pid) == session]
    for pid in members:
        if parents[pid] not in members and pid not in parents.values():
            send([pid], signal.SIGKILL)
    return bool(members)
