"""Python processes with TensorFlow already imported, forked from a process that has imported it.

A fresh interpreter spends about 5 s of CPU on importing TensorFlow, Keras, this project and their
dependencies, which is half of the cost of a small replica. A forked one does everything else that a
fresh one does: it runs a module, a script or a program text as ``__main__``, in a folder,
environment and import path of its own. Do not use it to test launchers, command lines, or what an
import does. There is one server for Keras 3, and one for tf_keras, because TF_USE_LEGACY_KERAS acts
during the imports.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType, TracebackType
from unittest import mock

import numpy as np

from aerotrain import replica, training
from aerotrain.supervisor.fork_server import IMPORTED
from aerotrain.supervisor.processes import send

_LEGACY = "TF_USE_LEGACY_KERAS"
_FORKS = multiprocessing.get_context("forkserver")
_ONE_AT_A_TIME = threading.Lock()

#: The fork servers of this process, by the value of TF_USE_LEGACY_KERAS.
_SERVERS: dict[str | None, forkserver.ForkServer] = {}


@atexit.register
def _end_servers() -> None:
    """End the fork servers; by themselves they would destroy what they imported: 1 s of CPU."""
    for server in _SERVERS.values():
        if server._forkserver_pid is not None:
            send([server._forkserver_pid], signal.SIGKILL)


class Forked:
    """A running process, with the parts of ``subprocess.Popen`` that the tests use.

    ``stdout`` is one pipe of lines that also carries stderr.
    """

    def __init__(self, words: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        reading, writing = _FORKS.Pipe(duplex=False)
        self._process: ForkServerProcess = _FORKS.Process(
            target=_run, args=(words, str(folder), dict(environment), list(sys.path), writing)
        )
        with _ONE_AT_A_TIME, _server_for(environment):
            self._process.start()
        writing.close()
        self.stdout: TextIOWrapper = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended the process; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """The rest of the output once the process has ended, and None, as Popen returns."""
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(self.stdout.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(timeout)
        return said[0], None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:  # the fork server may have waited for it already
            send([self.pid], number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()  # a test has failed that may wait for it for ever
        self.wait()
        self.stdout.close()


@contextmanager
def _server_for(environment: Mapping[str, str]) -> Iterator[None]:
    """A scope in which processes are forked from the server with the Keras of ``environment``."""
    legacy = environment.get(_LEGACY)
    server = _SERVERS.setdefault(legacy, forkserver.ForkServer())
    server.set_forkserver_preload(list(IMPORTED))
    with (
        # Otherwise multiprocessing would run the main script of pytest again in each process.
        mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}),
        mock.patch.dict(os.environ),
        mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process),
    ):
        os.environ.pop(_LEGACY, None)
        if legacy is not None:
            os.environ[_LEGACY] = legacy
        yield


def _run(
    words: list[str], folder: str, environment: dict[str, str], path: list[str], output: Connection
) -> None:
    """Run ``python WORDS`` in the forked process, with its output in the pipe."""
    gc.freeze()  # otherwise each collection would visit, and so copy, all that was imported
    for standard in (1, 2):
        os.dup2(output.fileno(), standard)
    output.close()
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", buffering=1, encoding="utf-8", closefd=False) for number in (1, 2)
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    training.set_environment(os.environ)  # as the import does
    replica.begin()
    np.random.seed()
    if words[0] == "-m":
        warnings.filterwarnings("ignore", module="runpy")  # the module may be imported already
        sys.path, sys.argv = ["", *path], words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path, sys.argv = ["", *path], ["-c", *words[2:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path, sys.argv = [str(Path(words[0]).parent), *path], words
        runpy.run_path(words[0], run_name="__main__")
