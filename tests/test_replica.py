"""How a replica starts, whichever launcher started it."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import requests

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import Job
from aerotrain.contract.layout import status_key
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import ReplicaStatus
from aerotrain.lease import Lease
from aerotrain.replica import Replica, exit_code_of
from aerotrain.store import open_store
from aerotrain.training.background.writers import StatusWriter

pytestmark = pytest.mark.process

CHIEF = ReplicaName(Role.CHIEF, 0)

#: A user's module that prints its environment when it is imported, before it runs.
MODULE = """
import os, tempfile
FOUND = {"tf_config": os.environ.get("TF_CONFIG"), "temporary": tempfile.gettempdir()}
def run(replica):
    return FOUND
"""


def job_of(folder: Path, strategy: str, *roles: str) -> Job:
    return Job.from_dict(
        {
            "name": "find",
            "module": "finder",
            "code": str(folder / "code"),
            "store": (folder / "store").as_uri(),
            "run": "run",
            "task": "find",
            "strategy": strategy,
            "replicas": [{"role": role} for role in roles],
        }
    )


def life_in(
    folder: Path,
    module: str,
    strategy: str,
    *roles: str,
    stdout: int | IO[str] = subprocess.PIPE,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The completed process of a chief that ran ``module`` as finder.py."""
    (folder / "code").mkdir()
    (folder / "code" / "finder.py").write_text(module)
    job = job_of(folder, strategy, *roles)
    addresses = {name: f"{name}.find:2222" for name in job.names()}
    told = replica_environment(job, CHIEF, addresses, attempt="1")
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "aerotrain.replica"],
        cwd=folder,
        env={**os.environ, **told, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        text=True,
        timeout=60,
    )


def found_by(
    folder: Path, strategy: str, *roles: str, module: str = MODULE, **environment: str
) -> Any:
    ended = life_in(folder, module, strategy, *roles, **environment)
    assert ended.returncode == ExitCode.OK
    return json.loads((folder / "store/runs/run/find/result.json").read_text())["value"]


def test_the_module_of_a_replica_has_the_cluster_and_its_own_task_in_tf_config(
    tmp_path: Path,
) -> None:
    found = found_by(tmp_path, "multi_worker_mirrored", "chief", "worker", TF_CONFIG="not this")
    assert json.loads(found["tf_config"]) == {
        "cluster": {"chief": ["chief.find:2222"], "worker": ["worker-0.find:2222"]},
        "task": {"type": "chief", "index": 0},
    }


def test_a_single_replica_has_no_cluster_and_a_folder_for_temporary_files(tmp_path: Path) -> None:
    folder = str(tmp_path / "scratch" / "tmp")  # on a disk that was empty at first
    found = found_by(tmp_path, "one_device", "chief", TF_CONFIG='{"cluster": {}}', TMPDIR=folder)
    assert found == {"tf_config": None, "temporary": folder}


def test_a_replica_reports_the_node_of_its_pod(tmp_path: Path) -> None:
    job = job_of(tmp_path, "one_device", "chief")
    environment = replica_environment(job, CHIEF, {CHIEF: ""}, attempt="1")
    replica = Replica.from_environment({**environment, "AEROTRAIN_NODE": "node-7"}, tmp_path)
    store = open_store(job.prefix)
    StatusWriter(store, "chief", replica.node)._report()
    [process] = ReplicaStatus.from_json(store.get(status_key("chief"))).processes
    assert process.host == "node-7"


#: A module that replaces the C handler of SIGTERM, as TensorFlow's coordination service does.
DEAF = """
import ctypes, os, signal, time
from aerotrain.replica import Preempted
def run(replica):
    replica.notice.promise()
    c = ctypes.CDLL(None)
    c.signal(int(signal.SIGTERM), ctypes.cast(c.abs, ctypes.c_void_p))
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        if replica.notice.given():
            raise Preempted("saved")
        time.sleep(0.01)
"""


def test_a_replica_with_peers_is_preempted_whoever_has_replaced_the_handler(tmp_path: Path) -> None:
    ended = life_in(tmp_path, DEAF, "multi_worker_mirrored", "chief", "worker")
    assert (ended.returncode, "saved" in ended.stdout) == (ExitCode.TERMINATED, True)


@pytest.mark.parametrize("promise", ["pass", "replica.notice.promise()"])
def test_a_preempted_replica_ends_with_the_exit_code_of_sigterm(
    tmp_path: Path, promise: str
) -> None:
    module = (
        "import os, signal, time\n"
        f"def run(replica):\n    {promise}\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(50)\n"
    )
    ended = life_in(tmp_path, module, "one_device", "chief", AEROTRAIN_GRACE="0.5")
    assert ended.returncode == ExitCode.TERMINATED
    assert "preempted (SIGTERM)" in ended.stdout


#: A user's module that fails in a function, called by the standard library.
FAILING = """
import json
def read():
    return json.loads("not")
def run(replica):
    return read()
"""


def fetched(address: str, folder: Path) -> None:
    import keras

    keras.utils.get_file("weights.h5", address, cache_dir=folder)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda folder: fetched("https://weights.invalid/a.h5", folder), ExitCode.TEMPORARY),
        (lambda folder: fetched("http://127.0.0.1:1/a.h5", folder), ExitCode.TEMPORARY),
        (lambda folder: fetched("nothing://127.0.0.1/a.h5", folder), ExitCode.FINAL),
        (lambda _: requests.get("http://127.0.0.1:1/", timeout=5), ExitCode.TEMPORARY),
        (lambda _: requests.get("nothing", timeout=5), ExitCode.FINAL),
        (lambda _: urlopen("http://127.0.0.1:1/"), ExitCode.TEMPORARY),
        (lambda _: socket.getaddrinfo("weights.invalid", 80), ExitCode.TEMPORARY),
        (lambda _: raised(TimeoutError("timed out")), ExitCode.TEMPORARY),
        (lambda _: raised(OSError(errno.ENETUNREACH, "unreachable")), ExitCode.TEMPORARY),
        (lambda _: raised(HTTPError("", 503, "busy", Message(), None)), ExitCode.TEMPORARY),
        (lambda _: raised(HTTPError("", 404, "none", Message(), None)), ExitCode.FINAL),
        (lambda folder: (folder / "weights.h5").read_bytes(), ExitCode.FINAL),
    ],
)
def test_a_service_that_is_away_is_temporary_for_the_code_of_a_user_too(
    call: Callable[[Path], object], code: ExitCode, tmp_path: Path
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- the type is the user's matter
        call(tmp_path)
    assert exit_code_of(caught.value) is code


def raised(error: Exception) -> None:
    raise error


def test_the_termination_message_of_an_exception_names_the_line_of_user_code(
    tmp_path: Path,
) -> None:
    log = tmp_path / "last-words"
    ended = life_in(tmp_path, FAILING, "one_device", "chief", AEROTRAIN_TERMINATION_LOG=str(log))
    assert ended.returncode == ExitCode.FINAL
    assert log.read_text() == (
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (line 4 of finder.py, in read)"
    )


def test_the_lease_of_a_replica_that_has_failed_blocks_no_other_launch(tmp_path: Path) -> None:
    module = "def run(replica):\n    replica.lease.take()\n    raise ValueError\n"
    life_in(tmp_path, module, "one_device", "chief")
    store = open_store((tmp_path / "store/runs/run/find").as_uri())
    pauses: list[float] = []
    later = Lease(store, attempt="2", restarts=0, place="here", pause=pauses.append)
    later.take()
    assert (later.token, pauses) == (2, [])


def test_a_full_disk_for_its_log_does_not_end_a_replica(tmp_path: Path) -> None:
    talker = "def run(replica):\n    for line in range(1000):\n        print(line, flush=True)\n"
    with Path("/dev/full").open("w") as full:
        ended = life_in(tmp_path, talker, "one_device", "chief", stdout=full)
    assert ended.returncode == ExitCode.OK


#: A module that imports what a chief does, and then scikit-learn.
LEARNER = """
import sys
from aerotrain.replica import imported
imported("aerotrain.training.chief", "train")
FOUND = [name in sys.modules for name in ("keras", "sklearn", "scipy")]
import sklearn.base
def run(replica):
    return FOUND
"""


def test_scikit_learn_is_imported_only_if_a_module_of_the_user_does_so(tmp_path: Path) -> None:
    assert found_by(tmp_path, "one_device", "chief", module=LEARNER) == [True, False, False]
