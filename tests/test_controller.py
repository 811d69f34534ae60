"""What the controller decides when replicas fail: pure, a table and a few sequences."""

from dataclasses import replace
from typing import Any

import pytest

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Deadlines, Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import Failure, Observation, State, observed_exit
from aerotrain.launch.controller import Controller
from aerotrain.launch.decision import Ended, GroupObservation, LastStep, Restart, Wait
from aerotrain.launch.restart_policy import RULES, SETTLE, SETTLE_PREEMPTED, compacted, size_of
from support.described_jobs import GANG, SERVED, job

ELSEWHERE = "it is restarted, elsewhere if possible"
RUNNING = Observation(state=State.RUNNING)
FULL = Observation(state=State.PENDING, reason="waits for a node: Insufficient cpu")


def lost(
    kind: Failure = Failure.CRASH,
    reason: str = "was ended by signal 11",
    code: int = 139,
    **more: Any,
) -> Observation:
    return Observation(state=State.LOST, exit_code=code, reason=reason, failure=kind, **more)


class Group:
    """The replica group of a job at a time that the test sets, without processes."""

    def __init__(
        self, strategy: str = "parameter_server", of: Job | None = None, **budgets: int
    ) -> None:
        described = of or job(strategy, SERVED if strategy == "parameter_server" else GANG)
        self.job = replace(
            described,
            restarts=replace(described.restarts, **budgets),
            deadlines=Deadlines(start=600, run=360_000, progress_timeout=60),
        )
        self.names = {str(name): name for name in self.job.names()}
        self.events: list[Event] = []
        self.now = 1000.0
        self.controller = Controller(job=self.job, created=self.now)
        self.counts = dict.fromkeys(self.job.names(), 0)

    def sees(
        self,
        step: int | None = 7,
        trained: float | None = None,
        looked: float | None = None,
        **seen: Observation,
    ) -> Restart | Ended | Wait:
        """The decision on this observation; its events are kept, and unnamed replicas run."""
        all_seen: dict[ReplicaName, Observation] = dict.fromkeys(self.job.names(), RUNNING)
        all_seen |= {self.names[name.replace("_", "-")]: each for name, each in seen.items()}
        counted = {
            name: replace(each, restarts=self.counts[name]) if each.restarts == 0 else each
            for name, each in all_seen.items()
        }
        progress = None
        if step is not None:
            # LastStep after everything that has happened: the job trains.
            progress = LastStep(step, self.now + 0.1 if trained is None else trained)
        look = GroupObservation(counted, self.now if looked is None else looked)
        decision = self.controller.decide(self.events, look, self.now, progress)
        self.events += decision.events
        return decision.action

    def restarts(
        self, step: int | None = 7, trained: float | None = None, **seen: Observation
    ) -> Restart:
        """The restart after a failure, carried out when due; then 15 minutes pass."""
        action = self.due(step, trained, **seen)
        assert isinstance(action, Restart), action
        self.counts |= action.counts
        self.now += 900
        return action

    def due(
        self, step: int | None = 7, trained: float | None = None, **seen: Observation
    ) -> Restart | Ended | Wait:
        """The decision after its wait is over."""
        action = self.sees(step, trained, **seen)
        while isinstance(action, Wait) and any(
            each.event is EventType.DETECT and each.at == self.events[-1].at
            for each in self.events[-1:]
        ):
            self.now = action.until
            action = self.sees(step, trained, **seen)
        return action


def names_of(decision: Restart) -> str:
    return " ".join(str(name) for name in sorted(decision.counts))


def test_every_failure_kind_has_a_rule() -> None:
    assert RULES.keys() == set(Failure)


def test_while_all_replicas_run_the_controller_waits_for_the_deadline() -> None:
    assert Group().sees() == Wait(1000 + 360_000)


@pytest.mark.parametrize(
    ("kind", "says", "avoids", "memory", "force"),
    [
        (Failure.CRASH, "it is restarted (1 of 3 crashes)", False, 1.0, False),
        (Failure.PREEMPTED, f"{ELSEWHERE} (1 of 100 preemptions)", True, 1.0, False),
        (Failure.NODE, f"{ELSEWHERE} (1 of 100 preemptions)", True, 1.0, True),
        (Failure.MEMORY, "it is restarted with more memory (1 of 2 memory)", False, 1.5, False),
        (Failure.HANG, f"{ELSEWHERE} (1 of 3 hangs)", True, 1.0, False),
        (Failure.START, f"{ELSEWHERE} (1 of 3 starts)", True, 1.0, False),
    ],
)
def test_a_failed_worker_is_restarted_alone_at_once(
    kind: Failure, says: str, avoids: bool, memory: float, force: bool
) -> None:
    of = Group()
    worker = of.names["worker-1"]
    assert of.sees(worker_1=lost(kind, "was lost", node="node-3")) == Restart(
        counts={worker: 1},
        because=f"worker-1 was lost; {says}",
        avoid={worker: "node-3"} if avoids else {},
        memory={worker: memory} if memory != 1.0 else {},
        force=frozenset({worker} if force else ()),
    )


def test_a_chief_that_failed_because_of_its_ps_is_restarted_but_is_not_the_cause() -> None:
    decision = Group().restarts(
        ps_0=lost(), chief=lost(Failure.TEMPORARY, "exited with 75: a process was lost", 75)
    )
    assert names_of(decision) == "chief ps-0 ps-1"
    assert "chief" not in decision.because


def test_a_failure_without_a_cause_is_decided_after_a_short_wait_for_the_cause() -> None:
    of = Group()
    missing = lost(Failure.TEMPORARY, "exited with 75: a process was lost", 75)
    early = of.sees(chief=missing)
    assert isinstance(early, Wait)
    assert of.now < early.until < of.now + 2
    of.now += 0.5
    assert isinstance(of.sees(chief=missing, ps_0=lost()), Wait)  # the other ps may still save
    of.now += SETTLE
    later = of.sees(chief=missing, ps_0=lost())
    assert isinstance(later, Restart)
    assert names_of(later) == "chief ps-0 ps-1"


def test_a_gang_restarts_once_all_members_have_ended_or_their_time_is_over() -> None:
    of = Group("multi_worker_mirrored")
    assert of.sees(worker_1=lost()) == Wait(of.now + SETTLE)
    of.now += 1
    gone = lost(Failure.TEMPORARY, "exited with 75", 75)
    all_gone = of.sees(worker_1=lost(), worker_0=gone, chief=gone)
    assert isinstance(all_gone, Restart)
    assert names_of(all_gone) == "chief worker-0 worker-1"


def test_a_preempted_gang_may_save_a_checkpoint_before_its_restart() -> None:
    of = Group("multi_worker_mirrored")
    preempted = lost(Failure.PREEMPTED, "was ended by signal 15", 143)
    assert of.sees(worker_1=preempted) == Wait(of.now + SETTLE_PREEMPTED)


def test_preemptions_do_not_count_against_the_budget_of_crashes() -> None:
    of = Group(crashes=1, preemptions=3)
    for _ in range(3):
        of.restarts(chief=lost(Failure.PREEMPTED, "was evicted", 143))
    assert "1 of 1 crashes" in of.restarts(chief=lost()).because
    ended = of.due(chief=lost(Failure.PREEMPTED, "was evicted", 143))
    assert isinstance(ended, Ended)
    assert ended.state is State.LOST
    assert (
        ended.reason == "chief was evicted; it was restarted 3 times, and restarts.preemptions is 3"
    )


KILLED = lost(reason="was ended by signal 9", code=137)


@pytest.mark.parametrize(
    ("failures", "is_final"),
    [
        ([(lost(), 40)] * 3, True),
        ([(lost(), 40), (lost(), 40), (lost(), 41)], False),
        ([(lost(), 40), (lost(), 40), (lost(reason="was ended by signal 6"), 40)], False),
        ([(lost(), None)] * 6, False),  # no line was read
        ([(KILLED, 40)] * 6, False),  # from outside
    ],
)
def test_the_same_error_at_the_same_step_three_times_fails_the_job_for_good(
    failures: list[tuple[Observation, int | None]], is_final: bool
) -> None:
    of = Group(crashes=50)
    *earlier, (last, at) = failures
    for seen, step in earlier:
        of.restarts(chief=seen, step=step)
    decision = of.due(chief=last, step=at)
    if is_final:
        assert isinstance(decision, Ended)
        assert decision.state is State.FAILED
        assert "3 times at step 40, so it would fail again" in decision.reason
    else:
        assert isinstance(decision, Restart)


def test_lines_from_before_its_restarts_do_not_tell_where_a_replica_failed() -> None:
    of = Group(crashes=50)
    for _ in range(6):
        of.restarts(chief=lost(), step=40, trained=999.0)


def test_the_wait_before_a_restart_grows_with_consecutive_failures() -> None:
    of = Group(crashes=50)
    waits = []
    for step in range(8):
        began = of.now
        of.restarts(chief=lost(), step=step)
        waits.append(of.now - 900 - began)
        of.now += 1 - 900
    assert waits == [0, 0, 1, 2, 4, 8, 16, 30]
    of.now += 900
    assert isinstance(of.sees(chief=lost(), step=9), Restart)


def test_a_failure_is_recorded_once_however_often_it_is_observed() -> None:
    of = Group("multi_worker_mirrored")
    for _ in range(3):
        of.sees(worker_0=lost())
    assert [event.event for event in of.events] == ["detect"]


def test_a_restart_that_was_recorded_and_not_carried_out_is_carried_out_as_recorded() -> None:
    of = Group()
    worker = of.names["worker-1"]
    first = of.sees(worker_1=lost(Failure.NODE, "is gone", node="node-3"))
    recorded = len(of.events)
    of.now += 5
    again = of.sees(worker_1=lost(Failure.NODE, "is gone", node="node-3"))
    assert again == first
    assert again == of.sees(worker_1=Observation(state=State.LOST, restarts=None))
    assert len(of.events) == recorded
    of.counts[worker] = 1
    assert isinstance(of.sees(), Wait)


def test_a_recorded_failure_stands_although_the_replica_responds_again() -> None:
    of = Group("multi_worker_mirrored")
    stopped = replace(RUNNING, heartbeat_age=61.0)
    assert isinstance(of.sees(worker_0=stopped), Wait)
    of.now += SETTLE
    awake = of.sees(worker_0=replace(RUNNING, heartbeat_age=0.1))
    assert isinstance(awake, Restart)
    assert of.names["worker-0"] in awake.counts


def test_memory_grows_with_each_time_that_it_ran_out_and_never_shrinks_again() -> None:
    of = Group(memory=3)
    memory = [of.restarts(worker_1=lost(Failure.MEMORY, "ran out of memory", 137)) for _ in "12"]
    crash = of.restarts(worker_1=lost())
    worker = of.names["worker-1"]
    assert [each.memory[worker] for each in (*memory, crash)] == [1.5, 2.25, 2.25]


@pytest.mark.parametrize(
    ("age", "trained", "is_ended"), [(59, True, False), (61, True, True), (61, False, False)]
)
def test_a_gang_that_is_starting_has_the_timeout_of_a_start(
    age: float, trained: bool, is_ended: bool
) -> None:
    of = Group("multi_worker_mirrored")
    of.now += 400
    seen = replace(RUNNING, heartbeat_age=float(age))
    of.sees(step=7 if trained else None, worker_0=seen)
    assert bool(of.events) is is_ended
    if is_ended:
        assert (of.events[0].kind, of.events[0].because) == (
            "hang",
            "had no heartbeat for 60 s, and was ended",
        )


def test_progress_from_before_a_restart_does_not_count_for_the_restarted_gang() -> None:
    of = Group("multi_worker_mirrored")
    of.restarts(chief=lost(), worker_0=lost(), worker_1=lost())
    recorded = len(of.events)
    stale = replace(RUNNING, heartbeat_age=61.0)
    of.sees(trained=1000.0, worker_0=stale)
    assert len(of.events) == recorded


def test_a_permanent_failure_takes_precedence_over_the_failures_that_it_caused() -> None:
    failed = observed_exit(65, "a bug")
    ended = Group().sees(worker_0=failed, chief=lost(Failure.TEMPORARY, "exited with 75", 75))
    assert isinstance(ended, Ended)
    assert (ended.state, ended.reason) == (State.FAILED, "a bug (worker-0, exit code 65)")


def test_a_chief_that_succeeded_ends_the_job_although_others_failed() -> None:
    ended = Group().sees(chief=Observation(state=State.SUCCEEDED), worker_0=lost())
    assert isinstance(ended, Ended)
    assert ended.state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("silent", "back"),
    [
        (["worker-0"], "chief worker-0"),
        (["worker-0", "worker-1"], "chief worker-0 worker-1"),
        (["another-7"], "chief"),
    ],
)
def test_a_replica_unresponsive_to_the_chief_is_restarted_with_it_on_another_node(
    silent: list[str], back: str
) -> None:
    of = Group()
    hung = lost(Failure.HANG, "exited with 76: no progress", 76, unresponsive=frozenset(silent))
    there = replace(RUNNING, node="node-3")
    decision = of.sees(chief=hung, worker_0=there, worker_1=there)
    assert isinstance(decision, Restart), "what is silent is not waited for"
    assert names_of(decision) == back
    named = {of.names[name] for name in silent if name in of.names}
    assert decision.force == named
    assert decision.avoid == dict.fromkeys(named, "node-3")


def test_a_peer_named_by_a_replica_that_did_not_hang_is_not_restarted() -> None:
    crashed = lost(Failure.CRASH, "raised OSError", 1, unresponsive=frozenset({"worker-0"}))
    assert names_of(Group().restarts(chief=crashed)) == "chief"


def waiting(since: float) -> Observation:
    return replace(FULL, waits_since=since)


def test_a_replica_that_misses_its_start_deadline_ends_the_job() -> None:
    of = Group()
    began = of.now
    assert of.sees(worker_1=waiting(began)) == Wait(began + 600)
    of.now += 600
    ended = of.sees(worker_1=waiting(began))
    assert isinstance(ended, Ended)
    assert ended.state is State.LOST
    assert ended.reason == (
        "1 of 5 replicas of job did not start within 600 s, so all were ended: "
        "worker-1 waits for a node: Insufficient cpu"
    )
    assert [(each.event, each.kind) for each in of.events] == [("end", "lost")]


def test_a_replica_that_is_restarted_late_has_as_long_to_start_in_a_group_of_any_age() -> None:
    of = Group()
    of.now += 36_000
    assert of.sees(worker_1=waiting(of.now - 599)) == Wait(of.now + 1)
    assert isinstance(of.sees(worker_1=waiting(of.now - 601)), Ended)


def test_a_restart_that_cannot_be_carried_out_ends_by_the_start_deadline() -> None:
    of = Group()
    of.sees(worker_1=lost())
    of.now += 601
    assert isinstance(of.sees(worker_1=lost()), Ended)


def test_a_start_is_late_only_if_that_was_seen_after_its_deadline() -> None:
    of = Group()
    began = of.now
    of.now += 700
    action = of.sees(worker_1=waiting(began), looked=began + 599)
    assert isinstance(action, Wait)
    assert action.look_again
    assert isinstance(of.sees(worker_1=waiting(began), looked=began + 600), Ended)


def test_an_unavailable_api_does_not_extend_the_deadline_of_a_job() -> None:
    of = Group()
    began = of.now
    of.now += 360_000
    ended = of.sees(worker_1=waiting(began), looked=began + 1)
    assert isinstance(ended, Ended)
    assert "ran for longer than its deadline of 360000 s" in ended.reason


@pytest.mark.parametrize(
    ("chief", "adopted"),
    [
        (Observation(state=State.SUCCEEDED, reason="exited with 0", exit_code=0), True),
        (Observation(state=State.FAILED, reason="exited with 65: a bug", exit_code=65), False),
    ],
)
def test_an_end_that_is_recorded_is_the_end_when_the_replicas_are_gone(
    chief: Observation, adopted: bool
) -> None:
    of = Group()
    ended = of.sees(chief=chief)
    gone = lost(Failure.NODE, "is gone", restarts=None)
    again = of.sees(**{str(name).replace("-", "_"): gone for name in of.job.names()})
    assert isinstance(ended, Ended)
    assert isinstance(again, Ended)
    assert (again.state, again.reason) == (ended.state, ended.reason)
    all_gone = dict.fromkeys(of.job.names(), gone)
    assert of.controller.can_adopt(of.events, all_gone, of.now) is adopted


def test_a_replica_that_serves_and_exits_with_0_is_restarted_as_after_a_crash() -> None:
    of = Group()
    left = Observation(state=State.SUCCEEDED, reason="exited with 0", exit_code=0)
    restart = of.sees(worker_1=left)
    assert isinstance(restart, Restart)
    assert names_of(restart) == "worker-1"
    assert restart.because.startswith("worker-1 exited with 0 while the chief still needed it")


@pytest.mark.parametrize("kind", [Failure.TEMPORARY, Failure.HANG])
def test_a_peer_that_exits_with_0_is_named_if_the_chief_fails_without_it(kind: Failure) -> None:
    of = Group("multi_worker_mirrored")
    left = Observation(state=State.SUCCEEDED, reason="exited with 0", exit_code=0)
    assert isinstance(of.sees(worker_1=left), Wait)  # the chief may be about to end, too
    restart = of.due(worker_1=left, chief=lost(kind, "misses a peer", 75))
    assert isinstance(restart, Restart)
    assert names_of(restart) == "chief worker-0 worker-1"
    assert "worker-1 exited with 0 while the chief still needed it" in restart.because


@pytest.mark.parametrize(
    ("seen", "adopted"),
    [
        ({"worker_0": lost()}, True),
        ({"chief": Observation(state=State.SUCCEEDED)}, True),
        ({"chief": Observation(state=State.FAILED, reason="a bug")}, False),
        (dict.fromkeys(["chief", "worker_0", "worker_1", "ps_0", "ps_1"], lost()), False),
    ],
)
def test_a_group_that_can_still_succeed_is_adopted(
    seen: dict[str, Observation], adopted: bool
) -> None:
    of = Group()
    all_seen = dict.fromkeys(of.job.names(), RUNNING)
    all_seen |= {of.names[name.replace("_", "-")]: each for name, each in seen.items()}
    assert of.controller.can_adopt([], all_seen, of.now) is adopted


def test_a_group_with_a_recorded_restart_that_was_not_carried_out_is_adopted() -> None:
    of = Group("multi_worker_mirrored")
    gone = dict.fromkeys(["chief", "worker_0", "worker_1"], lost())
    of.sees(**gone)
    seen = {each: replace(RUNNING, state=State.LOST, restarts=None) for each in of.job.names()}
    assert of.controller.can_adopt(of.events, seen, of.now)


def test_a_log_of_any_number_of_restarts_is_bounded_without_changing_decisions() -> None:
    of = Group("multi_worker_mirrored", preemptions=10_000, crashes=3)
    of.restarts(worker_0=lost(reason="a crash " * 50))
    for step in range(100):
        of.restarts(step=step, worker_0=lost(Failure.PREEMPTED, "was evicted " * 20, 143))
    whole = list(of.events)
    assert size_of(whole) > 60_000
    of.events = list(compacted(whole, limit=20_000))
    assert size_of(of.events) < 20_000
    seen = {"worker_0": lost(reason="another crash"), "chief": lost(), "worker_1": lost()}
    compact = of.sees(**seen)
    of.events = whole
    assert compact == of.sees(**seen)
    assert isinstance(compact, Restart)
    assert "worker-0 another crash; it is restarted (2 of 3 crashes)" in compact.because
    assert compact.counts[of.names["worker-1"]] == 102


def test_the_log_of_a_thousand_replicas_that_are_preempted_again_and_again_is_bounded() -> None:
    many = [{"role": "chief"}, {"role": "worker", "count": 1000}]
    of = Group("multi_worker_mirrored", of=job("multi_worker_mirrored", many))
    everyone = {f"worker_{index}": lost(Failure.PREEMPTED, code=143) for index in range(1000)}
    for _ in range(4):
        restart = of.restarts(**everyone)
        of.events = list(compacted(of.events, limit=512 * 1024))
        assert size_of(of.events) < 512 * 1024
    assert len(restart.because) < 500
    assert "; and 997 more" in restart.because
    assert str(restart).endswith("restarting chief, worker-0, worker-1, and 998 more")
    again = of.sees(worker_7=lost(Failure.PREEMPTED, code=143), chief=lost(Failure.TEMPORARY))
    assert isinstance(again, Wait)
    assert "worker-7" in of.events[-1].replica


def test_a_repeated_error_ends_the_job_although_its_events_were_shortened() -> None:
    of = Group(crashes=50)
    failed = lost(reason="raised ValueError: " + "a long message " * 50)
    for _ in range(2):
        of.restarts(chief=failed, step=40)
        of.events = list(compacted(of.events, limit=100))
    ended = of.due(chief=failed, step=40)
    assert isinstance(ended, Ended)
    assert ended.state is State.FAILED
