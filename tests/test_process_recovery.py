"""Recovery on local processes: which replicas are killed and restarted, and who adopts a group."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import EventType
from aerotrain.contract.layout import SIZE
from aerotrain.contract.status import State
from aerotrain.launch.process.folder import JobFolder
from aerotrain.launch.size import WantedSize
from aerotrain.store import open_store
from aerotrain.supervisor.processes import send
from aerotrain_airflow.operators.job import JobOperator
from support.live_sets import (
    ALONE,
    GANG,
    SERVED,
    Live,
    job,
    process_launcher,
    processes_of,
    replica_environment,
    replica_pid,
    task,
)
from support.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("formation", "victim", "back"),
    [
        (SERVED, "ps-0", {"ps-0", "chief"}),
        (GANG, "worker-0", {"chief", "worker-0", "worker-1"}),
        (ALONE, "chief", {"chief"}),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_a_killed_replica_is_restarted_with_those_it_needs_and_no_others(
    watched: Callable[..., Live],
    tmp_path: Path,
    formation: dict[str, Any],
    victim: str,
    back: set[str],
) -> None:
    live = watched(job(tmp_path, formation, {"awaited": dict.fromkeys(back, 2)}))
    live.until_all_run()
    before = live.pids()
    clusters = {_cluster_of(pid) for pid in before.values()}
    kept = {name: pid for name, pid in before.items() if name not in {*back, "chief"}}
    send([before[victim]], signal.SIGKILL)
    live.until_said(f"hello from {victim}", times=2)
    assert live.end.result(60).state is State.SUCCEEDED
    assert {name: replica_pid(live.handle, name) for name in kept} == kept
    assert len(clusters) == 1
    assert {_cluster_of(replica_pid(live.handle, name)) for name in back - {"chief"}} <= clusters
    assert live.entries(EventType.DETECT) == [victim]
    assert set(live.entries(EventType.RESTART)) == back
    lives = {name: sum(f"hello from {name} " in line for line in live.said) for name in before}
    assert lives == {name: 2 if name in back else 1 for name in before}


def test_workers_are_ended_and_started_by_hand_while_the_others_go_on(
    watched: Callable[..., Live], tmp_path: Path
) -> None:
    replicas = [{"role": "chief"}, {"role": "worker", "count": "1..2"}, {"role": "ps"}]
    described = job(tmp_path, SERVED, {"awaited": {"worker-1": 2}}, replicas=replicas)
    live = watched(described)
    live.until_all_run()
    before = live.pids()
    store = open_store(described.prefix)
    store.put(SIZE, WantedSize(workers=1).to_json())
    gone = psutil.Process(before["worker-1"])
    live.until(lambda: not gone.is_running())
    store.put(SIZE, WantedSize(workers=2).to_json())
    assert live.end.result(60).state is State.SUCCEEDED
    assert {**live.pids(), "worker-1": gone.pid} == before
    assert live.entries(EventType.RESTART) == ["worker-1"]
    assert live.entries(EventType.DETECT) == [], "no restart budget is used"


def test_an_unresponsive_replica_is_ended_and_restarted(
    watched: Callable[..., Live], tmp_path: Path
) -> None:
    described = job(
        tmp_path, SERVED, {"awaited": {"worker-1": 2}}, deadlines={"progress_timeout": 6}
    )
    live = watched(described)
    live.until_all_run()
    send([replica_pid(live.handle, "worker-1")], signal.SIGSTOP)
    assert live.end.result(60).state is State.SUCCEEDED
    [failure] = [
        each for each in live.launcher.events(live.handle) if each.event is EventType.DETECT
    ]
    assert (failure.replica, failure.kind) == ("worker-1", "hang")
    assert failure.because == "had no heartbeat for 6 s, and was ended"


def test_a_killed_supervisor_is_replaced_and_all_its_replicas_restarted(
    watched: Callable[..., Live], tmp_path: Path
) -> None:
    everybody = ("chief", "worker-0", "worker-1")
    live = watched(job(tmp_path, GANG, {"awaited": dict.fromkeys(everybody, 2)}))
    live.until_all_run()
    before = live.pids()
    supervisor = psutil.Process(before["chief"]).parents()[1]
    send([supervisor.pid], signal.SIGKILL)
    assert live.end.result(60).state is State.SUCCEEDED
    assert set(live.entries(EventType.RESTART)) == set(everybody)
    assert not set(before.values()) & set(live.pids().values())


def test_the_next_try_adopts_the_group_of_a_killed_task_and_passes_the_remaining_lines_on(
    watched: Callable[..., Live], tmp_path: Path
) -> None:
    described = job(tmp_path, SERVED, {"awaited": {"worker-1": 2}})
    with task(tmp_path, described) as first:
        assert first.stdout is not None
        said = [first.stdout.readline().strip()]
        while sum("hello" in line for line in said) < 4:
            said.append(first.stdout.readline().strip())
        kept = JobFolder(Path(said[0].removeprefix("at ")))
        # It records its position just after it has passed a line on.
        wait_for("four positions", lambda: sum(map(bool, kept.positions().values())) == 4, 60)
        first.kill()
        first.wait()
    live = watched(described, "try-2")
    assert f"at {live.handle}" == said[0]
    before = live.pids()
    send([before["worker-1"]], signal.SIGKILL)
    assert live.end.result(60).state is State.SUCCEEDED
    assert [line for line in live.said if "hello" in line] == [
        "[worker-1] hello from worker-1 in work"
    ]
    assert live.entries(EventType.ADOPT) == [""]
    stranger = process_launcher(tmp_path / "sets", {}, "try-1")
    stranger.stop(live.handle)
    assert replica_pid(live.handle, "worker-0") == before["worker-0"]


def test_a_try_that_still_watches_an_adopted_group_gets_an_error(
    watched: Callable[..., Live], tmp_path: Path
) -> None:
    described = job(tmp_path, ALONE, {"chief": "serve"})
    first, second = watched(described, "try-1"), watched(described, "try-2")
    ended = first.end.result(60)
    assert (ended.state, "taken over by another try" in ended.reason) == (State.LOST, True)
    assert not second.end.done()
    second.launcher.stop(second.handle)
    assert "was ended from outside" in second.end.result(60).reason


def test_of_two_simultaneous_tries_one_starts_and_the_other_adopts(tmp_path: Path) -> None:
    described = job(tmp_path, GANG, {"chief": "serve"})
    holders = ("try-1", "try-2")
    with (
        task(tmp_path, described, holders[0], "only start") as one,
        task(tmp_path, described, holders[1], "only start") as other,
    ):
        said = [process.communicate()[0].splitlines() for process in (one, other)]
        handles = {line for lines in said for line in lines if line.startswith("at ")}
        assert len(handles) == 1
        handle = handles.pop().removeprefix("at ")
    assert [path.name for path in (tmp_path / "sets" / "job").iterdir()] == [Path(handle).name]
    for holder in holders:
        process_launcher(tmp_path / "sets", {}, holder).stop(handle)
    assert not processes_of(handle)
    assert not list((tmp_path / "sets").iterdir())


def _cluster_of(pid: int) -> str:
    return psutil.Process(pid).environ()["AEROTRAIN_CLUSTER"]


class Unheard(JobOperator):
    """A task whose Airflow worker was killed: writing its next line to the log fails."""

    @property
    def log(self) -> Any:
        class Broken:
            def info(self, *_: object) -> None:
                raise BrokenPipeError(32, "Broken pipe")

            debug = info

        return Broken()


def test_the_group_of_a_task_whose_airflow_worker_was_killed_is_adopted_by_the_next_try(
    watched: Callable[..., Live], tmp_path: Path
) -> None:
    described = job(tmp_path, ALONE, {"chief": "serve"})
    launcher = process_launcher(tmp_path / "sets", replica_environment(), "try-1")
    orphan = Unheard(task_id="train", job={})
    orphan._running = (launcher, launcher.start(launcher.plan(described, "try-1")))
    with pytest.raises(TemporaryError, match=r"Airflow's worker is gone: .* Broken pipe"):
        orphan._watch(None, None)
    orphan.on_kill()
    live = watched(described, "try-2")
    assert live.entries(EventType.ADOPT) == [""]
