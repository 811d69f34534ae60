"""The clients of a job's supervisor, and of the fork server that may start it (a warm start).

It also has the variables of this process's environment that replicas get.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from logging import getLogger
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.supervisor.fork_rules import import_variables
from aerotrain.supervisor.processes import is_alive, send, umask, wait_until
from aerotrain.supervisor.protocol import (
    ANSWER_SECONDS,
    LOCK,
    Start,
    ask,
    runtime_folder,
    socket_of,
)
from aerotrain.supervisor.supervisor import read_status

#: Seconds without a request after which a fork server ends.
IDLE = 600.0

#: Seconds for its imports, on a busy machine.
_IMPORT_SECONDS = 180.0

#: Seconds for a supervisor to start: it imports little.
_START_SECONDS = 60.0

#: Seconds for the replicas of a killed supervisor to end.
_KILL_SECONDS = 2.0

_POLL_EVERY = 0.02

_LOG = getLogger(__name__)


@dataclass(frozen=True)
class ForkServer:
    """The client of the fork server of one root folder, interpreter and environment.

    It is started when needed.
    """

    root: Path
    python: str
    environment: Mapping[str, str]

    @property
    def socket(self) -> Path:
        of = [str(self.root), self.python, sorted(import_variables(self.environment).items())]
        return runtime_folder() / f"warm-{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]}"

    async def fork_supervisor(self, folder: Path, *, starts: bool = True) -> bool:
        """Fork the supervisor of the job in ``folder``; False if that is not possible.

        If it ``starts``, a missing server is started, and its imports are waited for.
        """
        until = time.monotonic() + _IMPORT_SECONDS
        server: subprocess.Popen[bytes] | None = None
        while time.monotonic() < until:
            if self._fork(folder):
                return True
            if not starts:
                return False
            if server is None:
                server = self._run()
            elif server.poll() not in (None, 0):
                _LOG.warning("nothing is started warm: see %s", self._log)
                return False
            elif server.poll() == 0:
                server = None  # another server was running, and may have ended since
            await asyncio.sleep(_POLL_EVERY)
        return False

    def _fork(self, folder: Path) -> bool:
        with suppress(OSError):
            environment = dict(self.environment)
            asked = {"folder": str(folder), "environment": environment, "umask": umask()}
            return "pid" in ask(self.socket, **asked)
        return False

    @property
    def _log(self) -> Path:
        return self.socket.with_suffix(".log")

    def _run(self) -> subprocess.Popen[bytes]:
        """Run a server, detached; it ends at once if another one is running."""
        command = [self.python, "-m", "aerotrain.supervisor.fork_server"]
        environment = {
            name: value for name, value in self.environment.items() if not name.startswith("AWS_")
        }
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*command, str(self.socket), str(self.root), str(IDLE)],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


#: Names, in which ``*`` stands for any characters.
PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TMPDIR", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LANG", "LANGUAGE", "LC_*", "TZ", "LD_*"),
    # What TensorFlow, Keras, their libraries and the drivers of accelerators read.
    *("TF_*", "KERAS_*", "XLA_*", "ABSL_*", "GRPC_*", "NCCL_*"),
    *("CUDA*", "NVIDIA_*", "HIP_*", "HSA_*", "ROCR_*", "TPU_*"),
    *("ONEDNN_*", "DNNL_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "GOTO_*", "BLIS_*"),
    *("NUMEXPR_*", "NPY_*", "MALLOC_*", "GLIBC_*"),
    # How the store is reached; the credential itself comes from Airflow's connection.
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"),
    *("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"),
    *("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_EC2_METADATA_DISABLED"),
)

#: What of these is not passed: a cluster of Airflow's own process, and secrets of Terraform and of
#: NVIDIA's services.
_EXCLUDED = ("TF_CONFIG", "TF_VAR_*", "TF_TOKEN_*", "NVIDIA_*KEY*", "NVIDIA_*TOKEN*")


def passed(environment: Mapping[str, str], more: Iterable[str]) -> dict[str, str]:
    """The part of ``environment`` that replicas get: ``PASSED``, and the names in ``more``."""
    named = tuple(more)
    return {
        name: value
        for name, value in environment.items()
        if _is_any(name, named) or (_is_any(name, PASSED) and not _is_any(name, _EXCLUDED))
    }


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


#: struct flock, of fcntl(2) on Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")


def holder_of(lock: Path) -> int | None:
    """The process that holds the lock file, as supervisors and fork servers do while they run."""
    try:
        handle = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, wanted))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else pid


class SupervisorClient:
    """The client of the supervisor of the job in ``folder``.

    ``python`` is the interpreter of the supervisor, ``environment`` its environment, and
    ``fork_server`` that from which it is forked instead, if any.
    """

    def __init__(
        self,
        folder: Path,
        python: str,
        environment: Mapping[str, str],
        fork_server: ForkServer | None,
    ) -> None:
        self._folder = folder
        self._python = python
        self._environment = environment
        self._fork_server = fork_server

    def pid(self) -> int | None:
        """The pid of the supervisor, if it is running."""
        return holder_of(self._folder / LOCK)

    async def start_supervisor(self, *, warm: bool, starts: bool = True) -> str | None:
        """Start a supervisor, unless one is running; ``warm`` requests a forked one.

        ``starts`` is whether a fork server may be started for it.

        Returns:
            Why the servers of its replicas will be open to the network, if they will be.

        Raises:
            FinalError: the interpreter cannot run one.
            TemporaryError: it does not respond in time.
            OSError: the machine lacks resources, or the folder was removed.
        """
        if self.pid() is not None:
            return None
        server = self._fork_server if warm else None
        if server is None or not await server.fork_supervisor(self._folder, starts=starts):
            self._run()
        until = time.monotonic() + _START_SECONDS
        while (answer := self._answer()) is None:
            if not self._folder.exists():
                raise FileNotFoundError(f"{self._folder} was removed while its supervisor started")
            if time.monotonic() > until:
                raise TemporaryError(
                    f"the supervisor of {self._folder} did not come up within "
                    f"{_START_SECONDS:.0f} s; the machine may be overloaded"
                )
            await asyncio.sleep(_POLL_EVERY)
        return answer["open"]

    def _run(self) -> None:
        """Run the interpreter and wait for its first process; the supervisor detaches itself."""
        try:
            ran = subprocess.run(
                [self._python, "-m", "aerotrain.supervisor.supervisor", str(self._folder)],
                cwd=self._folder,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
        except FileNotFoundError as error:
            if not self._folder.exists():
                raise
            raise FinalError(
                f"there is no interpreter {self._python}; set [aerotrain] python to the one that "
                "has aerotrain's tensorflow extra"
            ) from error
        if ran.returncode:
            message = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise FinalError(
                f"{self._python} cannot run a supervisor: {' '.join(message)}; set [aerotrain] "
                "python to the interpreter that has aerotrain's tensorflow extra"
            )

    def _answer(self) -> dict[str, Any] | None:
        with suppress(OSError):
            return self._ask("observe")
        return None

    def _ask(self, do: str, **request: Any) -> dict[str, Any]:
        return ask(socket_of(self._folder), do=do, **request)

    def reserve(self, count: int) -> list[int]:
        """Ports of loopback that the supervisor holds for as long as it runs.

        Raises:
            OSError: there is no supervisor, or not enough ports are free.
        """
        return list(self._ask("reserve", count=count)["ports"])

    def start(self, replicas: Sequence[Start], ports: Sequence[int]) -> None:
        """Start these replicas; those that still run are ended first.

        ``ports`` are those of the whole job, which an earlier supervisor may have reserved.

        Raises:
            OSError: there is no supervisor, a port was taken, or the machine lacks resources.
        """
        described = [asdict(each) for each in replicas]
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self._ask("start", replicas=described, ports=list(ports))
                return
            except ConnectionError:  # not read, so sending it again starts nothing twice
                if self.pid() is None or time.monotonic() > until:
                    raise
                time.sleep(_POLL_EVERY)

    def records(self) -> dict[str, Any]:
        """The record of each replica by name; if the supervisor has ended, its last status."""
        until = time.monotonic() + ANSWER_SECONDS
        while self.pid() is not None:
            with suppress(OSError):
                return dict(self._ask("observe")["replicas"])
            if time.monotonic() > until:
                self._kill()  # a frozen supervisor leaves its replicas unobserved
            time.sleep(_POLL_EVERY)  # it is still starting, or has just ended
        return read_status(self._folder)

    def end(self) -> None:
        """End every process of the job, and the supervisor with them; remove the folder.

        The supervisor does so even if this process is killed meanwhile, as Airflow kills a task
        that does not end within seconds.
        """
        supervisor = self.pid()
        with suppress(OSError):
            self._ask("end")
        self._kill()
        if supervisor is not None:
            _wait_for_end([supervisor])
        socket_of(self._folder).unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        """Kill the supervisor if it is still running; its replicas are killed with it."""
        if (pid := self.pid()) is None:
            return
        replicas = [int(each["pid"]) for each in read_status(self._folder).values()]
        send([pid], signal.SIGKILL)
        _wait_for_end([pid, *replicas])


def _wait_for_end(processes: Sequence[int]) -> None:
    wait_until(lambda: not any(map(is_alive, processes)), _KILL_SECONDS)
