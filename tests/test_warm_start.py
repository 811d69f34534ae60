"""Warm start: what is forked from a process with imports, with no other difference."""

import ast
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.launch.process.folder import JobFolder
from aerotrain.launch.process.supervisor_client import ForkServer, SupervisorClient
from aerotrain.store import open_store
from aerotrain.supervisor.fork_rules import NEVER_WITH, may_fork
from support.live_sets import (
    ALONE,
    end_fork_server,
    job,
    process_launcher,
    replica_environment,
)

CHIEF = ReplicaName(Role.CHIEF, 0)

#: The interpreter and the environment of the replicas of these tests.
HOW: Any = (sys.executable, replica_environment())


def training(folder: Path, **environment: str) -> Job:
    described = replace(job(folder, ALONE, {}), module="aerotrain.training.train")
    [chief] = described.replicas
    return replace(described, replicas=(replace(chief, environment=environment),))


def test_a_training_is_forked_and_a_user_module_is_not(tmp_path: Path) -> None:
    assert may_fork(training(tmp_path, WORD="a"), CHIEF, {"HOME": "/home"})
    assert not may_fork(job(tmp_path, ALONE, {}), CHIEF, {"HOME": "/home"})
    threaded = training(tmp_path, OMP_NUM_THREADS="1")  # by another number than the server's
    assert not may_fork(threaded, CHIEF, {})
    assert may_fork(threaded, CHIEF, {"OMP_NUM_THREADS": "1"})


def test_no_fork_server_is_started_for_a_step_without_tensorflow(root: Path) -> None:
    assert not asyncio.run(ForkServer(root / "none", *HOW).fork_supervisor(root, starts=False))
    plan = replace(training(root), module="aerotrain.data.prepare.plan")
    assert may_fork(plan, CHIEF, {})  # from one that is there


@pytest.mark.parametrize("name", NEVER_WITH)
def test_a_variable_that_changes_an_import_prevents_forking(tmp_path: Path, name: str) -> None:
    variable = f"{name}X" if name.endswith("_") else name
    assert not may_fork(training(tmp_path), CHIEF, {variable: "1"})
    assert not may_fork(training(tmp_path, **{variable: "1"}), CHIEF, {})


def test_what_the_imports_set_themselves_does_not_prevent_forking(tmp_path: Path) -> None:
    imported = "import os, keras, tensorflow; print([*os.environ])"
    ran = subprocess.run([sys.executable, "-c", imported], env={}, capture_output=True, check=True)
    names = ast.literal_eval(ran.stdout.decode())
    assert "TPU_ML_PLATFORM" in names
    assert may_fork(training(tmp_path), CHIEF, dict.fromkeys([*names, "KERAS_BACKEND"], "1"))
    assert may_fork(training(tmp_path, KERAS_BACKEND="jax"), CHIEF, {})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of groups whose fork server is ended after these tests."""
    root = tmp_path_factory.mktemp("warm") / "sets"
    root.mkdir()
    yield root
    end_fork_server(root)


@pytest.mark.process
def test_a_forked_replica_has_the_same_environment_as_a_newly_run_one(
    root: Path, tmp_path: Path
) -> None:
    found = []
    for name in ("forked", "run"):
        described = replace(job(tmp_path, ALONE, {"chief": "tell_all"}), name=name)
        found.append(_run_one(root, described, warm=name == "forked"))
    forked, run = found
    assert (forked["imported"], run["imported"]) == (True, False)
    for value in (forked, run):  # the names of their own folders
        value["same"] = json.loads(
            json.dumps(value["same"])
            .replace("/sets/forked/", "/sets/run/")
            .replace('\\"name\\": \\"forked\\"', '\\"name\\": \\"run\\"')
        )
    for each in forked["same"]:
        assert forked["same"][each] == run["same"][each], each
    again = _run_one(
        root, replace(job(tmp_path, ALONE, {"chief": "tell_all"}), name="forked"), warm=True
    )
    assert not set(again["fresh"]) & set(forked["fresh"])


def _run_one(root: Path, described: Job, *, warm: bool) -> Any:
    """Run a replica and its supervisor, both forked or neither; returns the job's result."""
    folder = root / described.name / "try-1"
    JobFolder.make(folder, described, "try-1")
    JobFolder(folder).keep_addresses({CHIEF: "127.0.0.1:20000"})
    server = ForkServer(root, *HOW)
    supervisor = SupervisorClient(folder, *HOW, server if warm else None)
    asyncio.run(supervisor.start_supervisor(warm=warm))
    group = process_launcher(root, HOW[1], "try-1")._backend.group(folder)  # type: ignore[attr-defined]
    start = replace(group._start_of(CHIEF, 0, {}), warm=warm)
    supervisor.start([start], [])
    while supervisor.records()["chief"]["running"]:
        time.sleep(0.01)
    record = supervisor.records()["chief"]
    said = (folder / "chief" / "log").read_text()
    supervisor.end()
    assert record["exit_code"] == 0, said
    return json.loads(open_store(described.prefix).get("result.json"))["value"]


@pytest.mark.process
def test_without_a_fork_server_replicas_are_not_forked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = ForkServer(tmp_path, "/bin/false", {})
    assert not asyncio.run(broken.fork_supervisor(tmp_path))
    assert "nothing is started warm" in caplog.text
