"""The fork server: a process with the imports of a training, from which supervisors are forked.

``python -m aerotrain.supervisor.fork_server SOCKET ROOT IDLE``. It ends after ``IDLE`` seconds
without a request, or when the folder ``ROOT`` of its jobs is removed. It runs no TensorFlow
operation and has a single Python thread. It holds about 500 MiB, which all processes forked from it
share. ``fork_rules`` says which replicas may be.
"""

import fcntl
import gc
import importlib
import importlib.util
import os
import random
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from aerotrain.contract.errors import TemporaryError
from aerotrain.supervisor.fork_rules import MODULES, WITHOUT_TENSORFLOW
from aerotrain.supervisor.processes import close_all_but, name_process, open_files, reset_signals
from aerotrain.supervisor.protocol import answer, listen, read_request
from aerotrain.supervisor.replica_process import Preloaded
from aerotrain.supervisor.supervisor import supervise

#: The modules of jobs, and what they import on use, including the store's client.
IMPORTED = (
    *("boto3", "numpy", "aerotrain.replica", "aerotrain.store.s3"),
    *MODULES,
    *WITHOUT_TENSORFLOW,
    *(
        "aerotrain.training.chief",
        "aerotrain.training.hooks.validation",
        "aerotrain.training.servers",
    ),
)

#: Packages that make this process stale when another version of one is installed.
_PACKAGES = ("aerotrain", "tensorflow", "keras", "numpy")

#: Seconds between two checks that the folder exists.
_LOOK_EVERY = 5.0


def preload() -> Preloaded:
    """Import what a training imports, for the processes that are forked from this one.

    Raises:
        TemporaryError: an import has started threads, which no fork has.
    """
    before, opened = version(), {*open_files()}
    gc.disable()  # what is imported is no garbage, and searching it takes a fifth of the imports
    for name in IMPORTED:
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise TemporaryError(
            f"an import has started threads, which no fork has: {threading.enumerate()}"
        )
    kept = {*open_files()} - opened
    gc.collect()
    gc.freeze()  # otherwise the first collection of each fork would copy all pages
    gc.enable()
    return Preloaded(_become_replica, kept, is_stale=lambda: version() != before)


def _become_replica(environment: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    """Run ``python -m aerotrain.replica`` in this process, as a new interpreter would."""
    import numpy as np

    from aerotrain import replica

    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # an import has set it; TMPDIR is the replica's own
    module: ModuleType = replica
    sys.modules["__main__"] = module
    sys.argv = [str(replica.__file__), *command[3:]]
    sys.path[0] = str(Path.cwd())
    random.seed()
    np.random.seed()
    replica.begin()
    replica.main()
    os._exit(0)


def version(sources: Path = Path(__file__).parent.parent) -> object:
    """A value that changes when a module below ``sources``, or one of the packages, changes."""
    files = [Path(sys.executable)]
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            files.append(Path(spec.origin))
    files += sorted(sources.rglob("*.py"))
    return [(str(file), _changed(file)) for file in files]


def _changed(file: Path) -> int:
    """The time of the file's last change; 0 while it is being replaced."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


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
            request = read_request(connection)
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
