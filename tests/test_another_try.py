"""Whether a task that is told to go is tried again by Airflow, by what Airflow says of it."""

import threading
from typing import Any

import pytest

from aerotrain_airflow.another_try import is_tried_again


class Instance:
    """A task instance of Airflow's, of which it says one thing."""

    dag_id, run_id, task_id = "digits", "run", "train"

    def __init__(self, states: dict[str, Any], map_index: int = -1) -> None:
        self._states = states
        self.map_index = map_index

    def get_task_states(self, **_: Any) -> dict[str, dict[str, Any]]:
        return {"run": self._states}


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "up_for_retry"])
def test_one_that_airflow_gave_up_by_itself_waits_for_its_next_try(state: str | None) -> None:
    assert is_tried_again(Instance({"train": state}))


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "restarting", "running"])
def test_one_that_somebody_has_ended_is_not_tried_again(state: str) -> None:
    assert not is_tried_again(Instance({"train": state}))


def test_each_instance_of_a_mapped_task_is_its_own() -> None:
    states = {"train_0": "failed", "train_1": "scheduled"}
    assert [is_tried_again(Instance(states, index)) for index in (0, 1)] == [False, True]


def test_without_an_answer_nothing_is_left_to_a_next_try() -> None:
    class Silent(Instance):
        def get_task_states(self, **_: Any) -> dict[str, dict[str, Any]]:
            threading.Event().wait()
            raise AssertionError

    assert not is_tried_again(Instance({}))
    assert not is_tried_again(Silent({}))
