"""Trainings whose processes are killed: which replicas restart, and from which step."""

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Job
from aerotrain.contract.layout import status_key
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.status import Progress, ReplicaStatus, State
from aerotrain.store import open_store
from aerotrain.supervisor.processes import send
from aerotrain.training.model_manifest import ModelManifest
from support.listening import listening, open_to_network
from support.live_sets import Live, end_fork_server, replica_pid
from support.training_fixtures import Pipeline

pytestmark = pytest.mark.process

CHIEF = ReplicaSpec(role=Role.CHIEF)
FED = (ReplicaSpec(role=Role.INPUT), ReplicaSpec(role=Role.DISPATCHER))
SERVED = (CHIEF, ReplicaSpec(role=Role.WORKER, count=2), ReplicaSpec(role=Role.PS), *FED)
GANG = (CHIEF, ReplicaSpec(role=Role.WORKER), *FED)

#: Timeout in seconds for several processes to import TensorFlow at once, on two cores.
LONG = 150

#: More than any test needs: the training is stopped after all faults.
EPOCHS = 100_000


@dataclass
class Training:
    """A training that is watched, disturbed, and at last stopped by its model's callback."""

    live: Live
    stop_file: Path

    def until_it_trains(self) -> None:
        """Wait for another checkpoint, and for progress after it."""
        self.live.until_more_said("is in the store", seconds=LONG)
        self.live.until_more_said("progress step=", seconds=LONG)

    def kill(self, victim: str) -> tuple[set[str], list[str]]:
        """Kill a replica; returns which ones restarted, and the log until the next progress."""
        restarts, lines = len(self.live.entries(EventType.RESTART)), len(self.live.said)
        send([replica_pid(self.live.handle, victim)], signal.SIGKILL)
        self.live.until(lambda: len(self.live.entries(EventType.RESTART)) > restarts, LONG)
        self.until_it_trains()
        back = set(self.live.entries(EventType.RESTART)[restarts:])
        for name in back:
            self.live.until(
                lambda: any(each.startswith(f"[{name}]") for each in self.live.said[lines:]),  # noqa: B023 -- called at once
                LONG,
            )
        return back, self.live.said[lines:]

    def end(self) -> State:
        """Let the training stop after its epoch, and return its end."""
        self.stop_file.touch()
        return self.live.end.result(LONG).state


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for the groups of all these tests, so that one fork server is enough."""
    root = tmp_path_factory.mktemp("recovery") / "sets"
    yield root
    end_fork_server(root)


@pytest.fixture
def training(
    digits: Pipeline, watched: Callable[..., Live], tmp_path: Path
) -> Callable[..., Training]:
    """Starts a training under a strategy with those replicas, and waits until it trains."""

    def start(strategy: str, replicas: tuple[ReplicaSpec, ...]) -> Training:
        stop_file = tmp_path / "enough"
        live = watched(_job(digits, strategy, replicas, stop_file), warm=True)
        started = Training(live, stop_file)
        started.until_it_trains()
        return started

    return start


def _job(
    digits: Pipeline, strategy: str, replicas: tuple[ReplicaSpec, ...], stop_file: Path
) -> Job:
    arguments = {
        "model": "stoppable",
        "hparams": {"stop_file": str(stop_file)},
        "data": digits.data,
        "epochs": EPOCHS,
        "checkpoint_interval": 1,
        "steps_per_execution": 10,
    }
    return digits.job("train", run_of(strategy), arguments, strategy=strategy, replicas=replicas)


def run_of(strategy: str) -> str:
    return f"killed-{strategy.replace('_', '-')}"


def steps_restored(lines: list[str]) -> list[int]:
    """The steps of the checkpoints from which the chief resumed."""
    said = "\n".join(lines)
    return [int(step) for step in re.findall(r"resuming from the checkpoint of step (\d+)", said)]


def steps_of(lines: list[str]) -> list[int]:
    return [seen.step for line in lines if (seen := Progress.parse(line))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "replicas", "harm"),
    [
        (
            "parameter_server",
            SERVED,
            {
                "worker-1": {"worker-1"},
                "input-0": {"input-0"},
                "ps-0": {"chief", "ps-0"},
                "chief": {"chief"},
            },
        ),
        (
            "multi_worker_mirrored",
            GANG,
            {
                "worker-0": {"chief", "worker-0"},
                "dispatcher": {"chief", "worker-0", "input-0", "dispatcher"},
            },
        ),
    ],
    ids=["parameter_server", "multi_worker_mirrored"],
)
def test_a_training_resumes_and_succeeds_whichever_of_its_processes_is_killed(
    training: Callable[..., Training],
    strategy: str,
    replicas: tuple[ReplicaSpec, ...],
    harm: dict[str, set[str]],
    digits: Pipeline,
) -> None:
    harmed = training(strategy, replicas)
    for victim, expected in harm.items():
        before = steps_of(harmed.live.said)
        back, said = harmed.kill(victim)
        assert back == expected, (victim, "\n".join(said))
        if "chief" in expected:
            assert min(steps_restored(said)) > 0, (victim, "\n".join(said))
        else:
            assert not steps_restored(said)
            steps = [*before, *steps_of(said)]
            assert steps == sorted(steps)
    servers = listening(harmed.live.pids().values())
    assert len(servers) >= len(replicas), "all serve"
    assert open_to_network(servers) == []
    assert harmed.end() is State.SUCCEEDED, "\n".join(harmed.live.said)
    trained = ModelManifest.load(f"{digits.store}/runs/{run_of(strategy)}/train/model.json")
    assert trained.step >= steps_of(harmed.live.said)[-1]
    assert trained.step % 40 == 0, "it ends with an epoch"
    train = open_store(f"{digits.store}/runs/{run_of(strategy)}/train")
    times = ReplicaStatus.from_json(train.get(status_key("chief"))).processes[-1].step_times
    workers = {"worker-0", "worker-1"} if strategy == "parameter_server" else {"chief"}
    assert times.keys() == workers
    for each in times.values():
        assert each.communication is not None
        assert 0 <= each.input + each.communication < each.seconds
