"""Workers of a training with parameter servers that come, leave, and are lost."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from benchmarks.elastic import slowed
from benchmarks.workloads import MODELS

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.event_log import EventType
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.status import State
from aerotrain.supervisor.processes import send
from support.live_sets import Live, replica_pid
from support.training_fixtures import Pipeline, Process, counted, read_until

pytestmark = pytest.mark.process

BATCH = 16
STEPS = 400


@contextmanager
def training(
    keyed: Pipeline, run: str, epochs: int, **more: object
) -> Iterator[dict[str, Process]]:
    arguments = {"model": "keyed", "batch_size": BATCH, "steps_per_execution": 20, **more}
    with keyed.cluster(run, epochs=epochs, code=MODELS, **arguments) as processes:
        yield processes


def test_each_record_is_trained_once_an_epoch_and_a_worker_that_leaves_gives_back_the_rest(
    keyed: Pipeline,
) -> None:
    with training(keyed, "leaving", 12) as processes:
        said = read_until(processes["chief"], "epoch 2 of")
        processes["worker-1"].send_signal(signal.SIGTERM)
        assert processes["worker-1"].wait(30) == ExitCode.TERMINATED
        said += processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    assert counted(said) == [(epoch, 0, 0) for epoch in range(1, 13)]
    assert f"progress step={12 * STEPS} " in said


def test_a_worker_that_is_killed_leaves_one_step_in_doubt_and_the_training_as_long_as_it_was(
    keyed: Pipeline,
) -> None:
    with training(keyed, "killed", 12) as processes:
        said = read_until(processes["chief"], "epoch 2 of")
        processes["worker-0"].kill()
        said += processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    epoch, lost, twice = counted(said)[-1]
    assert epoch == 12
    assert lost + twice <= BATCH, said
    assert "worker-0 was lost: others get its batches" in said
    assert f"progress step={12 * STEPS} " in said


def test_a_chief_that_is_preempted_and_restarted_trains_each_record_once(keyed: Pipeline) -> None:
    with training(keyed, "restarted", 12, checkpoint_interval=0.3) as processes:
        said = read_until(processes["chief"], "epoch 3 of")
        processes["chief"].send_signal(signal.SIGTERM)
        said += processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.TERMINATED, said
    with training(keyed, "restarted", 12) as processes:
        said += processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    assert counted(said) == [(epoch, 0, 0) for epoch in range(1, 13)]


@pytest.mark.parametrize("update", ["asynchronous", "synchronous"])
def test_a_slow_worker_is_named_and_replaced_if_asked(
    keyed: Pipeline,
    watched: Callable[..., Live],
    monkeypatch: pytest.MonkeyPatch,
    update: str,
) -> None:
    for name in ("SETTLED", "TIMES_EVERY"):
        monkeypatch.setattr(f"aerotrain.launch.wanted.{name}", 1.0)
    workers = ReplicaSpec(role=Role.WORKER, count=2)
    options = {"model": "keyed", "data": keyed.data, "batch_size": 24, "epochs": 100_000}
    live = watched(
        keyed.job(
            "train",
            f"slow-{update}",
            {**options, "stragglers": "replace", "update": update},
            strategy="parameter_server",
            replicas=(ReplicaSpec(role=Role.CHIEF), workers, ReplicaSpec(role=Role.PS)),
            code=MODELS,
        ),
        warm=True,
    )
    live.until_said("epoch 2 of", seconds=150)
    with slowed(replica_pid(live.handle, "worker-1")):
        live.until(lambda: "worker-1" in live.entries(EventType.STRAGGLER), 120)
    assert live.entries(EventType.STRAGGLER) == ["worker-1"]
    assert live.entries(EventType.RESTART) == ["worker-1"]
    live.until_more_said("progress step=", seconds=120)
    assert not live.entries(EventType.DETECT)


def test_a_chief_waits_longer_for_a_worker_than_for_a_step(keyed: Pipeline) -> None:
    with training(keyed, "deserted", 1000, progress_timeout=5) as processes:
        chief = processes["chief"]
        read_until(chief, "epoch 2 of")
        for worker in ("worker-0", "worker-1"):
            processes[worker].kill()
        with pytest.raises(subprocess.TimeoutExpired):
            chief.wait(12)


def test_a_frozen_worker_does_its_batches_although_another_one_comes_meanwhile(
    keyed: Pipeline, watched: Callable[..., Live]
) -> None:
    workers = ReplicaSpec(role=Role.WORKER, count=3)
    live = watched(
        keyed.job(
            "train",
            "frozen",
            {"model": "keyed", "data": keyed.data, "batch_size": BATCH, "epochs": 20},
            strategy="parameter_server",
            replicas=(ReplicaSpec(role=Role.CHIEF), workers, ReplicaSpec(role=Role.PS)),
            code=MODELS,
        ),
        warm=True,
    )
    live.until_said("epoch 2 of", seconds=150)
    send([replica_pid(live.handle, "worker-0")], signal.SIGKILL)
    frozen = [replica_pid(live.handle, "worker-1")]
    send(frozen, signal.SIGSTOP)
    live.until_said("worker-0 serves", 2)
    with pytest.raises(RuntimeError, match="this did not happen"):
        live.until_more_said("worker-0 takes part", seconds=4)
    send(frozen, signal.SIGCONT)
    live.until_more_said("worker-0 takes part")
    assert live.end.result(150).state is State.SUCCEEDED, live.tail()
    epoch, lost, twice = counted("\n".join(live.said))[-1]
    assert epoch == 20
    assert lost + twice <= BATCH
