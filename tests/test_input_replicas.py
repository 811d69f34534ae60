"""Replicas that read and transform batches for others: each record is trained once an epoch."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.workloads import MODELS

from aerotrain.contract.environment import cluster_of
from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import EventType
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Role
from aerotrain.contract.status import State
from aerotrain.replica import Replica
from aerotrain.supervisor.ports import reserved_addresses
from aerotrain.supervisor.processes import send
from aerotrain.training.servers import serve
from support.live_sets import Live, replica_pid
from support.training_fixtures import Pipeline, counted

pytestmark = pytest.mark.process

CHIEF, WORKER, PS = (ReplicaSpec(role=role) for role in (Role.CHIEF, Role.WORKER, Role.PS))

#: Timeout in seconds for several processes to import TensorFlow at once, on two cores.
LONG = 150


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [
        ("one_device", (CHIEF,)),
        ("multi_worker_mirrored", (CHIEF, WORKER)),
        ("parameter_server", (CHIEF, ReplicaSpec(role=Role.WORKER, count=2), PS)),
    ],
    ids=["one_device", "multi_worker_mirrored", "parameter_server"],
)
def test_each_record_is_trained_once_an_epoch_whichever_data_worker_is_killed(
    keyed: Pipeline,
    watched: Callable[..., Live],
    strategy: str,
    replicas: tuple[ReplicaSpec, ...],
    tmp_path: Path,
) -> None:
    stop_file = tmp_path / "enough"
    arguments = {
        "model": "keyed",
        "hparams": {"stop_file": str(stop_file)},
        "data": keyed.data,
        "batch_size": 64,
        "epochs": 100_000,  # more than the test needs: the callback stops it
    }
    live = watched(
        keyed.job(
            "train",
            f"fed-{strategy}",
            arguments,
            strategy=strategy,
            replicas=(*replicas, ReplicaSpec(role=Role.INPUT, count=2)),
            code=MODELS,
        ),
        warm=True,
    )
    live.until_said("epoch 2 of", seconds=LONG)
    for victim in ("input-0", "input-1"):
        send([replica_pid(live.handle, victim)], signal.SIGKILL)
        live.until_said(f"{victim} serves", 2, seconds=LONG)
    assert live.entries(EventType.RESTART) == ["input-0", "input-1"], "the others go on"
    send([replica_pid(live.handle, "chief")], signal.SIGTERM)
    live.until_more_said("resuming from the checkpoint of step", seconds=LONG)
    live.until_more_said("counted: epoch", seconds=LONG)
    stop_file.touch()
    assert live.end.result(LONG).state is State.SUCCEEDED, live.tail()
    found = counted("\n".join(live.said))
    assert {epoch for epoch, *_ in found} == set(range(1, found[-1][0] + 1))
    assert [each for each in found if each[1:] != (0, 0)] == []


def test_a_port_in_use_is_a_temporary_error(digits: Pipeline, tmp_path: Path) -> None:
    job = digits.job(
        "train",
        "taken",
        {"model": "small", "data": digits.data},
        replicas=(CHIEF, ReplicaSpec(role=Role.INPUT)),
    )
    own = ReplicaName(Role.INPUT, 0)
    with reserved_addresses(job) as (addresses, _), socket.socket() as taken:
        host, _, port = addresses[own].partition(":")
        taken.bind((host, int(port)))
        taken.listen()
        cluster = cluster_of(job, addresses)
        with pytest.raises(TemporaryError, match=f"{own} could not serve at {host}:{port}.*taken"):
            serve(Replica(job=job, name=own, attempt="1", scratch=tmp_path, cluster=cluster))
