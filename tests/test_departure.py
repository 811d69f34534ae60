"""How a preempted replica ends, and how its heartbeat is observed."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.replica import PreemptionNotice
from support.training_fixtures import read_until, start

CHIEF = ReplicaName(Role.CHIEF, 0)

#: A module that prints a line at each heartbeat and, if its argument says so, promises to watch for
#: the preemption notice. It never looks at it, so it runs until its grace period ends.
MODULE = """
import threading, time
def run(replica):
    if replica.job.arguments.get("promises"):
        replica.notice.promise()
    print("restart", replica.restarts, "works", flush=True)
    last = 0
    while True:
        seen = replica.heartbeat.stat().st_mtime_ns
        if seen != last:
            print("beat", flush=True)
            last = seen
        time.sleep(0.05)
"""


class Left(Exception):  # noqa: N818 -- what befell the process of a test
    """The process would have exited here."""


def leave() -> None:
    raise Left


def test_a_preempted_replica_that_saves_nothing_ends_at_once() -> None:
    with pytest.raises(Left):
        PreemptionNotice(leave=leave).give()


def test_a_replica_that_promised_to_save_ends_at_the_second_signal() -> None:
    notice = PreemptionNotice(grace=3600, leave=leave)
    notice.promise()
    assert not notice.given()
    notice.give()
    assert notice.given()
    with pytest.raises(Left):
        notice.give()


def test_a_replica_exits_when_its_grace_period_is_over() -> None:
    left = threading.Event()
    notice = PreemptionNotice(grace=0.01, leave=left.set)
    notice.promise()
    notice.give()
    assert left.wait(30)


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest):
    """A replica of the module above, whose job has the arguments of the test's parameter."""
    (tmp_path / "beating.py").write_text(MODULE)
    job = Job(
        name="beat",
        module="beating",
        code=str(tmp_path),
        store=(tmp_path / "store").as_uri(),
        run="run",
        task="beat",
        arguments=getattr(request, "param", {}),
    )
    told = replica_environment(job, CHIEF, {CHIEF: "here:1"}, attempt="1", restarts=3)
    told["AEROTRAIN_GRACE"] = "0.5"
    with start([sys.executable, "-m", "aerotrain.replica"], tmp_path, told) as process:
        read_until(process, "restart 3 works")
        yield process
        process.kill()


@pytest.mark.process
def test_a_replica_sends_heartbeats_except_while_it_is_stopped(process, tmp_path) -> None:
    for _ in range(3):
        read_until(process, "beat")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    last = (tmp_path / "heartbeat").stat().st_mtime_ns
    with pytest.raises(TimeoutError):
        wait_for_beat(tmp_path / "heartbeat", last, seconds=4)
    os.kill(process.pid, signal.SIGCONT)
    wait_for_beat(tmp_path / "heartbeat", last, seconds=60)


def wait_for_beat(heartbeat: Path, last: int, seconds: float) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if heartbeat.stat().st_mtime_ns != last:
            return
        pause.wait(0.1)
    raise TimeoutError


@pytest.mark.process
@pytest.mark.parametrize("process", [{}, {"promises": True}], indirect=True, ids=str)
def test_a_preempted_replica_ends_with_the_exit_code_of_sigterm(process) -> None:
    process.terminate()
    said = process.communicate(timeout=30)[0]
    assert process.returncode == ExitCode.TERMINATED
    assert "preempted (SIGTERM)" in said
