"""Warm start: the client of a fork server, from which the supervisor of a job is forked.

It also has the variables of this process's environment that replicas get.
"""

import asyncio
import hashlib
import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from logging import getLogger
from pathlib import Path
from typing import Any

from aerotrain.supervisor.fork_rules import import_variables
from aerotrain.supervisor.processes import umask
from aerotrain.supervisor.protocol import ask, runtime_folder

#: Seconds without a request after which a fork server ends.
IDLE = 600.0

#: Seconds for its imports, on a busy machine.
_IMPORT_SECONDS = 180.0

_POLL_EVERY = 0.05
_ANSWER_SECONDS = 10.0

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
