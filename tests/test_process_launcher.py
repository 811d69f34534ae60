"""The launcher of local processes, with real processes."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.status import Observation, State, job_state
from aerotrain_airflow.launchers.process import ProcessLauncher
from live_sets import replica_environment
from support.waiting import wait_for

pytestmark = pytest.mark.process

CHIEF = ReplicaName(Role.CHIEF, 0)
WORKER = ReplicaName(Role.WORKER, 1)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[ProcessLauncher]:
    launcher = ProcessLauncher(tmp_path / "sets", replica_environment(), "try-1")
    yield launcher
    for folder in (tmp_path / "sets").glob("*/*"):
        ProcessLauncher(tmp_path / "sets", {}, (folder / "holder").read_text()).stop(str(folder))


def job(tmp_path: Path, name: str = "job", **does: str) -> Job:
    return Job.from_dict(
        {
            "name": name,
            "module": "small_jobs",
            "code": str(Path(__file__).parent / "jobs"),
            "store": (tmp_path / "store").as_uri(),
            "run": "run",
            "task": name,
            "strategy": "parameter_server",
            "replicas": [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "ps"}],
            "arguments": does,
        }
    )


def test_the_plan_names_a_command_for_every_replica_and_starts_none(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    plan = launcher.plan(job(tmp_path), "try-1")
    assert str(plan).count("-m aerotrain.replica") == 4
    assert not plan.folder.exists()


def test_the_job_ends_well_with_its_chief_and_every_line_was_passed_on(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    address = launcher.start(launcher.plan(job(tmp_path, chief="finish"), "try-1"))
    seen, lines = _to_the_end(launcher, address)
    assert seen[CHIEF] == Observation(state=State.SUCCEEDED, exit_code=0, reason="exited with 0")
    assert seen[WORKER].state is State.RUNNING
    assert "[worker-1] hello from worker-1 in work" in lines
    assert "[chief] no line end at the end" in lines
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("role", "does", "state", "reason"),
    [
        ("chief", "fail", State.FAILED, "exited with 65: the label 7 is outside 0 to 3"),
        ("worker", "fail", State.FAILED, "exited with 65: the label 7 is outside 0 to 3"),
        ("chief", "fail_for_now", State.LOST, "exited with 75: the store is away"),
        (
            "ps",
            "crash",
            State.FAILED,
            "exited with 65: ZeroDivisionError: a bug of the user's own "
            "(line 60 of small_jobs.py, in crash)",
        ),
        ("chief", "vanish", State.LOST, "was ended by signal 9"),
    ],
)
def test_a_replica_that_ends_badly_says_why(
    launcher: ProcessLauncher, tmp_path: Path, role: str, does: str, state: State, reason: str
) -> None:
    address = launcher.start(launcher.plan(job(tmp_path, **{role: does}), "try-1"))
    seen, _ = _to_the_end(launcher, address)
    assert job_state(seen) is state
    assert reason in [each.reason for each in seen.values()]


def test_stop_ends_the_whole_set_with_its_grandchildren_and_leaves_nothing(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    address = launcher.start(launcher.plan(job(tmp_path, worker="leave_grandchildren"), "try-1"))
    lines: list[str] = []
    positions: dict[str, int] = {}

    def have_begun() -> bool:
        lines.extend(str(line) for line in launcher.logs(address, positions))
        return sum("child " in line for line in lines) == 6

    wait_for("six children", have_begun, seconds=60)
    children = [int(line.split()[-1]) for line in lines if "child " in line]

    began = time.monotonic()
    launcher.stop(address)

    assert time.monotonic() - began < 5, "Airflow gives a killed task five seconds"
    assert not [pid for pid in children if _is_alive(pid)]
    assert not _processes_naming(address)
    assert not Path(address).exists()


def test_stop_may_be_called_by_another_process_and_twice(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    address = launcher.start(launcher.plan(job(tmp_path), "try-1"))
    stranger = ProcessLauncher(tmp_path / "sets", {}, "try-1")
    assert stranger.observe(address)[WORKER].state is State.RUNNING
    stranger.stop(address)
    stranger.stop(address)
    assert not _processes_naming(address)


def test_a_start_of_something_else_ends_what_the_first_left(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    address = launcher.start(launcher.plan(job(tmp_path), "try-1"))
    first = set(_processes_naming(address))
    second = launcher.start(launcher.plan(job(tmp_path, chief="serve"), "try-2"))
    assert not _processes_naming(address)
    assert not first & set(_processes_naming(second))


def test_an_earlier_try_that_is_killed_late_does_not_touch_the_next(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    earlier = launcher.start(launcher.plan(job(tmp_path), "try-1"))
    second = ProcessLauncher(tmp_path / "sets", replica_environment(), "try-2")
    address = second.start(second.plan(job(tmp_path, chief="serve"), "try-2"))
    launcher.stop(earlier)
    launcher.stop(address)
    assert second.observe(address)[WORKER].state is State.RUNNING


def test_a_set_that_cannot_start_in_whole_leaves_nothing(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    (tmp_path / "sets").write_text("where a folder should be")
    with pytest.raises(TemporaryError, match="could not be started in"):
        launcher.start(launcher.plan(job(tmp_path), "try-1"))
    (tmp_path / "sets").unlink()


def test_two_jobs_at_once_have_ports_and_folders_of_their_own(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    addresses = [
        launcher.start(launcher.plan(job(tmp_path, name=name), "try-1")) for name in ("a", "b")
    ]
    clusters = {
        cluster
        for address in addresses
        for pid in _processes_naming(address)
        if (cluster := psutil.Process(pid).environ().get("AEROTRAIN_CLUSTER"))
    }
    ports = [port for cluster in clusters for port in _ports_of(cluster)]
    assert len(set(ports)) == 8
    launcher.stop(addresses[0])
    assert launcher.observe(addresses[1])[WORKER].state is State.RUNNING


def test_a_replica_that_vanished_with_its_keeper_is_lost(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    address = launcher.start(launcher.plan(job(tmp_path), "try-1"))
    keeper = int((Path(address) / "worker-1" / "pid").read_text().split()[0])
    os.killpg(keeper, 9)
    psutil.wait_procs([psutil.Process(keeper)] if _is_alive(keeper) else [], timeout=10)
    assert launcher.observe(address)[WORKER].state is State.LOST


def _to_the_end(
    launcher: ProcessLauncher, address: str
) -> tuple[dict[ReplicaName, Observation], list[str]]:
    lines: list[str] = []
    positions: dict[str, int] = {}
    seen: dict[ReplicaName, Observation] = {}

    def has_ended() -> bool:
        seen.update(launcher.observe(address))
        lines.extend(str(line) for line in launcher.logs(address, positions))
        return job_state(seen).ended

    wait_for("the end of the job", has_ended, seconds=60)
    return seen, lines


def _processes_naming(folder: str) -> list[int]:
    """The live processes that carry the set's mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AEROTRAIN_SET") == folder and _is_alive(process.pid):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ports_of(cluster: str) -> list[Any]:
    return [address for addresses in json.loads(cluster).values() for address in addresses]
