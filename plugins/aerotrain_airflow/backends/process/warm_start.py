"""Warm start: forks replicas from a process that has already imported TensorFlow.

A fork shares all results of its parent's imports. So a replica whose imports could have other
results is started by running the interpreter instead, as is every replica if the setting is off.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.supervisor.processes import umask
from aerotrain.supervisor.protocol import ask, runtime_folder

#: The modules of jobs that use TensorFlow and whose imports are all preloaded. A module of the user
#: may do anything on import, so it is not forked.
MODULES = frozenset(
    {"aerotrain.check", "aerotrain.train", "aerotrain.evaluate", "aerotrain.export"}
)

#: Prefixes of variables that exclude a fork: they change the results of an import, or concern
#: devices, whose drivers do not survive a fork.
NEVER_WITH = (
    "TF_USE_LEGACY_KERAS",
    "TF_GPU_",
    "TF_FORCE_GPU",
    "TF_XLA_",
    "XLA_",
    "KERAS_BACKEND",
    "CUDA",
    "NVIDIA_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "TPU_",
    "LD_PRELOAD",
    "LD_AUDIT",
)

#: Prefixes of other variables that an import may read: a replica is forked only from a process that
#: has the same values.
_READ_BY_IMPORTS = (
    *("PYTHON", "VIRTUAL_ENV", "PATH", "HOME", "LANG", "LC_", "TZ", "LD_", "GLIBC_", "MALLOC_"),
    *("TF_", "KERAS_", "ABSL_", "GRPC_", "ONEDNN_", "DNNL_", "OMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("GOTO_", "BLIS_", "NUMEXPR_", "NPY_"),
)

#: Device files of accelerator drivers. If one exists, nothing is forked.
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/dxg")

#: Seconds without a request after which a fork server ends.
IDLE = 600.0

#: Seconds for its imports, on a busy machine.
_IMPORT_SECONDS = 180.0

_POLL_EVERY = 0.05
_ANSWER_SECONDS = 10.0

_LOG = getLogger(__name__)


def may_fork(job: Job, name: ReplicaName, environment: Mapping[str, str]) -> bool:
    """Whether this replica of the job may be forked from the server of ``environment``."""
    own = {**environment, **job.replica(name.role).environment}
    return (
        job.module in MODULES
        and not any(variable.startswith(NEVER_WITH) for variable in own)
        and not any(map(os.path.exists, _DEVICES))
        and _import_variables(own) == _import_variables(environment)
    )


def _import_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_BY_IMPORTS)}


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
        of = [str(self.root), self.python, sorted(_import_variables(self.environment).items())]
        return runtime_folder() / f"warm-{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]}"

    async def fork_supervisor(self, folder: Path, *, wait: bool) -> bool:
        """Fork the supervisor of the job in ``folder``; False if that is not possible.

        With ``wait`` a missing server is started, and its imports are waited for.
        """
        request = {
            "folder": str(folder),
            "environment": dict(self.environment),
            "umask": umask(),
        }
        until = time.monotonic() + _IMPORT_SECONDS
        server: subprocess.Popen[bytes] | None = None
        while time.monotonic() < until:
            if self._fork(request):
                return True
            if not wait:
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

    def _fork(self, request: Mapping[str, Any]) -> bool:
        with suppress(OSError):
            return "pid" in ask(self.socket, request, seconds=_ANSWER_SECONDS)
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
