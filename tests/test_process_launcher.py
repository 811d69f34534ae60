"""The launcher of local processes, with real processes."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from aerotrain.contract.errors import SpecError, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure, Observation, State, job_state
from aerotrain.launch.launcher import Launcher
from aerotrain.supervisor.processes import is_alive
from aerotrain.supervisor.protocol import socket_of
from support import live_sets
from support.listening import listening, open_to_network
from support.live_sets import (
    SERVED,
    process_launcher,
    processes_of,
    replica_environment,
    replica_pid,
)
from support.waiting import wait_for

pytestmark = pytest.mark.process

CHIEF = ReplicaName(Role.CHIEF, 0)
WORKER = ReplicaName(Role.WORKER, 1)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher[Any]]:
    launcher = process_launcher(tmp_path / "sets", replica_environment(), "try-1")
    yield launcher
    for folder in (tmp_path / "sets").glob("*/*"):
        process_launcher(tmp_path / "sets", {}, (folder / "holder").read_text()).stop(str(folder))


def job(tmp_path: Path, **does: str) -> Job:
    return live_sets.job(tmp_path, SERVED, {"chief": "serve", **does})


def test_a_job_of_more_processes_than_the_machine_can_serve_is_refused(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    few = job(tmp_path)
    workers = replace(few.replica(Role.WORKER), count=100_000)
    others = [each for each in few.replicas if each.role is not Role.WORKER]
    with pytest.raises(
        SpecError, match=r"has 10000\d replicas, and this machine has \d+ cores.*at "
    ):
        launcher.plan(replace(few, replicas=(*others, workers)), "try-1")


def test_the_job_succeeds_with_its_chief_and_passes_every_line_on(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path, chief="finish"), "try-1"))
    seen, lines = _to_the_end(launcher, handle)
    assert seen[CHIEF] == Observation(state=State.SUCCEEDED, exit_code=0, reason="exited with 0")
    assert seen[WORKER].state is State.RUNNING
    assert "[worker-1] hello from worker-1 in work" in lines
    assert "[chief] no line end at the end" in lines
    assert len(lines) == len(set(lines))


def test_lines_of_a_replica_and_its_children_do_not_mix(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path, chief="print_with_a_child"), "try-1"))
    _, lines = _to_the_end(launcher, handle)
    assert lines.count("[chief] a whole line") == 4000


@pytest.mark.parametrize(
    ("role", "does", "state", "reason"),
    [
        ("worker", "fail", State.FAILED, "exited with 65: the label 7 is outside 0 to 3"),
        (
            "ps",
            "crash",
            State.FAILED,
            "exited with 65: ZeroDivisionError: a bug of the user's own "
            "(line 90 of small_jobs.py, in crash)",
        ),
        ("chief", "vanish", State.LOST, "was ended by signal 9"),
    ],
)
def test_the_end_of_a_failed_replica_has_its_reason(
    launcher: Launcher[Any], tmp_path: Path, role: str, does: str, state: State, reason: str
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path, **{role: does}), "try-1"))
    seen, _ = _to_the_end(launcher, handle)
    assert job_state(seen) is state
    assert reason in [each.reason for each in seen.values()]


def test_stop_ends_the_whole_group_with_its_grandchildren_and_leaves_nothing(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path, worker="leave_grandchildren"), "try-1"))
    lines: list[str] = []

    def have_begun() -> bool:
        launcher.observe(handle, lambda line: lines.append(str(line)))
        return sum("child " in line for line in lines) == 6

    wait_for("six children", have_begun, seconds=60)
    children = [int(line.split()[-1]) for line in lines if "child " in line]

    began = time.monotonic()
    launcher.stop(handle)

    assert time.monotonic() - began < 5, "Airflow gives a killed task five seconds"
    assert not [pid for pid in children if is_alive(pid)]
    assert not processes_of(handle)
    assert not Path(handle).exists()


def test_the_network_does_not_reach_the_servers_of_replicas(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path, worker="serve_everywhere"), "try-1"))
    lines: list[str] = []

    def all_reached() -> bool:
        launcher.observe(handle, lambda line: lines.append(str(line)))
        return sum("reached" in line for line in lines) == 4

    wait_for("two servers and their children", all_reached, seconds=60)
    found = listening(processes_of(handle))
    assert len(found) == (10 if socket.has_dualstack_ipv6() else 4)
    assert open_to_network(found) == []


def test_a_task_that_is_killed_while_it_stops_its_group_leaves_nothing(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path), "try-1"))
    with socket.socket(socket.AF_UNIX) as killed:  # before the answer
        killed.connect(str(socket_of(Path(handle))))
        killed.sendall(b'{"do": "end"}\n')
    wait_for("no folder", lambda: not Path(handle).exists(), seconds=60)
    wait_for("no process", lambda: not processes_of(handle), seconds=60)


def test_a_group_that_cannot_start_completely_leaves_nothing(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    (tmp_path / "sets").write_text("where a folder should be")
    with pytest.raises(TemporaryError, match="could not be started in"):
        launcher.start(launcher.plan(job(tmp_path), "try-1"))
    (tmp_path / "sets").unlink()


def test_a_replica_that_vanished_with_its_parent_is_a_node_failure(
    launcher: Launcher[Any], tmp_path: Path
) -> None:
    handle = launcher.start(launcher.plan(job(tmp_path), "try-1"))
    replica = psutil.Process(replica_pid(handle, "worker-1"))
    reaper = replica.parent()
    assert reaper is not None
    reaper.kill()
    psutil.wait_procs([replica], timeout=60)
    seen = launcher.observe(handle)[WORKER]
    assert (seen.state, seen.failure) == (State.LOST, Failure.NODE)


def _to_the_end(
    launcher: Launcher[Any], handle: str
) -> tuple[dict[ReplicaName, Observation], list[str]]:
    lines: list[str] = []
    seen: dict[ReplicaName, Observation] = {}

    def has_ended() -> bool:
        seen.update(launcher.observe(handle, lambda line: lines.append(str(line))))
        return job_state(seen).ended

    wait_for("the end of the job", has_ended, seconds=60)
    return seen, lines
