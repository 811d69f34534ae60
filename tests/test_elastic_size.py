"""How the size of a group changes, by the room that there is and by hand: pure, as sequences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Deadlines
from aerotrain.contract.layout import JOB, SIZE
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure, Observation, State
from aerotrain.launch.controller import Controller
from aerotrain.launch.decision import Ended, GroupObservation, LastStep, Restart, Wait
from aerotrain.launch.restart_policy import compacted
from aerotrain.launch.size import JOIN_TOGETHER, PLACED_WITHIN, Size, WantedSize
from aerotrain.launch.wanted import want
from aerotrain.standalone.cli import main
from aerotrain.store import Store, open_store
from support.described_jobs import job

PEERS, SERVED = "multi_worker_mirrored", "parameter_server"


class World:
    """A group whose restarts are carried out at once, on a cluster with room for some workers."""

    def __init__(self, strategy: str, workers: str, room: int, **budgets: int) -> None:
        ps = [{"role": "ps"}] if strategy == SERVED else []
        described = job(strategy, [{"role": "chief"}, {"role": "worker", "count": workers}, *ps])
        self.job = replace(
            described,
            deadlines=Deadlines(start=600, run=10_000),
            restarts=replace(described.restarts, **budgets),
        )
        self.now, self.room = 1000.0, room
        self.controller = Controller(job=self.job, created=self.now)
        self.events: list[Event] = []
        self.wanted: WantedSize | None = None
        self.times: dict[str, float] = {}
        self.seen: dict[ReplicaName, Observation] = {}
        for name in self.job.names():
            self._start(name, 0)

    def _start(self, name: ReplicaName, restarts: int) -> None:
        """Start a replica, which waits if it is a worker for which there is no room."""
        runs = [each for each, seen in self.seen.items() if seen.state is State.RUNNING]
        workers = [each for each in runs if each.role is Role.WORKER and each != name]
        if name.role is Role.WORKER and len(workers) >= self.room:
            pending = {"reason": "waits for a node", "waits_since": self.now}
            self.seen[name] = Observation(state=State.PENDING, restarts=restarts, **pending)
        else:
            self.seen[name] = Observation(
                state=State.RUNNING, restarts=restarts, began=self.now, node="a-node"
            )

    def lose(self, name: str, kind: Failure = Failure.NODE, *, room: int | None = None) -> None:
        self.room = self.room if room is None else room
        [victim] = [each for each in self.job.names() if str(each) == name]
        self.seen[victim] = replace(
            self.seen[victim], state=State.LOST, failure=kind, reason="was lost"
        )

    def more_room(self, workers: int) -> None:
        """Those that wait get a place, the first ones first."""
        self.room = workers
        for name in sorted(self.seen):
            if self.seen[name].state is State.PENDING:
                self._start(name, self.seen[name].restarts or 0)

    def act(self) -> Restart | Ended | Wait:
        """One decision, and its carrying out."""
        decision = self.controller.decide(
            self.events,
            GroupObservation(self.seen, self.now),
            self.now,
            LastStep(1200, self.now),
            self.wanted,
            self.times,
        )
        self.events += decision.events
        action = decision.action
        if isinstance(action, Restart):
            ended = Observation(state=State.LOST, failure=Failure.PREEMPTED, reason="was ended")
            for name in {*action.ends, *action.counts}:
                self.seen[name] = replace(ended, restarts=self.seen[name].restarts)
            for name, count in sorted(action.counts.items()):
                self._start(name, count)
        return action

    def settle(self, seconds: float = 60.0) -> list[str]:
        """What is done in these seconds, until nothing is left to do."""
        until, said = self.now + seconds, []
        while True:
            action = self.act()
            if isinstance(action, Ended):
                return [*said, action.reason]
            if isinstance(action, Restart):
                said.append(str(action))
            elif action.until > until:
                self.now = until
                return said
            else:
                self.now = max(self.now, action.until)

    def members(self) -> str:
        size = Size.of(self.job, self.events)
        return " ".join(map(str, size.members()))

    def running(self) -> str:
        return " ".join(str(n) for n in self.seen if self.seen[n].state is State.RUNNING)

    def resizes(self) -> list[str]:
        return [each.because for each in self.events if each.event is EventType.RESIZE]


def test_peers_begin_with_those_that_have_a_place_and_others_join_together_later() -> None:
    of = World(PEERS, "1..4", room=2)
    began = of.now
    assert of.settle(PLACED_WITHIN - 1) == []
    [said] = of.settle()
    assert said.startswith("2 of 4 workers go on: worker-2 and worker-3 have no place; restarting")
    assert (of.members(), of.events[0].at) == ("chief worker-0 worker-1", began + PLACED_WITHIN)
    of.more_room(4)
    got_room = of.now
    [said] = of.settle()
    assert "worker-2 and worker-3 have a place: going on with 4 of 4 workers from step 1200" in said
    assert of.now >= got_room + JOIN_TOGETHER
    assert of.members() == "chief worker-0 worker-1 worker-2 worker-3"
    assert not [each for each in of.events if each.event is EventType.DETECT]


def test_all_peers_get_a_cluster_of_the_new_members_in_one_restart() -> None:
    of = World(PEERS, "1..3", room=2)
    of.settle()
    restarted = [each.replica for each in of.events if each.event is EventType.RESTART]
    assert sorted(restarted) == ["chief", "worker-0", "worker-1", "worker-2"]
    assert {each.restarts for each in of.events if each.event is EventType.RESTART} == {1}


def test_peers_go_on_without_a_lost_one_that_gets_no_place_again() -> None:
    of = World(PEERS, "1..3", room=3)
    of.lose("worker-1", room=2)
    said = of.settle()
    assert of.resizes() == ["2 of 3 workers go on: worker-2 has no place"], said
    assert of.members() == "chief worker-0 worker-1"


def test_served_workers_come_and_go_without_a_restart_of_others() -> None:
    of = World(SERVED, "1..3", room=2)
    assert of.settle(2000) == [], "one that has no place never misses a deadline"
    of.lose("worker-0", room=1)
    [said] = of.settle(2000)
    assert said.endswith("restarting worker-0")
    assert of.running() == "chief worker-1 ps-0"
    of.more_room(3)
    assert of.settle(2000) == []
    assert of.running() == "chief worker-0 worker-1 worker-2 ps-0"
    assert of.resizes() == []


@pytest.mark.parametrize("strategy", [PEERS, SERVED])
def test_fewer_than_the_least_number_end_the_job_at_the_start_deadline(strategy: str) -> None:
    of = World(strategy, "2..3", room=1)
    assert "did not start within 600 s" in of.settle(700)[-1]


@pytest.mark.parametrize("kind", [Failure.START, Failure.NODE])
@pytest.mark.parametrize("strategy", [PEERS, SERVED])
def test_a_worker_that_the_cluster_takes_too_often_is_left_out_and_ends_no_job(
    strategy: str, kind: Failure
) -> None:
    of = World(strategy, "1..2", room=2, starts=1, preemptions=1)
    for _ in range(3):
        of.lose("worker-1", kind)
        of.settle()
    assert of.act() == of.act()
    assert of.running() == {PEERS: "chief worker-0", SERVED: "chief worker-0 ps-0"}[strategy]
    of.lose("worker-0", Failure.CRASH)
    of.settle()
    assert "worker-0" in of.running()


@pytest.mark.parametrize(
    ("strategy", "begin", "wanted", "says", "running"),
    [
        (
            SERVED,
            3,
            1,
            ["1 of 4 workers are asked for by hand; ending worker-1, worker-2"],
            "chief worker-0 ps-0",
        ),
        (
            SERVED,
            1,
            3,
            ["3 of 4 workers are asked for by hand; restarting worker-1, worker-2"],
            "chief worker-0 worker-1 worker-2 ps-0",
        ),
        (
            PEERS,
            3,
            1,
            [
                "1 of 4 workers are asked for by hand; ending worker-1, worker-2; restarting "
                "chief, worker-0"
            ],
            "chief worker-0",
        ),
        (
            PEERS,
            1,
            3,
            [
                "3 of 4 workers are asked for by hand; restarting worker-1, worker-2",
                "worker-1 and worker-2 have a place: going on with 3 of 4 workers from step 1200; "
                "restarting chief, worker-0, worker-1, worker-2",
            ],
            "chief worker-0 worker-1 worker-2",
        ),
    ],
)
def test_a_size_is_asked_for_by_hand(
    strategy: str, begin: int, wanted: int, says: list[str], running: str
) -> None:
    of = World(strategy, "1..4", room=4)
    of.wanted = WantedSize(workers=begin)
    of.settle()
    of.wanted = WantedSize(workers=wanted)
    assert of.settle() == says
    assert of.running() == running
    assert of.settle(2000) == [], "it stays so"
    assert not [each for each in of.events if each.event is EventType.DETECT], "no budget is used"


def test_a_size_outside_of_the_range_is_the_nearest_one_in_it() -> None:
    of = World(SERVED, "2..3", room=3)
    of.wanted = WantedSize(workers=1)
    of.settle()
    assert of.running() == "chief worker-0 worker-1 ps-0"
    of.wanted = WantedSize(workers=9)
    of.settle()
    assert of.running() == "chief worker-0 worker-1 worker-2 ps-0"


@pytest.mark.parametrize(
    ("strategy", "workers", "ends"),
    [
        (PEERS, "1..2", [["chief", "worker-0", "worker-1"]]),
        (SERVED, "2", [["chief"], ["ps-0", "worker-0", "worker-1"]]),  # the ps last: they save
    ],
)
def test_a_suspended_group_has_no_replicas_and_no_deadline_until_it_is_resumed(
    strategy: str, workers: str, ends: list[list[str]]
) -> None:
    of = World(strategy, workers, room=2)
    everybody = of.running()
    of.settle(1000)
    of.wanted = WantedSize(suspended=True)
    actions = [of.act() for _ in ends]
    assert [sorted(map(str, each.ends)) for each in actions if isinstance(each, Restart)] == ends
    assert of.settle(50_000) == []
    assert of.running() == ""
    assert of.controller.can_adopt(of.events, of.seen, of.now)
    of.wanted = WantedSize()
    [said] = of.settle(1000)
    assert said.startswith("resumed by hand; restarting chief")
    assert of.running() == everybody
    assert of.resizes() == ["suspended by hand after step 1200", "resumed by hand"]
    assert not [each for each in of.events if each.event is EventType.DETECT]
    assert "its deadline of 10000 s" in of.settle(9000)[-1], "the time before counts"


@pytest.mark.parametrize("strategy", [PEERS, SERVED])
def test_a_group_that_its_queue_evicts_starts_again_and_uses_no_budget(strategy: str) -> None:
    of = World(strategy, "2", room=2, preemptions=0)
    everybody = of.running()
    for _ in range(2):
        of.lose("worker-1", Failure.QUEUE)
        of.lose("chief", Failure.TEMPORARY)  # it misses the worker, and was seen first
        [said] = of.settle(1000)
        assert said.startswith(
            "evicted by the queue after step 1200; it goes on once it is admitted"
        )
        assert of.running() == everybody
    assert {seen.restarts for seen in of.seen.values()} == {2}
    assert len(of.resizes()) == 2
    assert not [each for each in of.events if each.event is EventType.DETECT]


@pytest.mark.parametrize(
    ("strategy", "stragglers", "restarted"),
    [
        (SERVED, "report", ""),
        (SERVED, "replace", "worker-1"),
        (PEERS, "report", ""),
        (PEERS, "replace", "chief, worker-0, worker-1"),
    ],
)
def test_a_slow_replica_is_named_once_an_hour_and_replaced_elsewhere_if_asked(
    strategy: str, stragglers: str, restarted: str
) -> None:
    of = World(strategy, "2", room=2, hangs=0, preemptions=0)
    of.job = replace(of.job, arguments={"stragglers": stragglers})
    of.controller = Controller(job=of.job, created=of.now)
    of.times = {"chief": 0.1, "worker-0": 0.1, "worker-1": 0.12}
    assert of.settle() == []
    of.times |= {"worker-1": 0.3, "worker-7": 9.0}  # the last one was there earlier
    first = of.act()
    [slow] = [each for each in of.events if each.event is EventType.STRAGGLER]
    why = "worker-1 is slow: its own part of a step takes 300 ms, 3 times the median of all"
    assert (slow.replica, slow.step) == ("worker-1", 1200)
    assert slow.because == why
    if restarted:
        assert isinstance(first, Restart)
        assert str(first).endswith(f"it is replaced; restarting {restarted}")
        assert first.gentle, "it may save or give back first"
        assert first.avoid == {ReplicaName(Role.WORKER, 1): "a-node"}
    assert of.settle() == []
    of.now += 3600
    of.act()
    assert [each.event for each in of.events].count(EventType.STRAGGLER) == 2
    assert not [each for each in of.events if each.event is EventType.DETECT]


def test_a_job_that_ends_while_it_is_suspended_has_ended() -> None:
    of = World(SERVED, "2", room=2)
    of.wanted = WantedSize(suspended=True)
    of.act()
    of.seen[ReplicaName(Role.CHIEF, 0)] = Observation(state=State.SUCCEEDED)
    ended = of.act()
    assert isinstance(ended, Ended)
    assert ended.state is State.SUCCEEDED


@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_resize_that_one_follower_began_is_completed_by_the_next(carried_out: int) -> None:
    """Which knows nothing but the event log, and has not read the user's wish yet."""
    of = World(PEERS, "1..3", room=3)
    before = dict(of.seen)
    of.wanted = WantedSize(workers=1)
    first = of.act()
    assert isinstance(first, Restart)
    done = [*sorted(first.counts)][:carried_out]
    of.seen = {name: of.seen[name] if name in done else each for name, each in before.items()}
    of.wanted, of.controller = None, Controller(job=of.job, created=1000.0)
    again = of.act()
    assert isinstance(again, Restart)
    assert again.gentle or not again.counts
    assert again.ends == first.ends
    assert again.counts == {name: n for name, n in first.counts.items() if name not in done}
    assert of.settle() == []
    assert of.running() == "chief worker-0"


def test_a_worker_outside_that_is_lost_restarts_no_other() -> None:
    of = World(PEERS, "1..3", room=2)
    of.settle()
    of.more_room(3)
    of.lose("worker-2", room=2)
    [said] = of.settle()
    assert said.endswith("restarting worker-2")


def test_a_worker_that_never_had_room_leaves_that_of_replicas_that_restart_to_them() -> None:
    """Otherwise it takes the place of the chief, which may be the last one to end."""
    of = World(PEERS, "1..2", room=2)
    worker = ReplicaName(Role.WORKER, 1)
    start = Event(event=EventType.RESTART, at=of.now, replica=str(worker), restarts=1)
    of.events.append(start)
    of.seen[worker] = Observation(state=State.PENDING)  # it has no pod
    assert of.controller.decide(of.events, GroupObservation(of.seen, of.now), of.now).action == (
        Restart(counts={worker: 1}, because="")
    )
    of.lose("worker-0", Failure.PREEMPTED)
    assert isinstance(of.act(), Wait)
    of.now += 10
    assert str(of.act()).endswith("restarting chief, worker-0, worker-1")


def test_a_log_of_many_events_keeps_the_size() -> None:
    of = World(PEERS, "1..3", room=2)
    of.settle()
    adopted = [Event(event=EventType.ADOPT, at=of.now + each) for each in range(500)]
    kept = compacted([*of.events, *adopted], limit=2000)
    assert Size.of(of.job, kept) == Size.of(of.job, of.events)


@pytest.mark.parametrize("wanted", [WantedSize(), WantedSize(workers=3, suspended=True)])
def test_a_wish_is_written_and_read(wanted: WantedSize) -> None:
    assert WantedSize.from_json(wanted.to_json()) == wanted


def test_a_job_of_a_fixed_size_changes_by_no_wish_of_another_number() -> None:
    of: Any = World(PEERS, "2", room=2)
    of.wanted = WantedSize(workers=1)
    assert of.settle() == []


def a_run(folder: Path, workers: str = "1..4") -> Store:
    """The folder of a run, with a training and a job of another kind."""
    run = open_store((folder / "runs/run").as_uri())
    replicas = [{"role": "chief"}, {"role": "worker", "count": workers}]
    run.put(f"train/{JOB}", job(PEERS, replicas).record())
    run.put(f"evaluate/{JOB}", replace(job(PEERS, replicas), module="another").record())
    return run


@pytest.mark.parametrize("folder", ["", "train"])
def test_a_wish_is_set_for_the_training_of_a_run(tmp_path: Path, folder: str) -> None:
    run = a_run(tmp_path)
    given = run.child(folder) if folder else run
    assert want(given, workers=3) == [f"{run.url}/train"]
    want(given, suspended=True)
    suspended = WantedSize.from_json(run.get(f"train/{SIZE}"))
    want(given, suspended=False)
    resumed = WantedSize.from_json(run.get(f"train/{SIZE}"))
    assert (suspended, resumed) == (
        WantedSize(workers=3, suspended=True),
        WantedSize(workers=3),
    )
    assert not run.exists(f"evaluate/{SIZE}")


@pytest.mark.parametrize(
    ("range_", "folder", "workers", "says"),
    [
        ("1..4", "", "5", "may have 1 to 4 workers, and 5 are asked for"),
        ("2", "", "3", "the number of workers of {url}/train is fixed; start a training with"),
        ("1..4", "evaluate", "3", "there is no training in {url}/evaluate; give the folder of"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path,
    range_: str,
    folder: str,
    workers: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = a_run(tmp_path, range_)
    with pytest.raises(SystemExit) as ended:
        main(["scale", f"{run.url}/{folder}".rstrip("/"), workers])
    [line] = capsys.readouterr().out.splitlines()
    assert ended.value.code == ExitCode.FINAL
    assert says.format(url=run.url) in line


def test_the_commands_say_what_they_have_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path)
    for words in (["scale", run.url, "3"], ["suspend", run.url], ["resume", run.url]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == ExitCode.OK
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "3 workers asked for",
        "is suspended within seconds, after a checkpoint",
        "goes on from its last checkpoint",
    ]
