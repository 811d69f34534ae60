"""Replicas of one job, each a process of this machine, with their output and their memory.

They are forked from a process that has imported their module, as local replicas are by default: the
imports take 5 s of CPU, more than most of the trainings. ``python -m benchmarks.replicas`` is that
process. It gets requests and open files by a socket, and ends when that is closed.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from aerotrain.contract.environment import replica_environment, set_tensorflow_variables
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.supervisor.ports import reserved_addresses
from aerotrain.supervisor.preloading import IMPORTED
from aerotrain.supervisor.processes import end_with, send

ROOT = Path(__file__).parent.parent
REPLICA = "aerotrain.replica"

#: Bytes of the longest request.
_LONGEST = 2**17


@dataclass(frozen=True)
class Said:
    """A line of the chief's output, and when it came, in seconds."""

    seconds: float
    line: str


@dataclass(frozen=True)
class Ended:
    """The chief's output, and the peak memory of each replica, in MiB, by its name."""

    said: Sequence[Said]
    memory: Mapping[str, float]


class Processes:
    """Runs jobs in ``folder``; a context that ends their processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[Any, ForkServer] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, *needed: tuple[str, Mapping[str, str]]) -> None:
        """Start the processes from which replicas of these modules and environments are forked."""
        for module, environment in needed:
            server = ForkServer(module, environment)
            self._servers[module, *environment.items()] = self._stack.enter_context(server)

    def run(
        self,
        job: Job,
        module: str = REPLICA,
        words: Sequence[str] = (),
        *,
        devices: int = 1,
        environment: Mapping[str, str] | None = None,
        may_fail: bool = False,
    ) -> Ended:
        """Run ``module`` in a process for each replica until the chief ends; others are killed.

        ``devices`` is the number of virtual CPU devices of each process.

        Raises:
            RuntimeError: the chief has failed and may not; the message is its output.
        """
        server = self._server(module, environment or {})
        with ExitStack() as stack:
            addresses, _ = stack.enter_context(reserved_addresses(job))
            output, of_chief = os.pipe()
            pids = {}
            for name in job.names():
                own = replica_environment(job, name, addresses, attempt="1")
                # A module that is no replica of ours reads TF_CONFIG itself.
                set_tensorflow_variables(own)
                is_chief = name.role is Role.CHIEF
                pids[str(name)] = server.fork(
                    of_chief if is_chief else os.open(os.devnull, os.O_WRONLY),
                    folder=self._scratch_of(job, str(name)),
                    environment={**server.environment, **own},
                    module=module,
                    words=list(words),
                    devices=devices,
                )
                stack.callback(server.kill, pids[str(name)])
            with os.fdopen(output) as lines:
                said = [Said(time.monotonic(), line) for line in lines]
            memory = {}
            code, memory["chief"] = server.wait(pids["chief"])
            if code and not may_fail:
                text = "".join(each.line for each in said)
                raise RuntimeError(f"the chief of {job.run} has failed:\n{text}")
            for name, pid in pids.items():
                if name != "chief":
                    server.kill(pid)
                    _, memory[name] = server.wait(pid)
        return Ended(said, memory)

    def _server(self, module: str, environment: Mapping[str, str]) -> "ForkServer":
        key = (module, *environment.items())
        with self._lock:
            if key not in self._servers:
                self.start((module, environment))
            for each in self._servers.values():
                each.wait_for_imports()  # none may import while a job is timed
        return self._servers[key]

    def _scratch_of(self, job: Job, replica: str) -> str:
        folder = self._folder / "scratch" / job.run / replica
        folder.mkdir(parents=True)
        return str(folder)


class ForkServer:
    """A process that has imported ``module``; it is ended at the end of the context."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        paths = os.pathsep.join([str(ROOT / "tasks"), str(ROOT)])
        self.environment = {**os.environ, "PYTHONPATH": paths, **environment}
        self._lock = threading.Lock()
        self._ended: dict[int, tuple[int, float]] = {}
        self._is_ready = False
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        imported = IMPORTED if module == REPLICA else (module,)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.replicas", str(its.fileno()), *imported],
                env=self.environment,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        self._process.wait()

    def wait_for_imports(self) -> None:
        if not self._is_ready:
            self._receive()
            self._is_ready = True

    def fork(self, output: int, **request: Any) -> int:
        """The id of a new process that writes to the file ``output``, which is closed here."""
        pid: int = self._ask(request, [output])
        os.close(output)
        return pid

    def kill(self, pid: int) -> None:
        """Kill the process, unless it has been waited for."""
        if pid not in self._ended:
            send([pid], signal.SIGKILL)

    def wait(self, pid: int) -> tuple[int, float]:
        """The exit code of a process, and its peak memory in MiB."""
        while (ended := self._ask({"pid": pid})) is None:
            time.sleep(0.01)
        self._ended[pid] = ended[0], ended[1]
        return self._ended[pid]

    def _ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            return self._receive()

    def _receive(self) -> Any:
        answer = self._socket.recv(_LONGEST)
        if not answer:
            raise RuntimeError("the process that forks replicas has ended; see its output above")
        return json.loads(answer)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise the first collection of each fork would copy all pages
    channel.send(b"true")  # ready
    own = os.getpid()
    while True:
        message, files, _, _ = socket.recv_fds(channel, _LONGEST, 1)
        if not message:
            return
        request = json.loads(message)
        answer: Any
        if files:
            answer = os.fork()
            if not answer:
                end_with(own, signal.SIGKILL)
                become(output=files[0], **request)
            os.close(files[0])
        else:
            pid, status, usage = os.wait4(request["pid"], os.WNOHANG)
            ended = (os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024)
            answer = ended if pid else None
        channel.send(json.dumps(answer).encode())


def become(
    *,
    output: int,
    folder: str,
    environment: Mapping[str, str],
    module: str,
    words: Sequence[str],
    devices: int,
) -> NoReturn:
    """Run ``python -m MODULE WORDS`` in this process, as a new interpreter would."""
    import tensorflow as tf

    from aerotrain import replica, training

    code = 1
    try:
        for standard in (1, 2):
            os.dup2(output, standard)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        training.set_environment(
            os.environ
        )  # importing the package does this, but it is already imported
        replica.begin()
        warnings.filterwarnings("ignore", module="runpy")  # the module is imported already
        if devices > 1:
            [cpu] = tf.config.list_physical_devices("CPU")
            each = [tf.config.LogicalDeviceConfiguration()] * devices
            tf.config.set_logical_device_configuration(cpu, each)
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:  # noqa: BLE001 -- an interpreter prints any error, too
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
