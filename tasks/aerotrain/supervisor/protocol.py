"""Requests of a task to a supervisor or a fork server: one JSON object each way, by a local socket.

The sockets are in a folder of /tmp that only this user can enter, because the path of a socket is
limited to 107 bytes (unix(7)), and that of a job's folder is often longer.
"""

import hashlib
import json
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.contract.status import Failure, Observation, State, observed_exit

#: Files in a job's folder: the supervisor's last record, and the lock that it holds.
STATUS, LOCK = "status.json", "supervisor.lock"

#: Files in a replica's folder.
LOG, HEARTBEAT, TERMINATION_LOG, WORK = "log", "heartbeat", "termination-log", "work"


#: Seconds for an answer: a supervisor handles one request at a time; ending all takes longest.
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """A request to start a replica; ``restarts`` is its restart count.

    ``warm`` allows preloaded imports for its environment.
    """

    name: str
    restarts: int
    command: Sequence[str]
    environment: Mapping[str, str]
    umask: int
    warm: bool


def observation_of(record: Mapping[str, Any] | None, *, supervised: bool = True) -> Observation:
    """The observation that a supervisor's record of a replica stands for, or its lack of one.

    Without a running supervisor (``supervised``) no replica runs, whatever the last record says.
    """
    if record is None:
        reason = "is gone: its supervisor has no record of it"
        return Observation(state=State.LOST, reason=reason, failure=Failure.NODE, restarts=None)
    restarts, code = record["restarts"], record["exit_code"]
    if record["running"] and supervised:
        age = record["heartbeat_age"]
        return Observation(state=State.RUNNING, restarts=restarts, heartbeat_age=age)
    if code is None:
        reason = "is gone without an exit code"
        return Observation(state=State.LOST, reason=reason, failure=Failure.NODE, restarts=restarts)
    return replace(observed_exit(code, record["message"]), restarts=restarts)


def runtime_folder() -> Path:
    """The folder of this user's sockets.

    Raises:
        FinalError: another user created it, or can enter it.
    """
    folder = Path(f"/tmp/aerotrain-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FinalError(
            f"{folder} should be a folder that only the user {os.getuid()} can enter, and is not; "
            "remove it"
        )
    return folder


def socket_of(folder: Path) -> Path:
    """The socket of the supervisor of the job in ``folder``."""
    return runtime_folder() / f"job-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


def ask(path: Path, **request: Any) -> dict[str, Any]:
    """Send a request and return the answer.

    Raises:
        OSError: there is no listener, or no answer in time; or the request itself failed with this
            error.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = _read(connection)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["error"])
    return answer


def listen(path: Path) -> socket.socket:
    """Open a socket for requests, and replace what exists at ``path``."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def read_request(connection: socket.socket) -> dict[str, Any]:
    """Read a request.

    Raises:
        OSError: the request is incomplete.
    """
    connection.settimeout(5.0)
    return _read(connection)


def _read(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("rb") as stream:
        line = stream.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the other process has closed the connection")
    document: dict[str, Any] = json.loads(line)
    return document


def answer(connection: socket.socket, answered: Mapping[str, Any] | OSError) -> None:
    """Send the answer, if the task still waits for it."""
    if isinstance(answered, OSError):
        answered = {"errno": answered.errno or 0, "error": str(answered)}
    with suppress(OSError):  # the task was killed in the meantime
        connection.sendall(json.dumps(answered).encode() + b"\n")
