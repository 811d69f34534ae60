"""Whether Airflow retries a task that was asked to end, according to Airflow's own state."""

import threading
from typing import Any

import pytest

from aerotrain_airflow.operators.task_try import TaskTry


class Airflow:
    """Airflow's state of a task instance, and whether this try is still its current one."""

    dag_id, run_id, task_id, id = "digits", "run", "train", "try-1"

    def __init__(self, states: dict[str, Any], map_index: int = -1, *, knows: bool = True) -> None:
        self._states = states
        self._knows = knows
        self._kept: dict[str, str] = {}
        self.map_index = map_index

    def get_task_states(self, **_: Any) -> dict[str, dict[str, Any]]:
        return {"run": self._states}

    def set(self, key: str, value: str) -> None:
        self._kept[key] = value

    def get(self, key: str) -> str | None:
        return self._kept.get(key) if self._knows else None


def has_successor(airflow: Airflow) -> bool:
    context: Any = {"ti": airflow, "task_state_store": airflow}
    return TaskTry(context).has_successor()


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "up_for_retry"])
def test_a_try_that_airflow_failed_by_itself_is_followed_by_another_try(state: str | None) -> None:
    assert has_successor(Airflow({"train": state}))


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "restarting", "running"])
def test_a_task_that_a_user_ended_is_not_retried(state: str) -> None:
    assert not has_successor(Airflow({"train": state}))


def test_a_try_whose_successor_runs_already_is_followed_by_it() -> None:
    assert has_successor(Airflow({"train": "running"}, knows=False))


def test_a_cleared_try_ends_its_job_although_its_successor_has_an_id() -> None:
    assert not has_successor(Airflow({"train": "restarting"}, knows=False))


def test_each_instance_of_a_mapped_task_has_its_own_state() -> None:
    states = {"train_0": "failed", "train_1": "scheduled"}
    assert [has_successor(Airflow(states, index)) for index in (0, 1)] == [False, True]


def test_without_a_response_of_airflow_no_next_try_is_expected() -> None:
    class Silent(Airflow):
        def get_task_states(self, **_: Any) -> dict[str, dict[str, Any]]:
            threading.Event().wait()
            raise AssertionError

    assert not has_successor(Airflow({}))
    assert not has_successor(Silent({}))
