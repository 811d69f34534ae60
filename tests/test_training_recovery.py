"""Trainings whose processes are killed in the middle: who comes back, and from where."""

import os
import re
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

SERVED = (Copies(role=Role.CHIEF), Copies(role=Role.WORKER, count=2), Copies(role=Role.PS))
GANG = (Copies(role=Role.CHIEF), Copies(role=Role.WORKER))
ALONE = GANG[:1]
FED = (Copies(role=Role.INPUT, count=2), Copies(role=Role.DISPATCHER))

#: Seconds for TensorFlow to be loaded by several processes at once, on two cores.
LONG = 150


def training(
    digits: Pipeline, strategy: str, replicas: tuple[Copies, ...], run: str, epochs: int
) -> Job:
    arguments = {
        "model": "small",
        "data": digits.data,
        "epochs": epochs,
        "checkpoint_interval": 1,
        "steps_per_execution": 10,
    }
    return digits.job("train", run, arguments, strategy=strategy, replicas=replicas)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "replicas", "victim", "back", "epochs"),
    [
        ("parameter_server", SERVED, "worker-1", {"worker-1"}, 60),
        ("parameter_server", SERVED, "ps-0", {"chief", "ps-0"}, 60),
        ("parameter_server", SERVED, "chief", {"chief"}, 60),
        ("parameter_server", (*GANG, Copies(role=Role.PS), *FED), "input-0", {"input-0"}, 120),
        ("multi_worker_mirrored", GANG, "worker-0", {"chief", "worker-0"}, 60),
        (
            "multi_worker_mirrored",
            (*GANG, *FED),
            "dispatcher",
            {"chief", "worker-0", "input-0", "input-1", "dispatcher"},
            60,
        ),
        ("one_device", ALONE, "chief", {"chief"}, 120),
        ("one_device", (*ALONE, *FED), "chief", {"chief"}, 400),
    ],
)
def test_a_training_ends_well_though_one_of_its_processes_is_killed(
    digits: Pipeline,
    watched: Callable[..., Live],
    strategy: str,
    replicas: tuple[Copies, ...],
    victim: str,
    back: set[str],
    epochs: int,
) -> None:
    run = f"killed-{strategy.replace('_', '-')}-{len(replicas)}-{victim}"
    live = watched(training(digits, strategy, replicas, run, epochs))
    live.until_said("progress step=", times=4, timeout=LONG)
    os.kill(live.pid(victim), signal.SIGKILL)
    ended = live.end.result(2 * LONG)
    said = "\n".join(live.lines)
    assert ended.state is State.SUCCEEDED, (ended, said)
    assert set(live.entries(What.RESTART)) == back, said
    steps = [each.step for line in live.lines if (each := Progress.parse(line))]
    assert steps[-1] == epochs * 40
    went_on = [
        int(step) for step in re.findall(r"going on from the checkpoint of step (\d+)", said)
    ]
    if "chief" in back:
        assert went_on
        assert min(went_on) > 0
    else:
        assert not went_on
        assert steps == sorted(steps)
