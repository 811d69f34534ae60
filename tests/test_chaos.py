"""The chaos tool's own word: its schedule, and what it calls wrong."""

import pytest
from benchmarks.mishaps import Outcome

from aerotrain.contract.status import State
from chaos.__main__ import schedule, what_is_wrong
from chaos.faults import FAULTS

FAULT = FAULTS[0]
GOOD = {
    "state": State.SUCCEEDED,
    "verdict": "worker-1 was ended by signal 9; it comes back",
    "back": ["worker-1"],
    "detect": 0.2,
    "full_pace": 9.0,
    "longest_gap": 1.0,
    "steps_lost": 0,
    "steps_twice": 0,
    "imported": None,
    "goodput": None,
    "stalls": [],
    "left": [],
}


def test_the_same_seed_is_the_same_schedule_and_every_fault_has_its_turn() -> None:
    runs = len(FAULTS) + 4
    assert schedule(runs, 7) == schedule(runs, 7)
    assert schedule(runs, 7) != schedule(runs, 8)
    assert {trial.fault.harm for trial in schedule(runs, 7)} == {each.harm for each in FAULTS}


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ({}, ""),
        ({"state": State.LOST}, "it lost"),
        ({"back": ["chief"]}, "who came back: chief"),
        ({"back": []}, "who came back: nobody"),
        ({"left": ["process 7"]}, "left behind: process 7"),
    ],
)
def test_what_differs_from_the_matrix_is_wrong(seen: dict[str, object], wrong: str) -> None:
    assert what_is_wrong(FAULT, Outcome(**{**GOOD, **seen})) == wrong
