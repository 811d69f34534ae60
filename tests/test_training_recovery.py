"""Trainings whose processes are killed: which replicas restart, and from which step."""

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Deadlines
from aerotrain.contract.layout import JOB, status_key
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.status import Progress, ReplicaStatus, State
from aerotrain.launch.wanted import want
from aerotrain.store import open_store
from aerotrain.supervisor.processes import send
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run as run_training
from support.listening import listening, open_to_network
from support.live_sets import Live, end_fork_server, replica_pid
from support.training_fixtures import Pipeline

pytestmark = pytest.mark.process

CHIEF = ReplicaSpec(role=Role.CHIEF)
FED = (ReplicaSpec(role=Role.INPUT),)
SERVED = (CHIEF, ReplicaSpec(role=Role.WORKER, count=2), ReplicaSpec(role=Role.PS), *FED)
GANG = (CHIEF, ReplicaSpec(role=Role.WORKER), *FED)

#: Timeout in seconds for several processes to import TensorFlow at once, on two cores.
LONG = 150


def until_it_trains(live: Live) -> None:
    """Wait for another checkpoint, and for progress after it."""
    live.until_more_said("is in the store", seconds=LONG)
    live.until_more_said("progress step=", seconds=LONG)


def kill(live: Live, victim: str) -> tuple[set[str], list[str]]:
    """Kill a replica; returns which ones restarted, and the log until the next progress."""
    restarts, lines = len(live.entries(EventType.RESTART)), len(live.said)
    send([replica_pid(live.handle, victim)], signal.SIGKILL)
    live.until(lambda: len(live.entries(EventType.RESTART)) > restarts, LONG)
    until_it_trains(live)
    back = set(live.entries(EventType.RESTART)[restarts:])
    for name in back:
        live.until(
            lambda: any(each.startswith(f"[{name}]") for each in live.said[lines:]),  # noqa: B023 -- called at once
            LONG,
        )
    return back, live.said[lines:]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for the groups of all these tests, so that one fork server is enough."""
    root = tmp_path_factory.mktemp("recovery") / "sets"
    yield root
    end_fork_server(root)


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
            {"worker-1": {"worker-1"}, "input-0": {"input-0"}, "ps-0": {"chief", "ps-0"}},
        ),
        ("multi_worker_mirrored", GANG, {"input-0": {"input-0"}}),
    ],
    ids=["parameter_server", "multi_worker_mirrored"],
)
def test_a_training_resumes_and_succeeds_whichever_of_its_processes_is_killed(
    watched: Callable[..., Live],
    strategy: str,
    replicas: tuple[ReplicaSpec, ...],
    harm: dict[str, set[str]],
    digits: Pipeline,
    tmp_path: Path,
) -> None:
    run, stop_file = f"killed-{strategy.replace('_', '-')}", tmp_path / "enough"
    arguments = {
        "model": "stoppable",
        "hparams": {"stop_file": str(stop_file)},
        "data": digits.data,
        "epochs": 100_000,  # more than any test needs: the callback stops it
        "checkpoint_interval": 1,
        "steps_per_execution": 10,
    }
    job = digits.job("train", run, arguments, strategy=strategy, replicas=replicas)
    live = watched(job, warm=True)
    until_it_trains(live)
    for victim, expected in harm.items():
        before = steps_of(live.said)
        back, said = kill(live, victim)
        assert back == expected, (victim, "\n".join(said))
        if "chief" in expected:
            assert min(steps_restored(said)) > 0, (victim, "\n".join(said))
        else:
            assert not steps_restored(said)
            steps = [*before, *steps_of(said)]
            assert steps == sorted(steps)
    servers = listening(live.pids().values())
    assert len(servers) >= len(replicas), "all serve"
    assert open_to_network(servers) == []
    stop_file.touch()
    assert live.end.result(LONG).state is State.SUCCEEDED, "\n".join(live.said)
    train = open_store(f"{digits.store}/runs/{run}/train")
    trained = ModelManifest.load(f"{train.url}/model.json")
    assert trained.step >= steps_of(live.said)[-1]
    assert trained.step % 40 == 0, "it ends with an epoch"
    times = ReplicaStatus.from_json(train.get(status_key("chief"))).processes[-1].step_times
    workers = {"worker-0", "worker-1"} if strategy == "parameter_server" else {"chief"}
    assert times.keys() == workers
    for each in times.values():
        assert each.communication is not None
        assert 0 <= each.input + each.communication < each.seconds


@pytest.mark.parametrize("update", ["asynchronous", "synchronous"])
def test_a_worker_that_comes_back_has_the_lookup_tables_of_the_model_and_its_transform(
    watched: Callable[..., Live], update: str, digits: Pipeline, tmp_path: Path
) -> None:
    stop_file = tmp_path / "enough"
    arguments = {
        "model": "tabled",
        "hparams": {"stop_file": str(stop_file)},
        "data": digits.data,
        "epochs": 100_000,
        "checkpoint_interval": 1,
        "update": update,
    }
    replicas = SERVED[:3]
    job = digits.job(
        "train", f"tabled-{update}", arguments, strategy="parameter_server", replicas=replicas
    )
    live = watched(job, warm=True)
    until_it_trains(live)
    send([replica_pid(live.handle, "worker-1")], signal.SIGKILL)
    live.until_more_said("worker-1 takes part", seconds=LONG)
    until_it_trains(live)
    stop_file.touch()
    assert live.end.result(LONG).state is State.SUCCEEDED, "\n".join(live.said)
    assert live.entries(EventType.RESTART) == ["worker-1"]


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [("one_device", (CHIEF,)), ("multi_worker_mirrored", (CHIEF, ReplicaSpec(role=Role.WORKER)))],
    ids=["one_device", "multi_worker_mirrored"],
)
def test_a_training_of_slow_steps_does_not_count_as_unresponsive(
    watched: Callable[..., Live],
    strategy: str,
    replicas: tuple[ReplicaSpec, ...],
    digits: Pipeline,
) -> None:
    """An epoch of 25 steps takes twice as long as a replica may take without progress."""
    arguments = {"model": "slow", "data": digits.data, "epochs": 2, "batch_size": 50}
    job = digits.job(
        "train",
        f"slow-{strategy.replace('_', '-')}",
        arguments,
        strategy=strategy,
        replicas=replicas,
        deadlines=Deadlines(progress_timeout=5),
    )
    live = watched(job, warm=True)
    ended = live.end.result(LONG)
    said = "\n".join(live.said)
    assert ended.state is State.SUCCEEDED, said
    assert not live.entries(EventType.RESTART), said


#: Batches that one, two and three replicas can share, with the same result.
SHARED = {
    "model": "slow",
    "epochs": 3,
    "batch_size": 60,
    "synchronized_batch_norm": True,
    "steps_per_execution": 2,
}


def resizes(live: Live) -> list[str]:
    return [each.because for each in live.events() if each.event is EventType.RESIZE]


@pytest.fixture(scope="module")
def of_one_device(digits: Pipeline) -> ModelManifest:
    """The training of the next test, under a fixed size."""
    url = run_training(digits.replica("train", "one-device", data=digits.data, **SHARED))
    return ModelManifest.load(url)


@pytest.mark.timeout(600)
def test_a_training_takes_more_and_fewer_workers_and_is_suspended_without_losing_a_step(
    watched: Callable[..., Live], digits: Pipeline, of_one_device: ModelManifest
) -> None:
    arguments = {**SHARED, "data": digits.data}
    workers = ReplicaSpec(role=Role.WORKER, count=2, least=1)
    strategy = "multi_worker_mirrored"
    job = digits.job("train", "resized", arguments, strategy=strategy, replicas=(CHIEF, workers))
    store = open_store(job.prefix)
    store.put(JOB, job.record())
    want(open_store(f"{digits.store}/runs/resized"), workers=1)
    live = watched(job, warm=True)
    live.until(lambda: len(resizes(live)) == 1, LONG)
    live.until_more_said("progress step=", seconds=LONG)
    resumed = 0
    for wish, says in (
        ({"workers": 2}, ("2 of 2 workers are asked for by hand", "worker-1 has a place")),
        ({"workers": 1}, ("1 of 2 workers are asked for by hand",)),
        ({"suspended": True}, ("suspended by hand after step",)),
        ({"suspended": False}, ("resumed by hand",)),
    ):
        known = len(resizes(live))
        want(store, **wish)
        live.until(lambda: len(resizes(live)) == known + len(says), LONG)  # noqa: B023 -- at once
        assert all(map(str.startswith, resizes(live)[known:], says)), resizes(live)
        if wish == {"suspended": True}:
            live.until(lambda: not any(map(psutil.pid_exists, live.pids().values())), LONG)
            assert not live.end.done()
        else:
            live.until_said("[chief] resuming from the checkpoint", resumed := resumed + 1, LONG)
            live.until_more_said("progress step=", seconds=LONG)
    assert live.end.result(LONG).state is State.SUCCEEDED, "\n".join(live.said)
    said = "\n".join(live.said)
    saved = [int(step) for step in re.findall(r"\[chief\] preempted after step (\d+)", said)]
    assert steps_restored([line for line in live.said if line.startswith("[chief]")]) == saved
    assert len(saved) == 3, "at each change of the cluster"
    assert not live.entries(EventType.DETECT), "no restart budget is used"
    trained = ModelManifest.load(f"{store.url}/model.json")
    assert trained.step == of_one_device.step
    # Each replica drops other units, so fixed sizes differ by some percent among themselves, too.
    assert trained.metrics["loss"] == pytest.approx(of_one_device.metrics["loss"], rel=0.05)
