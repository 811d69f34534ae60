"""Trainings whose records are read and transformed by replicas beside them."""

import os
import signal
from collections.abc import Callable

import pytest

from aerotrain.contract.job import Job, Role
from aerotrain.contract.job import Replica as Copies
from aerotrain.contract.ledger import What
from aerotrain.contract.progress import Progress
from aerotrain.contract.status import State
from live_sets import Live
from training_fixtures import Pipeline

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
    ("strategy", "replicas", "epochs"),
    [("multi_worker_mirrored", GANG, 60), ("one_device", ALONE, 400)],
)
def test_a_dispatcher_that_is_killed_has_all_come_back_from_the_checkpoint(
    digits: Pipeline,
    watched: Callable[..., Live],
    strategy: str,
    replicas: tuple[Copies, ...],
    epochs: int,
) -> None:
    job = training(digits, strategy, replicas, epochs)
    live = watched(job)
    live.until_said("progress step=", times=3, timeout=LONG)
    os.kill(live.pid("dispatcher"), signal.SIGKILL)
    ended = live.end.result(2 * LONG)
    said = "\n".join(live.lines)
    assert ended.state is State.SUCCEEDED, (ended, said)
    assert set(live.entries(What.RESTART)) == {str(name) for name in job.names()}, said
    assert "going on from the checkpoint of step" in said
    assert steps_of(live)[-1] == epochs * 40


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
