"""How a replica comes to life, whoever launched it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.cluster import replica_environment
from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import Job, ReplicaName, Role

pytestmark = pytest.mark.process

CHIEF = ReplicaName(Role.CHIEF, 0)

#: A module of a user's that tells what it finds when it is imported, before it runs.
MODULE = """
import os, tempfile
FOUND = {"tf_config": os.environ.get("TF_CONFIG"), "temporary": tempfile.gettempdir()}
def run(replica):
    return FOUND
"""


def found_by(folder: Path, strategy: str, *roles: str, **environment: str) -> Any:
    (folder / "code").mkdir()
    (folder / "code" / "finder.py").write_text(MODULE)
    job = Job.from_dict(
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
    addresses = {name: f"{name}.find:2222" for name in job.names()}
    told = replica_environment(job, CHIEF, addresses, attempt="1")
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        [sys.executable, "-m", "aerotrain.replica"],
        cwd=folder,
        env={**os.environ, **told, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert ended.returncode == ExitCode.OK
    return json.loads((folder / "store/runs/run/find/result.json").read_text())["value"]


def test_its_module_finds_the_cluster_and_its_own_place_in_it(tmp_path: Path) -> None:
    found = found_by(tmp_path, "multi_worker_mirrored", "chief", "worker", TF_CONFIG="not this")
    assert json.loads(found["tf_config"]) == {
        "cluster": {"chief": ["chief.find:2222"], "worker": ["worker-0.find:2222"]},
        "task": {"type": "chief", "index": 0},
    }


def test_alone_it_is_in_no_cluster_and_its_temporary_files_have_a_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "scratch" / "tmp")  # on a disk that came empty
    found = found_by(tmp_path, "one_device", "chief", TF_CONFIG='{"cluster": {}}', TMPDIR=folder)
    assert found == {"tf_config": None, "temporary": folder}
