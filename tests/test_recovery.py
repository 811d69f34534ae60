"""What is decided when replicas are lost: pure, a table and a few stories."""

from dataclasses import replace

import pytest

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import ReplicaName
from aerotrain.contract.ledger import Entry
from aerotrain.contract.recovery import say_silent
from aerotrain.contract.status import Loss, Observation, State, observed_exit
from aerotrain_airflow.recovery.ended import Ended
from aerotrain_airflow.recovery.recovery import SETTLE, SETTLE_TOLD, Recovery, Restart
from aerotrain_airflow.recovery.verdicts import RULES
from test_recovery_matrix import GANG, SERVED, job

RUNNING = Observation(state=State.RUNNING)


def lost(
    loss: Loss = Loss.CRASH, reason: str = "was ended by signal 11", code: int = 139
) -> Observation:
    return Observation(state=State.LOST, exit_code=code, reason=reason, loss=loss)


class Set:
    """A job's set at a time of the test's own, without processes."""

    def __init__(self, strategy: str = "parameter_server", **budgets: int) -> None:
        described = job(strategy, SERVED if strategy == "parameter_server" else GANG)
        self.job = replace(described, restarts=replace(described.restarts, **budgets))
        self.names = {str(name): name for name in self.job.names()}
        self.ledger: list[Entry] = []
        self.recovery = Recovery(self.job, [], self.ledger.append)
        self.now = 1000.0

    def sees(self, step: int | None = 7, **seen: Observation) -> Restart | Ended | None:
        all_seen: dict[ReplicaName, Observation] = dict.fromkeys(self.job.names(), RUNNING)
        all_seen |= {self.names[name.replace("_", "-")]: each for name, each in seen.items()}
        return self.recovery.decide(all_seen, self.now, step)

    def comes_back(self, step: int | None = 7, **seen: Observation) -> Restart:
        """The decision on a loss, carried out; a quarter of an hour goes by."""
        decision = self.sees(step, **seen)
        assert isinstance(decision, Restart), decision
        self.recovery.restarted(decision, max(self.now, decision.not_before), step)
        self.now += 900
        return decision

    def is_taken_over(self) -> None:
        """By another process, which knows no more than the ledger."""
        self.recovery = Recovery(self.job, list(self.ledger), self.ledger.append)


def names_of(decision: Restart) -> str:
    return " ".join(str(name) for name in sorted(decision.names))


def test_every_kind_of_loss_has_a_rule() -> None:
    assert RULES.keys() == set(Loss)


def test_while_all_run_there_is_nothing_to_do() -> None:
    assert Set().sees() is None


@pytest.mark.parametrize(
    ("loss", "says", "elsewhere", "roomier"),
    [
        (Loss.CRASH, "it comes back (1 of 3 crashes)", False, False),
        (Loss.PREEMPTED, "it comes back elsewhere (1 of 100 preemptions)", True, False),
        (Loss.NODE, "it comes back elsewhere (1 of 100 preemptions)", True, False),
        (Loss.MEMORY, "it comes back with more memory (1 of 2 memory)", False, True),
        (Loss.HANG, "it comes back elsewhere (1 of 3 hangs)", True, False),
        (Loss.START, "it comes back elsewhere (1 of 3 starts)", True, False),
    ],
)
def test_a_lost_worker_comes_back_alone_at_once(
    loss: Loss, says: str, elsewhere: bool, roomier: bool
) -> None:
    of = Set()
    decision = of.sees(worker_1=lost(loss, "was lost"))
    worker = frozenset({of.names["worker-1"]})
    assert decision == Restart(
        names=worker,
        because=f"worker-1 was lost; {says}",
        not_before=of.now,
        elsewhere=worker if elsewhere else frozenset(),
        roomier=worker if roomier else frozenset(),
    )


def test_a_loss_that_says_no_kind_counts_as_a_crash() -> None:
    decision = Set().sees(worker_0=Observation(state=State.LOST, reason="is gone"))
    assert isinstance(decision, Restart)
    assert "1 of 3 crashes" in decision.because


def test_the_chief_that_only_misses_its_ps_is_no_cause_and_both_come_back() -> None:
    decision = Set().comes_back(
        ps_0=lost(), chief=lost(Loss.TEMPORARY, "exited with 75: a process was lost", 75)
    )
    assert names_of(decision) == "chief ps-0 ps-1"
    assert "chief" not in decision.because


def test_one_that_names_no_cause_waits_a_moment_until_it_shows() -> None:
    of = Set()
    missing = lost(Loss.TEMPORARY, "exited with 75: a process was lost", 75)
    early = of.sees(chief=missing)
    assert isinstance(early, Restart)
    assert early.not_before > of.now
    of.now += 0.5
    later = of.sees(chief=missing, ps_0=lost())
    assert isinstance(later, Restart)
    assert names_of(later) == "chief ps-0 ps-1"


def test_a_gang_is_given_time_to_end_and_not_longer_than_it_needs() -> None:
    of = Set("multi_worker_mirrored")
    stale = of.sees(worker_1=lost())
    assert isinstance(stale, Restart)
    assert stale.not_before == of.now + SETTLE
    of.now += 1
    gone = lost(Loss.TEMPORARY, "exited with 75", 75)
    all_gone = of.sees(worker_1=lost(), worker_0=gone, chief=gone)
    assert isinstance(all_gone, Restart)
    assert all_gone.not_before <= of.now
    assert names_of(all_gone) == "chief worker-0 worker-1"


def test_a_gang_that_was_told_to_go_is_let_save_first() -> None:
    of = Set("multi_worker_mirrored")
    told = of.sees(worker_1=lost(Loss.PREEMPTED, "was ended by signal 15", 143))
    assert isinstance(told, Restart)
    assert told.not_before == of.now + SETTLE_TOLD


def test_preemptions_leave_the_budget_of_crashes_alone() -> None:
    of = Set(crashes=1, preemptions=3)
    for _ in range(3):
        of.comes_back(chief=lost(Loss.PREEMPTED, "was evicted", 143))
    assert "1 of 1 crashes" in of.comes_back(chief=lost()).because
    ended = of.sees(chief=lost(Loss.PREEMPTED, "was evicted", 143))
    assert isinstance(ended, Ended)
    assert ended.state is State.LOST
    assert ended.reason == "chief was evicted; it came back 3 times, and restarts.preemptions is 3"


def test_a_budget_belongs_to_one_replica() -> None:
    of = Set(crashes=1)
    of.comes_back(worker_0=lost())
    of.comes_back(worker_1=lost())
    assert isinstance(of.sees(worker_0=lost()), Ended)


def test_a_budget_of_zero_leaves_it_to_airflow() -> None:
    ended = Set(crashes=0).sees(worker_0=lost())
    assert isinstance(ended, Ended)
    assert ended.state is State.LOST


def test_the_same_words_at_the_same_step_three_times_stop_for_good() -> None:
    of = Set(crashes=50)
    for _ in range(2):
        of.comes_back(chief=lost(), step=40)
    ended = of.sees(chief=lost(), step=40)
    assert isinstance(ended, Ended)
    assert ended.state is State.FAILED
    assert ended.reason == (
        "chief was ended by signal 11: 3 times at step 40, so it would do it again"
    )


@pytest.mark.parametrize(
    ("third", "step"),
    [(lost(), 41), (lost(reason="was ended by signal 6", code=134), 40)],
    ids=["another step", "other words"],
)
def test_what_differs_is_no_repetition(third: Observation, step: int) -> None:
    of = Set(crashes=50)
    for _ in range(2):
        of.comes_back(chief=lost(), step=40)
    assert isinstance(of.sees(chief=third, step=step), Restart)


def test_who_is_killed_three_times_at_a_step_is_not_to_blame() -> None:
    of = Set(crashes=50)
    for _ in range(6):
        of.comes_back(worker_0=lost(reason="was ended by signal 9", code=137), step=40)


def test_losses_in_a_row_are_further_and_further_apart() -> None:
    of = Set(crashes=50)
    waits = []
    for step in range(8):
        decision = of.comes_back(chief=lost(), step=step)
        waits.append(decision.not_before - (of.now - 900))
        of.now += 1 - 900
    assert waits == [0, 0, 1, 2, 4, 8, 16, 30]
    of.now += 900
    decision = of.sees(chief=lost(), step=9)
    assert isinstance(decision, Restart)
    assert decision.not_before == of.now


def test_whoever_takes_the_set_over_goes_on_with_its_budgets() -> None:
    of = Set(crashes=2)
    of.comes_back(chief=lost())
    of.is_taken_over()
    assert "2 of 2 crashes" in of.comes_back(chief=lost(), step=9).because
    of.is_taken_over()
    assert of.recovery.generation(of.names["chief"]) == 2
    assert isinstance(of.sees(chief=lost()), Ended)


def test_a_loss_is_one_entry_however_often_it_is_seen() -> None:
    of = Set("multi_worker_mirrored")
    for _ in range(3):
        of.sees(worker_0=lost())
        of.is_taken_over()
    assert [entry.event for entry in of.ledger] == ["detect"]


def test_what_failed_for_good_comes_before_what_was_lost_to_it() -> None:
    failed = Observation(state=State.FAILED, exit_code=65, reason="exited with 65: a bug")
    ended = Set().sees(worker_0=failed, chief=lost(Loss.TEMPORARY, "exited with 75", 75))
    assert isinstance(ended, Ended)
    assert (ended.state, ended.reason) == (State.FAILED, "worker-0 exited with 65: a bug")


def test_a_chief_that_was_superseded_is_not_started_again_to_fight_its_successor() -> None:
    superseded = replace(observed_exit(ExitCode.SUPERSEDED), reason="launch 2 took over")
    ended = Set().sees(chief=superseded, worker_0=lost(Loss.TEMPORARY, "exited with 75", 75))
    assert isinstance(ended, Ended)
    assert (ended.state, ended.reason) == (State.FAILED, "chief launch 2 took over")


def test_a_chief_that_ended_well_ends_the_job_whoever_was_lost() -> None:
    ended = Set().sees(chief=Observation(state=State.SUCCEEDED), worker_0=lost())
    assert isinstance(ended, Ended)
    assert ended.state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("silent", "back"),
    [
        (["worker-0"], "chief worker-0"),
        (["worker-0", "worker-1"], "chief worker-0 worker-1"),
        (["ps-0"], "chief ps-0 ps-1"),
        (["another-7"], "chief"),
    ],
)
def test_who_does_not_answer_the_chief_is_replaced_with_it_wherever_it_seems_to_run(
    silent: list[str], back: str
) -> None:
    of = Set()
    words = f"exited with 76: no progress for 61 s: {say_silent(silent)}; this replica ends itself"
    decision = of.sees(chief=lost(Loss.HANG, words, 76))
    assert isinstance(decision, Restart)
    assert names_of(decision) == back
    assert decision.elsewhere >= {of.names[name] for name in silent if name in of.names}


def test_whom_a_replica_names_that_did_not_hang_is_left_alone() -> None:
    words = f"raised OSError: {say_silent(['worker-0'])}"
    assert names_of(Set().comes_back(chief=lost(Loss.CRASH, words, 1))) == "chief"
