"""The fork server: a process with the imports of a training, from which supervisors are forked.

``python -m aerotrain.supervisor.fork_server SOCKET ROOT IDLE``. It ends after ``IDLE`` seconds
without a request, or when the folder ``ROOT`` of its jobs is removed.
"""

import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from aerotrain.supervisor.preloading import preload
from aerotrain.supervisor.processes import close_all_but, name_process, reset_signals
from aerotrain.supervisor.protocol import answer, listen, read_request
from aerotrain.supervisor.replica_process import Preloaded
from aerotrain.supervisor.supervisor import supervise

#: Seconds between two checks that the folder exists.
_LOOK_EVERY = 5.0


def main() -> None:
    path, root, idle = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # another one is running
    preloaded = preload()
    name_process("fork-server")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with listen(path) as listener:
        try:
            _serve_until_idle(listener, root, idle, preloaded)
        finally:
            path.unlink(missing_ok=True)


def _serve_until_idle(
    listener: socket.socket, root: Path, idle: float, preloaded: Preloaded
) -> None:
    asked = time.monotonic()
    while root.exists() and time.monotonic() < asked + idle:
        if select.select([listener], [], [], min(idle, _LOOK_EVERY))[0]:
            if not _serve(listener, preloaded):
                return
            asked = time.monotonic()


def _serve(listener: socket.socket, preloaded: Preloaded) -> bool:
    """Answer one request; return whether to continue."""
    connection, _ = listener.accept()
    with connection:
        try:
            request, _ = read_request(connection)
            if preloaded.is_stale():
                answer(connection, {"stale": True})
                return False
            pid = os.fork()
        except OSError as error:
            answer(connection, error)
            return True
        if pid == 0:
            _be_supervisor(request, preloaded)
        answer(connection, {"pid": pid})
    return True


def _be_supervisor(request: Mapping[str, Any], preloaded: Preloaded) -> NoReturn:
    """Become the supervisor of the job in a folder; never run the parent's cleanup."""
    try:
        os.setsid()
        close_all_but(preloaded.files)
        reset_signals()
        os.umask(request["umask"])
        os.environ.clear()
        os.environ.update(request["environment"])
        folder = Path(request["folder"])
        os.chdir(folder)
        supervise(folder, preloaded)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
