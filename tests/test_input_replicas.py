"""Trainings whose records are read and transformed by replicas beside them."""

import json
import os
import signal
import socket
from collections.abc import Callable

import pytest

from aerotrain.contract.cluster import cluster_of
from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.job import Replica as Copies
from aerotrain.contract.ledger import What
from aerotrain.contract.progress import Progress
from aerotrain.contract.status import State
from aerotrain.replica import Replica
from aerotrain.training.input.service import dispatcher, input_server
from aerotrain.training.servers import serve
from live_sets import Live
from training_fixtures import Pipeline, free_addresses

pytestmark = pytest.mark.process

FED = (Copies(role=Role.INPUT, count=2), Copies(role=Role.DISPATCHER))
ALONE = (Copies(role=Role.CHIEF), *FED)
GANG = (Copies(role=Role.CHIEF), Copies(role=Role.WORKER), *FED)
SERVED = (Copies(role=Role.CHIEF), Copies(role=Role.WORKER), Copies(role=Role.PS), *FED)

#: Seconds for TensorFlow to be loaded by several processes at once, on two cores.
LONG = 200


def training(digits: Pipeline, strategy: str, replicas: tuple[Copies, ...], epochs: int) -> Job:
    arguments = {
        "model": "small",
        "data": digits.data,
        "epochs": epochs,
        "checkpoint_seconds": 1,
        "steps_per_execution": 10,
    }
    run = f"fed-{strategy.replace('_', '-')}"
    return digits.job("train", run, arguments, strategy=strategy, replicas=replicas)


def steps_of(live: Live) -> list[int]:
    return [each.step for line in live.lines if (each := Progress.parse(line))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "replicas", "epochs", "victim", "back"),
    [
        (
            "multi_worker_mirrored",
            GANG,
            60,
            "dispatcher",
            {"chief", "worker-0", "input-0", "input-1", "dispatcher"},
        ),
        ("one_device", ALONE, 400, "chief", {"chief"}),
    ],
)
def test_who_is_killed_comes_back_with_those_it_needs_from_the_checkpoint(
    digits: Pipeline,
    watched: Callable[..., Live],
    strategy: str,
    replicas: tuple[Copies, ...],
    epochs: int,
    victim: str,
    back: set[str],
) -> None:
    live = watched(training(digits, strategy, replicas, epochs))
    live.until_said("progress step=", times=3, timeout=LONG)
    os.kill(live.pid(victim), signal.SIGKILL)
    ended = live.end.result(2 * LONG)
    said = "\n".join(live.lines)
    assert ended.state is State.SUCCEEDED, (ended, said)
    assert set(live.entries(What.RESTART)) == back, said
    assert "going on from the checkpoint of step" in said
    assert steps_of(live)[-1] == epochs * 40


@pytest.mark.parametrize("role", [Role.DISPATCHER, Role.INPUT])
def test_a_port_that_is_taken_is_worth_another_try(digits, role, monkeypatch, tmp_path):
    job = training(digits, "one_device", ALONE, 1)
    addresses = free_addresses(job)
    [own] = [name for name in job.names() if name.role is role and name.index == 0]
    host, _, port = addresses[own].partition(":")
    others = [] if role is Role.DISPATCHER else [ReplicaName(Role.DISPATCHER, 0)]
    serving = [dispatcher(addresses[name]) for name in others]
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        monkeypatch.setenv("AEROTRAIN_CLUSTER", json.dumps(cluster_of(job, addresses)))
        with pytest.raises(TemporaryError, match=f"{own} could not serve at {host}:{port}.*taken"):
            serve(Replica(job=job, name=own, attempt="1", scratch=tmp_path / "scratch"))
    assert len(serving) == len(others)  # they served until here


def test_input_does_not_wait_for_ever_for_its_dispatcher():
    with pytest.raises(
        TemporaryError, match=r"dispatcher at 127\.0\.0\.1:1 did not answer within 0\.3"
    ):
        input_server("127.0.0.1:2", "127.0.0.1:1", 0.3)


@pytest.mark.timeout(600)
def test_input_that_is_killed_is_missed_by_nobody(
    digits: Pipeline, watched: Callable[..., Live]
) -> None:
    live = watched(training(digits, "parameter_server", SERVED, 120))
    live.until_said("progress step=", times=3, timeout=LONG)
    os.kill(live.pid("input-0"), signal.SIGKILL)
    ended = live.end.result(2 * LONG)
    said = "\n".join(live.lines)
    assert ended.state is State.SUCCEEDED, (ended, said)
    assert set(live.entries(What.RESTART)) == {"input-0"}, said
    assert steps_of(live) == sorted(steps_of(live))
    assert steps_of(live)[-1] == 120 * 40
