"""The chaos tool itself: its schedule, and which outcomes it reports as wrong."""

import pytest
from benchmarks.fault_injection import Outcome

from aerotrain.contract.status import State
from aerotrain.training.checkpoints.retention import Name
from chaos import elastic
from chaos.__main__ import row_of_none
from chaos.faults import FAULTS, DagFault, Fault
from chaos.hosts import unlike
from chaos.trials import schedule, what_is_wrong, what_is_wrong_with_a_run

FAULT = next(each for each in FAULTS if isinstance(each, Fault))
OF_RUN = next(each for each in FAULTS if isinstance(each, DagFault) and each.tries_again)
GOOD = {
    "state": State.SUCCEEDED,
    "verdict": "worker-1 was ended by signal 9; it is restarted",
    "back": ["worker-1"],
    "detect": 0.2,
    "full_pace": 9.0,
    "longest_gap": 1.0,
    "steps_lost": 0,
    "steps_twice": 0,
    "goodput": None,
    "stalls": [],
    "left": [],
}


def test_the_same_seed_gives_the_same_schedule_with_every_fault() -> None:
    runs = len(FAULTS) + 4
    assert schedule(runs, 7, FAULTS) == schedule(runs, 7, FAULTS)
    assert schedule(runs, 7, FAULTS) != schedule(runs, 8, FAULTS)
    assert {trial.fault for trial in schedule(runs, 7, FAULTS)} == set(FAULTS)


@pytest.mark.parametrize("kind", elastic.KINDS, ids=lambda kind: kind.name)
def test_by_the_plan_of_each_seed_a_group_grows_and_shrinks_among_faults(
    kind: elastic.Kind,
) -> None:
    for seed in range(50):
        acts = elastic.plan(kind, seed)
        assert acts == elastic.plan(kind, seed)
        sizes = [int(each.what) for each in acts if each.what.isdecimal()]
        assert sorted([sizes[1] > sizes[0], sizes[2] > sizes[1]]) == [False, True]
        assert {*sizes} <= {*elastic.SIZES}
        assert sorted(each.epoch for each in acts) == [each.epoch for each in acts]
        assert acts[-1].epoch < kind.epochs
        verbs = {each.verb for each in acts}
        assert verbs == {"begin with", "scale to", "slow", "preempt", "kill"}


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ({}, ""),
        ({"state": State.LOST}, "it lost"),
        ({"back": ["chief"]}, "restarted: chief"),
        ({"back": []}, "restarted: none"),
        ({"left": ["process 7"]}, "left behind: process 7"),
    ],
)
def test_an_outcome_that_differs_from_the_matrix_is_reported_as_wrong(
    seen: dict[str, object], wrong: str
) -> None:
    assert what_is_wrong(FAULT, Outcome(**{**GOOD, **seen})) == wrong


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ({}, ""),
        ({"state": State.FAILED}, "it failed"),
        ({"sets": 2}, "2 replica groups were launched"),
        ({"adoptions": 0}, "adopted 0 times"),
        ({"back": ["chief"]}, "restarted: chief"),
    ],
)
def test_a_run_whose_airflow_was_killed_must_have_trained_exactly_once(
    seen: dict[str, object], wrong: str
) -> None:
    outcome = Outcome(**{**GOOD, "back": [], "adoptions": 1, **seen})
    assert what_is_wrong_with_a_run(OF_RUN, outcome) == wrong


@pytest.mark.parametrize(
    ("published", "names", "wrong"),
    [
        ([310, 320, 330, 340], [(1, 500), (2, 320), (2, 330), (2, 340)], False),
        ([310, 320], [(1, 500), (2, 310), (2, 320)], False),
        ([310, 320, 330, 340], [(1, 500), (1, 600), (2, 340)], True),
        ([310, 320, 330], [(1, 500)], True),
        ([310], [], True),
    ],
)
def test_the_last_checkpoints_of_a_successor_must_be_in_the_store(
    published: list[int], names: list[tuple[int, int]], wrong: bool
) -> None:
    assert bool(unlike(published, [Name(*each) for each in names], keep=3)) is wrong


def test_a_fault_that_the_machine_cannot_inject_is_a_row_and_no_failure() -> None:
    row = row_of_none(3, FAULT, "has no nft (on Debian: apt install iproute2 nftables)")
    assert str(row["verdict"]).startswith("not injected: this machine has no nft")
    assert row["wrong"] == "-"
